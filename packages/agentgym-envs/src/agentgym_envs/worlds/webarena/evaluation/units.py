"""Units of numbers: which ones an answer states, and which ones a question asks for.

A unit doesn't change a number's token, so that `313.3` and `313.3 km` are both right. But `313.3 minutes` isn't if the
question asks for kilometres.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import lru_cache
from typing import Final

Unit = frozenset[str]
"""What a unit may mean: `pounds` are money or a weight."""

_MONEY, _LENGTH, _AREA, _WEIGHT, _TIME, _SPEED, _SHARE, _VOLUME, _MULTIPLE = (
    "money", "length", "area", "weight", "time", "speed", "share", "volume", "multiple",
)  # fmt: skip
_SPELLINGS: Final = {
    (_MONEY, "$"): "$ us$ usd dollar dollars|us dollar|us dollars|u.s. dollars",
    (_MONEY, "cent"): "cent cents ct ¢",
    (_MONEY, "€"): "€ eur euro euros",
    (_MONEY, "£"): "£ gbp pound pounds|pounds sterling quid",
    (_MONEY, "¥"): "¥ yen jpy yuan cny rmb",
    (_MONEY, "₹"): "₹ inr rupee rupees",
    (_MONEY, "chf"): "chf franc francs",
    (_LENGTH, "km"): "km kms kilometre kilometres kilometer kilometers",
    (_LENGTH, "m"): "m metre metres meter meters",
    (_LENGTH, "cm"): "cm centimetre centimetres centimeter centimeters",
    (_LENGTH, "mm"): "mm millimetre millimetres millimeter millimeters",
    (_LENGTH, "mile"): "mi mile miles",
    (_LENGTH, "yard"): "yd yds yard yards",
    (_LENGTH, "foot"): "ft foot feet",
    (_LENGTH, "inch"): "inch inches",
    (_AREA, "km2"): "km2 sqkm|sq km|sq. km|square km|square kilometre|square kilometres"
    "|square kilometer|square kilometers",
    (_AREA, "m2"): "m2 sqm|sq m|square metre|square metres|square meter|square meters",
    (_AREA, "mile2"): "|square mile|square miles|sq mi",
    (_AREA, "hectare"): "ha hectare hectares",
    (_AREA, "acre"): "acre acres",
    (_WEIGHT, "kg"): "kg kgs kilo kilos kilogram kilograms kilogramme kilogrammes",
    (_WEIGHT, "g"): "g gram grams gramme grammes",
    (_WEIGHT, "lb"): "lb lbs pound pounds",
    (_WEIGHT, "oz"): "oz ounce ounces",
    (_WEIGHT, "t"): "t ton tons tonne tonnes",
    (_TIME, "second"): "s sec secs second seconds",
    (_TIME, "minute"): "min mins minute minutes",
    (_TIME, "hour"): "h hr hrs hour hours",
    (_TIME, "day"): "day days",
    (_TIME, "week"): "week weeks",
    (_TIME, "month"): "month months",
    (_TIME, "year"): "year years",
    (_SPEED, "km/h"): "km/h kmh kph",
    (_SPEED, "mph"): "mph",
    (_SHARE, "%"): "% percent pct|per cent|percentage points",
    (_VOLUME, "l"): "l litre litres liter liters",
    (_VOLUME, "ml"): "ml millilitre millilitres milliliter milliliters",
    (_MULTIPLE, "thousand"): "k thousand",
    (_MULTIPLE, "million"): "million millions",
    (_MULTIPLE, "billion"): "bn billion billions",
    (_MULTIPLE, "hundred"): "hundred",
    (_MULTIPLE, "dozen"): "dozen",
}
"""Dimension and meaning, with spellings: single words, and after each `|` one of several words."""


def _by_spelling() -> dict[str, Unit]:
    meanings: dict[str, set[str]] = {}
    for (_, meaning), listed in _SPELLINGS.items():
        words, *longer = listed.split("|")
        for spelling in (*words.split(), *longer):
            meanings.setdefault(spelling, set()).add(meaning)
    return {spelling: frozenset(found) for spelling, found in meanings.items()}


_UNITS: Final = _by_spelling()
_MULTIPLES: Final = frozenset(meaning for dimension, meaning in _SPELLINGS if dimension == _MULTIPLE)


def _pattern(spellings: Iterable[str]) -> str:
    ordered = sorted(spellings, key=len, reverse=True)
    return "|".join(re.escape(each) + (r"(?!\w)" if each[-1].isalnum() else "") for each in ordered)


_CALENDAR = frozenset({"second", "day", "week", "month", "year"})
_LONG = [spelling for spelling in _UNITS if len(spelling) > 1 and spelling[-1].isalnum()]
_WORDS = _pattern(_LONG)
_HEADINGS = _pattern(spelling for spelling in _LONG if _UNITS[spelling].isdisjoint(_CALENDAR))
_AFTER = re.compile(rf"(?: {{0,3}}|-)(?:({_pattern(_UNITS)})|[(\[]({_pattern(_UNITS)})[)\]])")
_BEFORE = re.compile(  # $5, EUR 5, and headings such as `Distance in km: 5`
    rf"(?:(?<!\w)(us\$|[$€£¥₹]|usd|eur|gbp|chf|jpy|cny|inr)|(?:\A|\bin |\()({_HEADINGS})\)? ?[:=]) {{0,3}}-?\Z"
)
_NEAR = 40  # characters before a number
_QUANTITY = re.compile(rf"[$€£¥₹] ?\d[\d.,]*|\d[\d.,]*[ -]?(?:{_pattern(_UNITS)})")
_NAMED = re.compile(rf"(?:\b(?:how many|number of)\s+(?:\w+\s+){{0,2}}?|\bin\s+|\()({_WORDS}|[$€£%])")
_MONEY_WORDS = re.compile(
    r"\b(?:costs?|pric(?:e[sd]?|ey|ier|iest)|pay|paid|spen[dt]|revenue|turnover|expensive|dear(?:er|est)|cheap(?:er|est)?)\b"
)
_MONEY_AT_LEAST = re.compile(r"\b(?:totals?|amounts?|refund(?:ed)?|fees?)\b")
_DIMENSIONS = {
    _LENGTH: r"how (?:far|high|tall|wide|deep)\b|\b(?:elevation|altitude|distance)\b",
    _WEIGHT: r"how (?:heavy|much\b.*\bweigh)\b|\bweighs?\b|\bweight\b",
    _TIME: r"how (?:long|old|much time)\b|\bage\b",
    _SPEED: r"how fast\b|\bspeed\b",
    _SHARE: r"\bpercent(?:age)?\b|\bshare\b|\bproportion\b",
    _AREA: r"\barea of\b",
}
_COUNT = re.compile(r"\bhow (?:many|often)\b|\b(?:which|what) (?:year|number)\b|\bnumber of\b|\bwhen\b")


def units_at(text: str, start: int, end: int) -> tuple[Unit, ...]:
    """Return the units that stand before and after the number at this place of a text in lower case."""
    near = text[:start] if start <= _NEAR else "…" + text[start - _NEAR : start]
    places = _BEFORE.search(near), _AFTER.match(text, end)
    return tuple(_UNITS[place[1] or place[2]] for place in places if place)


@lru_cache(maxsize=1024)
def asked_units(question: str) -> Unit | None:
    """Return the units of the numbers that a question asks for: none for counts and years, and None if it isn't known.

    Amounts of money are in dollars unless the question names another currency.

    Args:
        question: The question in lower case.
    """
    text = _QUANTITY.sub(" ", question)
    found = {meaning for match in _NAMED.finditer(text) for meaning in _UNITS[match[1]]}
    dimensions = {name for name, pattern in _DIMENSIONS.items() if re.search(pattern, text)}
    found |= {meaning for dimension, meaning in _SPELLINGS if dimension in dimensions}
    found |= {"year"} if re.search(r"\b(?:which|what) year\b", text) else set()
    known = bool(found) or _COUNT.search(text) is not None
    money = {meaning for dimension, meaning in _SPELLINGS if dimension == _MONEY}
    if (_MONEY_WORDS.search(text) or (not known and _MONEY_AT_LEAST.search(text))) and found.isdisjoint(money):
        return frozenset(found | {"$"})
    return frozenset(found) if known else None


def agree(stated: Iterable[Unit], expected: Unit | None) -> bool:
    """Whether all units that are stated beside a number are expected; None stands for any. `k` or `million` after a
    number changes it, so it must be expected.
    """
    if expected is None:
        return all(unit.isdisjoint(_MULTIPLES) for unit in stated)
    return all(not unit.isdisjoint(expected) for unit in stated)
