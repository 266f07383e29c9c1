"""The normal form of answers to our own tasks: a text becomes a sequence of tokens that mean the same in any notation.

`2 h 11 min`, `2 hours and 11 minutes` and `131 min` are one token, as are `$1,234.50` and `1234.5`, or `5 Mar 2024` and
`2024-03-05`. Case, punctuation and markup don't count. The units of numbers don't make them other tokens; they are kept
beside them. WebArena's own matches don't use this module.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import date
from decimal import Decimal
from functools import lru_cache
from typing import Final

from agentgym_envs.worlds.webarena.evaluation.units import Unit, units_at

WORD: Final = "word"
"""The kind of tokens that aren't values."""


@dataclass(frozen=True, slots=True)
class Token:
    """A word or a value in normal form."""

    kind: str
    """`word`, or the kind of the value: `number`, `duration`, `time`, `day`, `date`, `phone`, `address` or `code`.

    The kind of a code, such as a tracking number, includes its form: `code aa99`."""
    text: str
    """The normal form."""
    units: tuple[Unit, ...] = field(default=(), compare=False)
    """Units that stand beside a number, such as `$` or `km`."""


_MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
_MONTH = (
    "(?:jan(?:uary)?|feb(?:ruary)?|mar(?:ch)?|apr(?:il)?|may|june?|july?|aug(?:ust)?|sept?(?:ember)?|oct(?:ober)?"
    r"|nov(?:ember)?|dec(?:ember)?)\b\.?"
)
_DAYS = r"(?:mon|tues?|wed(?:nes)?|thu(?:rs?)?|fri|sat(?:ur)?|sun)(?:day)?"
_HOURS, _MINUTES = "(?:hours?|hrs?|h)(?![a-z])", "(?:minutes?|mins?|m)(?![a-z])"
_TOKEN = re.compile(
    rf"""
    (?P<address> https?://[^\s,;)]*[\w/] | [\w.+-]+@[\w-]+(?:\.[\w-]+)+(?::[\w./-]*\w)? )
    | (?P<iso> (?<![\w/-])\d{{4}}(?:-\d{{2}}-|/\d{{2}}/)\d{{2}}(?![\w/-]) )
    | (?P<numeric> (?<![\w./-])\d{{1,2}}(?:\.\d{{1,2}}\.|/\d{{1,2}}/|-\d{{1,2}}-)\d{{4}}(?![\w/-]|\.\d) )
    | (?P<day_first> \b\d{{1,2}}(?:st|nd|rd|th)?\s+(?:of\s+)?{_MONTH},?\s+\d{{4}}\b )
    | (?P<month_first> \b{_MONTH}\s+\d{{1,2}}(?:st|nd|rd|th)?,?\s+\d{{4}}\b )
    | (?P<time> (?<![\d:])\d{{1,2}}:\d{{2}}(?![\d:])(?:\s*[ap]\.?m\b\.?)? )
    | (?P<duration> (?<![\w.])(?:(?P<days>\d{{1,9}})\s*(?:days?|d)(?![a-z])[\s,]*(?:and\s+)?)?(?:
        (?P<joined>\d+)h(?P<joined_rest>[0-5]\d)(?![\w.:])
        | (?P<hours>\d+(?:\.\d+)?)\s*{_HOURS}(?:[\s,]*(?:and\s+)?(?P<rest>\d{{1,9}})\s*{_MINUTES})?
        | (?P<minutes>\d{{1,9}})\s*(?:minutes?|mins?)\b) )
    | (?P<phone> (?<![\w.+])(?:(?:\+|00)[1-9]\d{{0,2}}[ -]?(?:\(0\)\ ?)?\(?\d{{3,5}}\)?[ -]?\d{{3}}[ -]?\d{{3}}
        | 0\d{{3,4}}\)?[ -]?\d{{3}}[ -]?\d{{3}} | \d{{3}}-\d{{4}})(?![\w-]) )
    | (?P<day> \b(?:{_DAYS}|daily|(?:every|each)\ day)\b )
    | (?P<postcode> \b[a-z]{{1,2}}\d{{1,2}}\ ?\d[a-z]{{2}}\b )
    | (?P<code> (?<!\w)[a-z][a-z'_]*(?:-[a-z]+)*-?\d[\w-]*(?<![-_]) )
    | (?P<version> (?<![\w.])\d+(?:\.\d+){{2,}} )
    | (?P<number> (?:(?<![\w.)])-)?(?<![\w.])(?:\d+(?:\.\d+)?|\.\d+) )
    | (?P<word> \w+(?:'\w+)* )
    """,
    re.VERBOSE,
)
_DAY = rf"(?:{_DAYS}|daily|(?:every|each) day)"
_DOTTED = r"(?:[01]?\d|2[0-4])\.[0-5]\d\s*(?:-|to|until|till)\s*(?:[01]?\d|2[0-4])\.[0-5]\d(?![\w]|\.\d)"
_DOTTED_HOURS = re.compile(  # 9.30-16.30 are times beside a day only; else it may be a difference of amounts
    rf"\b{_DAY}\b[,:]?\s+(?:from\s+)?{_DOTTED}(?:\s*(?:,|and)\s*{_DOTTED})*|(?<![\w.]){_DOTTED},?\s+(?={_DAY}\b)"
)
_HALF_DAY = re.compile(r"(?<![\w:.,])(0?[1-9]|1[0-2])(?:\.([0-5]\d))?\s*([ap])\.?m\b\.?")  # 2 pm, 2.30 p.m.
_RANGE = r"\d{1,2}:\d\d(?:\s?[ap]m)?\s*-\s*\d{1,2}:\d\d(?:\s?[ap]m)?"
_DAILY_LAST = re.compile(rf"({_RANGE}),?\s+(?:daily|(?:every|each) day)\b(?!,?\s*\d)")
_MEMBER = re.compile(r"(?<![\w/.])/?u/(?=[a-z_])")  # the forum's notation of its members
_FROM = re.compile(r"\bfrom +(?=\d{1,2}:\d\d)")
_UNTIL = re.compile(rf"(\d:\d\d(?: ?[ap]m)?|\b{_DAYS}) +(?:to|until|till|through) +(?=\d|{_DAYS}\b)")
_GROUPS = re.compile(r"(?<=\d),(?=\d{3}(?!\d))")
_SPELLINGS = str.maketrans(dict.fromkeys("‘’‛´`", "'") | dict.fromkeys("‐‑‒–—−", "-") | {"&": " and ", "*": " "})


