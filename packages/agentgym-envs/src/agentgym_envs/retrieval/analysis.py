"""Text analysis equivalent to Lucene's `EnglishAnalyzer`, Pyserini's default.

Words are split by Unicode's word boundary rules (UAX #29), stripped of possessive 's, lower-cased, filtered by Lucene's
English stop words, and stemmed (Porter 1980). One difference from Lucene remains: in Thai, Lao, Khmer and Burmese,
which are written without spaces, a term is the run of letters between two marks; in Lucene it is a whole phrase.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

import regex
import Stemmer

# fmt: off
STOP_WORDS = frozenset((
    "a", "an", "and", "are", "as", "at", "be", "but", "by", "for", "if", "in", "into", "is", "it", "no", "not", "of",
    "on", "or", "such", "that", "the", "their", "then", "there", "these", "they", "this", "to", "was", "will", "with",
))
# fmt: on
"""Lucene's `EnglishAnalyzer.ENGLISH_STOP_WORDS_SET`."""

# The properties are from UAX #29 (WB), UAX #14 (LB) and the script; a mark or joiner extends the preceding character.
# South-East Asian scripts (SA) have no spaces: there, marks end a word; otherwise a whole phrase would be one word.
_MORE = r"\p{WB=Extend}\p{WB=Format}\p{WB=ZWJ}--\p{LB=SA}"
_LETTER, _DIGIT, _HEBREW = r"\p{WB=ALetter}\p{WB=Hebrew_Letter}", r"\p{WB=Numeric}", r"\p{WB=Hebrew_Letter}"
_BETWEEN = r"\p{WB=MidNumLet}\p{WB=Single_Quote}"


def _run(kind: str) -> str:
    """Return a pattern for one or more characters of a kind, each with its marks."""
    return rf"[{kind}][{kind}[{_MORE}]]*+"


def _joined(kind: str, between: str) -> str:
    """Return a pattern for runs joined by single characters of `between`: 3.14, can't."""
    return rf"{_run(kind)}(?:[{between}][{_MORE}]*+{_run(kind)})*+"


_LETTERS = _joined(_LETTER, rf"{_BETWEEN}\p{{WB=MidLetter}}")
_ABBREVIATION = rf"(?<=[{_HEBREW}][{_MORE}]*)(?:'[{_MORE}]*+|\"[{_MORE}]*+(?=[{_HEBREW}]))"
_DIGITS = _joined(_DIGIT, rf"{_BETWEEN}\p{{WB=MidNum}}")
_KATAKANA = _run(r"\p{WB=Katakana}")
_CORE = rf"(?:{_KATAKANA}|(?:{_LETTERS}(?:{_ABBREVIATION})?+|{_DIGITS})++)"
_UNDERSCORE = _run(r"\p{WB=ExtendNumLet}")
_SINGLE = rf"[\p{{Han}}\p{{Hiragana}}][{_MORE}]*+"
_PICTURE = rf"\p{{Extended_Pictographic}}[{_MORE}]*+"
_EMOJI = rf"{_PICTURE}(?:(?<=\u200d){_PICTURE})*+|\p{{RI}}[{_MORE}]*+\p{{RI}}[{_MORE}]*+"
_WORDS = rf"(?:{_UNDERSCORE})?+{_CORE}(?:{_UNDERSCORE}{_CORE})*+(?:{_UNDERSCORE})?+"
_PHRASE_PART = r"[\p{LB=SA}&&\p{L}]++"
# Underscores alone are not a word, but are matched as one run: otherwise long runs would take quadratic time.
_TERM = regex.compile(rf"{_WORDS}|{_SINGLE}|{_PHRASE_PART}|{_EMOJI}|{_UNDERSCORE}", regex.VERSION1)
_MAX_WORD_CHARS = 255  # Lucene's limit
_UNDERSCORES_ONLY = regex.compile(_UNDERSCORE, regex.VERSION1)
# Lucene's stemmer has two later changes of Porter's that Snowball's "porter" lacks: -bly as -ble, -logy as -log.
_BLY = re.compile("([aeiouy][^aeiou].*)bly$")
_LOGY = re.compile("([aeiouy][^aeiou].*log)(?:y|ies)$")
_POSSESSIVE = re.compile("['\u2019\uff07][sS]$")


class Analyzer:
    """Converts text to terms, with a cache of words. Not thread-safe, since the stemmer isn't: use one per thread."""

    def __init__(self) -> None:
        self._stem = Stemmer.Stemmer("porter").stemWord
        self._known: dict[str, str] = {}

    def terms(self, text: str) -> list[str]:
        """Return the terms of `text` in order, with repetitions."""
        known = self._known
        if len(known) > 1_000_000:  # limits the cache to about 100 MB
            known.clear()
        terms: list[str] = []
        for word in _split_long(_TERM.findall(text)):
            term = known.get(word)
            if term is None:
                term = known[word] = self._term(word)
            if term:
                terms.append(term)
        return terms

    def _term(self, word: str) -> str:
        """Return the term of one word; empty for stop words and for underscores alone."""
        plain = _POSSESSIVE.sub("", word)
        # Java lower-cases character by character; Python maps İ to two characters and handles a final Σ separately.
        plain = plain.lower() if plain.isascii() else "".join("i" if c == "İ" else c.lower() for c in plain)
        if plain in STOP_WORDS or _UNDERSCORES_ONLY.fullmatch(plain):
            return ""
        if len(plain) < 3:
            return plain
        return self._stem(_LOGY.sub(r"\1", _BLY.sub(r"\1ble", plain)))


def _split_long(words: Iterable[str]) -> Iterator[str]:
    """Yield the words, split into pieces where they exceed Lucene's limit."""
    for word in words:
        if len(word) <= _MAX_WORD_CHARS:
            yield word
        else:
            yield from (word[at : at + _MAX_WORD_CHARS] for at in range(0, len(word), _MAX_WORD_CHARS))
