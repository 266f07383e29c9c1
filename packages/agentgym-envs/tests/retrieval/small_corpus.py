"""A small synthetic corpus for the retrieval tests, with queries and helpers."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from random import Random
from typing import Any

import httpx
from agentgym_envs.retrieval import Hit, Passage
from patience import PATIENCE

AWKWARD = [
    Passage("awk-1", "O'Neill's", "The state-of-the-art U.S.A. plan cost $1,234.56 (3.14 percent) in 1999/2000."),
    Passage("awk-2", "Curaçao", "Naïve cafés' menus: crème brûlée, Ångström's units & the Straße's façades."),
    Passage("awk-3", "東京", "東京 (Tokyo) is Japan’s capital; ひらがな and カタカナ are scripts."),
    Passage("awk-4", "water", "H2O, H₂O and m² are written x_y or __init__; e.g. foo.bar:baz, a.b.c and 10:30."),
    Passage("awk-5", "", "If and but this: they will be there, not at the end."),
    Passage("awk-6", 'a "quoted" title', "Running runners ran; relational, conditional, happily generalizations."),
]


def make_passages(size: int = 1_500) -> list[Passage]:
    """Return `AWKWARD` and `size` passages of made-up words, some rare and some common."""
    rng = Random(7)
    words = [
        "".join(rng.choice("aeiou bcdlmnrst".replace(" ", "")) for _ in range(rng.randint(3, 9))) for _ in range(900)
    ]
    return [*AWKWARD, *(_make_passage(rng, words, number) for number in range(size))]


def _make_passage(rng: Random, words: Sequence[str], number: int) -> Passage:
    picked = [words[min(int(rng.expovariate(0.008)), len(words) - 1)] for _ in range(rng.randint(5, 90))]
    return Passage(f"p{number}", " ".join(picked[:2]).title(), f"{' '.join(picked).capitalize()}.")


def write_corpus(path: Path, passages: Sequence[Passage]) -> Path:
    rows = (json.dumps({"id": passage.id, "contents": passage.contents}) for passage in passages)
    path.write_text("".join(f"{row}\n" for row in rows), encoding="utf-8")
    return path


def ids(results: Sequence[Sequence[Hit]]) -> list[list[str]]:
    return [[hit.passage.id for hit in hits] for hits in results]


def is_running(pid: int) -> bool:
    """Return whether a process exists and is not a zombie."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    stat = Path(f"/proc/{pid}/stat")
    return not stat.exists() or stat.read_text().rpartition(")")[2].split()[0] != "Z"


def retrieve(url: str, **body: Any) -> httpx.Response:
    return httpx.post(f"{url}/retrieve", json=body, timeout=PATIENCE)


def make_queries(passages: Sequence[Passage], count: int, seed: int = 3) -> Iterator[str]:
    """Yield titles, words of a passage, consecutive words of a passage, and questions about a title, in turn."""
    rng = Random(seed)
    for number in range(count):
        passage = passages[rng.randrange(len(passages))]
        words = passage.text.split()
        begin = rng.randrange(max(1, len(words) - 7))
        yield [
            passage.title,
            " ".join(rng.sample(words, min(4, len(words)))),
            " ".join(words[begin : begin + 8]),
            f"What is known about {passage.title} and {words[begin]}?",
        ][number % 4]
