"""Redaction of passwords, tokens and keys in all output: settings, command lines, errors, logs, trackers.

A secret is the value of a secret name (`token=...`, `--api-key ...`, `"password": ...`), the user part of a URL, or the
credentials of an `Authorization` header. Names that end in password, token, api_key and the like are always secret; an
environment declares further secret options with `TextEnv.secret_options`. A reference such as `${WORLD_TOKEN}`, for
which `resolved` substitutes an environment variable, is not a secret and stays.
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Iterable, Sequence

STARS = "***"
_ENDINGS = (
    r"password|passwd|passphrase|secret|token|api[_-]?key|access[_-]?key|private[_-]?key|secret[_-]?key|credentials?"
    r"|authorization|signature"
)
_BEGINNING = r"(?:[\w-]*(?:[_-]|(?-i:(?<=[a-z0-9])(?=[A-Z]))))?"  # up to a word of the name: a_, a- or camelCase
_INNOCENT = rf"{_BEGINNING}(?:bos|eos|pad|unk|sep|stop|max|next)[_-]?tokens?(?![\w-])"  # special or page tokens
_GENERIC = rf"(?!{_INNOCENT}){_BEGINNING}(?:{_ENDINGS})"
_SHORT = frozenset({"auth", "key", "pwd", "pw", "sig"})  # secret in URLs and options, not in prose
_REFERENCE = re.compile(r"\$\{(\w+)\}")
_declared: set[str] = set()

_HOST = r"(?:[\w.-]+|\[[\da-f:.]+\])(?::\d{1,5})?[/?#]"  # up to its end; an @ after that is part of a path or query
_REAL_HOST = r"(?:(?!v\d)[a-z][\w-]*\.(?:[\w-]+\.)*[a-z]{2,}|localhost|\d+\.\d+\.\d+\.\d+|(?!sha\d|md\d)[a-z][\w-]*:\d)"
# `user:12/x@example.org` could be a host with port and path. A host has a dot or is localhost, and an @ in a path is
# more often followed by a version or a branch than by another host.
_SLASHED = rf"(?!localhost[:/])[\w-]+(?::\d+)?/(?:(?!\w*://|//)[^\s\"<>?#@]){{1,256}}@{_REAL_HOST}"
_USER = r"""(?:(?!(?<!\w)\w+://)[^\s"<>])"""
# What has no @ is consumed, too, or each // in it would be tried again, in quadratic time.
_URL_USER = re.compile(rf"(?i)(?<=//)(?!/)(?:(?={_SLASHED})|(?!{_HOST}))(?:({_USER}*@)|{_USER}+)")
_QUERY = re.compile(r"""(?<=[?&])([\w-]+)=([^\s&#'"]+)""")
_START = r"(?:(?<![\w-])|(?<=\\[nrt]))"
_QUOTED = r"""'(?:[^'\\\n]|\\.)*'|"(?:[^"\\\n]|\\.)*\""""
_GROUP = r"[(\[{][^\n]*[)\]}]"
_VALUE = rf"(?:{_QUOTED}|{_GROUP}|\S+)"
_CONSTANT = r"(?:null|none|true|false)(?![^\s,}\]])"
_CUT = r"""[(\[{'"][^\n]*"""  # an opening quote or bracket that isn't closed
_BARE = r"(?:\$\{\w+\}|[^\s,}\]])"
_ITEM = rf"(?!{_CONSTANT})(?:(?:{_QUOTED}){_BARE}*|{_GROUP}|{_CUT}|{_BARE}+)"  # the value of a quoted key, as in JSON
_FLAG = re.compile(r"(?<![\w.-])(--[\w.-]+\s+)(?!-)(\S+)")
_LAST = r"""(?=['"]|[^\S\n]*$)"""  # the end of a header line, where prose would continue
_DONE = r"""(?:\*\*\*|\$\{\w+\}(?![^\s'"]))"""  # already redacted, or a reference
_SCHEME = r"(?:bearer|basic|token|api-?key|digest|negotiate|ntlm)"
_SENT = r"""\bauthorization['"]?\s*[:=]\s*['"]?"""
_CREDENTIALS = re.compile(
    rf"""(?im)({_SENT}{_SCHEME}\s+|\bbearer\s+)[\w.~+/=-]{{8,}}[^\s'",]*"""
    rf"""|({_SENT}[a-z][\w-]*[^\S\n]+)(?:(?=[a-z.~+/=_-]*\d)[^\s'",]{{8,}}|[^\s'"]{{8,}}{_LAST})"""
    rf"""|({_SENT})(?!{_DONE}|{_SCHEME}{_LAST})(?:(?=[a-z.~+/=_-]*\d)[^\s'",]{{8,}}|[^\s'"]+{_LAST})"""
)
_HELD = rf"""[^\S\n]*['"]?)(?!{_DONE})[^\s'"]+"""
_HEADER = re.compile(
    rf"(?im){_START}(x-{_BEGINNING}(?:{_ENDINGS}):{_HELD}"
    rf"|{_START}((?:\w[\w-]*-(?:{_ENDINGS})|(?:api|access|private|secret)-key):{_HELD}{_LAST}"
)


def declare_secrets(names: Iterable[str]) -> None:
    """Treat options with these names as secret from now on, in this process."""
    _declared.update(names)


def is_secret(name: str) -> bool:
    """Whether the value of an option or flag with this name is secret."""
    plain = name.lstrip("-")
    return plain.lower() in _SHORT or re.fullmatch(_names(), plain, re.IGNORECASE) is not None


def redacted(text: str) -> str:
    """Return `text` with stars in place of secrets."""
    text = _CREDENTIALS.sub(lambda found: f"{found[1] or found[2] or found[3]}{STARS}", text)
    text = _URL_USER.sub(lambda found: f"{STARS}@" if found[1] and not _is_reference(found[1]) else found[0], text)
    text = _QUERY.sub(lambda found: _starred(found, found[1], found[2]), text)
    named = rf"""{_START}({_names()})(?:=(?!\*\*\*)({_VALUE})|['"]:\s*(?!\*\*\*)({_ITEM}))"""
    text = re.sub(named, lambda found: _starred(found, found[1], found[2] or found[3]), text, flags=re.IGNORECASE)
    text = _FLAG.sub(lambda found: _starred(found, _last_name(found[1].strip()), found[2]), text)
    return _HEADER.sub(lambda found: f"{found[1] or found[2]}{STARS}", text)


def redacted_option(pair: str) -> str:
    """Return `KEY=VALUE`, which may have a prefix `WORLD:` or `--flag.`, with stars in place of secrets."""
    head, equals, value = pair.partition("=")
    if equals and re.fullmatch(r"[\w.:/-]+", head) and is_secret(_last_name(head)):
        return pair if _REFERENCE.fullmatch(value) else f"{head}={STARS}"
    return redacted(pair)


def redacted_words(words: Sequence[str]) -> list[str]:
    """Return the words of a command line with stars in place of secrets."""
    redacted_line = list[str]()
    for previous, word in zip(("", *words), words, strict=False):
        follows_secret_flag = previous.startswith("--") and "=" not in previous and is_secret(_last_name(previous))
        is_value = follows_secret_flag and not word.startswith("--") and not _REFERENCE.fullmatch(word)
        redacted_line.append(STARS if is_value else redacted_option(word))
    return redacted_line


def resolved(text: str) -> str:
    """Return `text` with references such as `${WORLD_TOKEN}` replaced by the environment variables' values.

    Raises:
        ValueError: if a variable isn't set.
    """

    def value(found: re.Match[str]) -> str:
        set_to = os.environ.get(found[1])
        if set_to is None:
            raise ValueError(f"The environment variable {found[1]} is not set. Set it: export {found[1]}=...")
        return set_to

    return _REFERENCE.sub(value, text)


class RedactingFormatter(logging.Formatter):
    """Formats log records, including tracebacks, without secrets."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the redacted record."""
        return redacted(super().format(record))


def redact_logs() -> None:
    """Redact secrets in log records for which no handler is configured. Each command calls this once."""
    if logging.lastResort is not None:
        logging.lastResort.setFormatter(RedactingFormatter())


def _starred(found: re.Match[str], name: str, value: str) -> str:
    if not is_secret(name) or _REFERENCE.fullmatch(value.strip("'\"")):
        return found[0]
    return found[0].removesuffix(value) + STARS


def _names() -> str:
    return "|".join([_GENERIC, *map(re.escape, sorted(_declared))])


def _last_name(head: str) -> str:
    return re.split(r"[.:/]", head)[-1]


def _is_reference(user: str) -> bool:
    return re.fullmatch(r"[^:]*:?\$\{\w+\}@", user) is not None
