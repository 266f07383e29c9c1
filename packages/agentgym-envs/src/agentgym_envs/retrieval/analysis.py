"""Text to search terms, as Lucene's `EnglishAnalyzer` (Pyserini's default) makes them.

Words after Unicode's rules for word boundaries (UAX #29), without possessive 's, in lower case, without Lucene's
English stop words, and with the ending off after Porter (1980). What is left out of UAX #29: emoji, and scripts
written without spaces other than Chinese and Japanese.
"""

from __future__ import annotations

import re

import Stemmer

# fmt: off
STOP_WORDS = frozenset((
    "a", "an", "and", "are", "as", "at", "be", "but", "by", "for", "if", "in", "into", "is", "it", "no", "not", "of",
    "on", "or", "such", "that", "the", "their", "then", "there", "these", "they", "this", "to", "was", "will", "with",
))
# fmt: on
"""Lucene's `EnglishAnalyzer.ENGLISH_STOP_WORDS_SET`."""

_SINGLE = "\u3005\u3007\u3021-\u3029\u3041-\u309f\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff"  # a character, a word
_NO_LETTER = "\u00b2\u00b3\u00b9\u00bc-\u00be\u2070-\u2079\u2080-\u2089\u2150-\u215f\u2460-\u249b"  # ², ½, ₂, ①
_LETTER = rf"[^\W\d_{_SINGLE}{_NO_LETTER}]"
_PIECE = rf"(?:[^\W{_SINGLE}{_NO_LETTER}][\u0300-\u036f\u00ad\u200d-\u200f\u2060\ufe0f\ufeff]*)"
_BETWEEN_BOTH = ".'\u2018\u2019\u2024\ufe52\uff07\uff0e"
_BETWEEN_LETTERS = ":\u00b7\u0387\u05f4\u2027\ufe13\ufe55\uff1a"
_BETWEEN_DIGITS = ",;\u037e\u0589\u060c\u060d\u066c\u07f8\u2044\ufe10\ufe14\ufe50\ufe54\uff0c\uff1b"
_IN_WORDS = rf"(?<={_LETTER})[{_BETWEEN_BOTH}{_BETWEEN_LETTERS}](?={_LETTER})"
_IN_NUMBERS = rf"(?<=\d)[{_BETWEEN_BOTH}{_BETWEEN_DIGITS}](?=\d)"
_WORD = re.compile(rf"[{_SINGLE}]|{_PIECE}+(?:(?:{_IN_WORDS}|{_IN_NUMBERS}){_PIECE}+)*")
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
        for word in _WORD.findall(text):
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
        if plain in STOP_WORDS or not plain.strip("_"):
            return ""
        if len(plain) < 3:
            return plain
        return self._stem(_LOGY.sub(r"\1", _BLY.sub(r"\1ble", plain)))
