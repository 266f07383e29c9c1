"""Text to search terms, as Lucene's `EnglishAnalyzer` (Pyserini's default) makes them.

Words after Unicode's rules for word boundaries (UAX #29), without possessive 's, in lower case, without Lucene's
English stop words, and with the ending off after Porter (1980). In one thing it isn't Lucene: of Thai, Lao, Khmer and
Burmese, which are written without spaces, it makes a term of the letters between two marks, where Lucene's is a whole
phrase.
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

# The properties are those of UAX #29 (WB), UAX #14 (LB) and the script; a mark or joiner continues what it follows.
# South-East Asian scripts (SA) are without spaces: there, marks end a word, or a whole phrase would be one.
_MORE = r"\p{WB=Extend}\p{WB=Format}\p{WB=ZWJ}--\p{LB=SA}"
_LETTER, _DIGIT, _HEBREW = r"\p{WB=ALetter}\p{WB=Hebrew_Letter}", r"\p{WB=Numeric}", r"\p{WB=Hebrew_Letter}"
_BETWEEN = r"\p{WB=MidNumLet}\p{WB=Single_Quote}"


def _run(kind: str) -> str:
    """One or more characters of a kind, each with its marks."""
    return rf"[{kind}][{kind}[{_MORE}]]*+"


def _joined(kind: str, between: str) -> str:
    """Runs with a single character of `between` from one to the next: 3.14, can't."""
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
# Underscores alone are no word, but matched in one go: else a long run would be looked at from each of its places.
_TERM = regex.compile(rf"{_WORDS}|{_SINGLE}|{_PHRASE_PART}|{_EMOJI}|{_UNDERSCORE}", regex.VERSION1)
_LONGEST = 255  # characters of a word, as Lucene has it
_NO_WORD = regex.compile(_UNDERSCORE, regex.VERSION1)
# Lucene's stemmer has Porter's later changes, which Snowball's "porter" hasn't: -bly as -ble, -logy as -log.
_BLY = re.compile("([aeiouy][^aeiou].*)bly$")
_LOGY = re.compile("([aeiouy][^aeiou].*log)(?:y|ies)$")
_POSSESSIVE = re.compile("['\u2019\uff07][sS]$")


class Analyzer:
    """Makes terms of text, and remembers what a word became. One per thread, since the stemmer isn't for sharing."""

    def __init__(self) -> None:
        self._stem = Stemmer.Stemmer("porter").stemWord
        self._known: dict[str, str] = {}

    def terms(self, text: str) -> list[str]:
        """The terms of `text` in order, repeated as often as they stand there."""
        known = self._known
        if len(known) > 1_000_000:  # so that it stays within some 100 MB
            known.clear()
        terms: list[str] = []
        for word in _cut(_TERM.findall(text)):
            term = known.get(word)
            if term is None:
                term = known[word] = self._term(word)
            if term:
                terms.append(term)
        return terms

    def _term(self, word: str) -> str:
        """The term of one word; empty for a stop word and for underscores alone."""
        plain = _POSSESSIVE.sub("", word)
        # Java has one small letter for each capital; Python has two for İ, and another for a Σ at the end.
        plain = plain.lower() if plain.isascii() else "".join("i" if c == "İ" else c.lower() for c in plain)
        if plain in STOP_WORDS or _NO_WORD.fullmatch(plain):
            return ""
        if len(plain) < 3:
            return plain
        return self._stem(_LOGY.sub(r"\1", _BLY.sub(r"\1ble", plain)))


def _cut(words: Iterable[str]) -> Iterator[str]:
    """The words, in pieces where they are too long."""
    for word in words:
        if len(word) <= _LONGEST:
            yield word
        else:
            yield from (word[at : at + _LONGEST] for at in range(0, len(word), _LONGEST))