@lru_cache(maxsize=4096)  # the rivals of a task are compared with several answers
def tokens(text: str) -> tuple[Token, ...]:
    """Return the tokens of `text` in normal form."""
    return tuple(_tokens(normalised(text)))


def normalised(text: str) -> str:
    """Return the text in lower case, with one notation of signs, of amounts and of hours of the day."""
    text = unicodedata.normalize("NFKC", text).translate(_SPELLINGS).casefold()
    text = _MEMBER.sub("", _GROUPS.sub("", text))
    text = re.sub(r"(?<![\w)])-([$€£])(?=\d)", r"\1-", text)
    text = _DOTTED_HOURS.sub(lambda match: re.sub(r"(\d)\.(?=\d)", r"\1:", match[0]), text)
    text = _HALF_DAY.sub(lambda match: f"{match[1]}:{match[2] or '00'} {match[3]}m", text)
    text = _UNTIL.sub(r"\1-", _FROM.sub("", text))
    return _DAILY_LAST.sub(r"daily \1", text)


def _tokens(text: str) -> Iterator[Token]:
    for match in _TOKEN.finditer(text):
        kind, found = match.lastgroup or "", match[0]
        if match["duration"]:
            yield Token("duration", _minutes(match))
        elif kind in ("iso", "day_first", "month_first"):
            yield Token("date", found.replace("/", "-") if kind == "iso" else _iso(found))
        elif kind == "numeric":
            yield Token("date", _numeric(found))
        elif kind == "time":
            yield Token("time", _clock(found))
        elif kind == "phone":
            yield Token("phone", _phone(found))
        elif kind == "day":
            yield Token("day", "daily" if found.endswith(("daily", " day")) else found[:3])
        elif kind in ("postcode", "code"):
            code = found.replace(" ", "")
            yield Token(f"code {re.sub('[^0-9_-]', 'a', re.sub('[0-9]', '9', code))}", code)
        elif kind == "number":
            yield _number(found, units_at(text, *match.span()))
        elif kind == "address":
            yield Token("address", found)
        else:
            yield Token(WORD, found)


def _number(found: str, units: tuple[Unit, ...]) -> Token:
    if re.match(r"0\d", found):  # part of an identifier, such as a phone number in an unknown notation
        return Token(WORD, found)
    value = Decimal(found)
    return Token("number", f"{value.normalize():f}" if value else "0", units)


def _minutes(match: re.Match[str]) -> str:
    hours = int(match["days"] or 0) * 24 + Decimal(match["hours"] or match["joined"] or 0)
    whole = hours * 60 + int(match["rest"] or match["joined_rest"] or 0) + int(match["minutes"] or 0)
    return f"{whole.normalize():f}"


def _iso(found: str) -> str:
    day, year = re.findall(r"\d+", found)
    month = next(number for number, name in enumerate(_MONTHS, start=1) if re.search(rf"\b{name}", found))
    return f"{year}-{month:02d}-{int(day):02d}"


def _numeric(found: str) -> str:
    """Return a date in ISO's form. `16.6.2024` has the day first; `05/03/2024`, which may be either, stays as it is."""
    first, second, year = map(int, re.findall(r"\d+", found))
    day, month = (second, first) if "." not in found and second > 12 else (first, second)
    if "." not in found and day <= 12 and day != month:
        return found
    try:
        return date(year, month, day).isoformat()
    except ValueError:
        return found


def _phone(found: str) -> str:
    """Return the digits as they are dialled within the country, whose code is 44; those of others keep their `+`."""
    digits = re.sub(r"\D", "", found.replace("(0)", ""))
    if found.startswith("+") or (digits.startswith("00") and len(digits) > 11):
        digits = digits.removeprefix("00")
        return "0" + digits.removeprefix("44") if digits.startswith("44") else f"+{digits}"
    return digits


def _clock(found: str) -> str:
    hour, minute = map(int, re.findall(r"\d+", found))
    if "p" in found or "a" in found:
        hour = hour % 12 + 12 * ("p" in found)
    return f"{hour:02d}:{minute:02d}"
