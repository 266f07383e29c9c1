"""How an answer is compared with those that count as right: exact match and F1 after SQuAD's normalisation.

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
    """In lower case, without ASCII punctuation and articles, words one space apart."""
    bare = answer.lower().translate(_NO_PUNCTUATION)
    return " ".join(_ARTICLES.sub(" ", bare).split())


def exact_match(answer: str, aliases: Sequence[str]) -> bool:
    """Whether `answer` is one of the aliases, both normalised."""
    return _compared(answer) in map(_compared, aliases)


def f1(answer: str, aliases: Sequence[str]) -> float:
    """The best F1 over the aliases, each between the bags of normalised words; in [0, 1]."""
    return max((_f1(_compared(answer).split(), _compared(alias).split()) for alias in aliases), default=0.0)


def _compared(answer: str) -> str:
    """Normalised, but as it is where nothing would be left: the blood group A is not the answer `the`."""
    return normalise(answer) or " ".join(answer.lower().split())


def _f1(said: list[str], right: list[str]) -> float:
    shared = (Counter(said) & Counter(right)).total()
    return 2 * shared / (len(said) + len(right)) if shared else 0.0
