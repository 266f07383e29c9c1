"""Metrics for question answering: exact match and F1 with SQuAD's normalization.

Rajpurkar et al. 2016, arXiv 1606.05250, section 6.1.
"""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Sequence

_ARTICLES = re.compile(r"\b(?:a|an|the)\b")
_NO_PUNCTUATION = str.maketrans("", "", string.punctuation)


def normalise(answer: str) -> str:
    """Lower-case `answer`, remove ASCII punctuation and articles, and collapse whitespace."""
    text = answer.lower().translate(_NO_PUNCTUATION)
    return " ".join(_ARTICLES.sub(" ", text).split())


def exact_match(answer: str, aliases: Sequence[str]) -> bool:
    """Whether `answer` equals one of the aliases, both normalized."""
    return _comparable(answer) in map(_comparable, aliases)


def f1(answer: str, aliases: Sequence[str]) -> float:
    """Return the best F1 over the aliases, each between the bags of normalized words; in [0, 1]."""
    return max((_f1(_comparable(answer).split(), _comparable(alias).split()) for alias in aliases), default=0.0)


def _comparable(answer: str) -> str:
    """Normalize `answer`, or only lower-case it if nothing would be left: the blood group A must not match `the`."""
    return normalise(answer) or " ".join(answer.lower().split())


def _f1(predicted: list[str], expected: list[str]) -> float:
    shared = (Counter(predicted) & Counter(expected)).total()
    return 2 * shared / (len(predicted) + len(expected)) if shared else 0.0
