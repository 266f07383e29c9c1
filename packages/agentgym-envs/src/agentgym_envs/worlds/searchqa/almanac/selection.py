"""Selects among the possible questions: a limit per category, forms in round-robin order, and a limit per answer."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from itertools import count, islice

from agentgym_envs.util.qa_metrics import normalise
from agentgym_envs.worlds.searchqa.almanac.chains import Draft, Form, draft, forms
from agentgym_envs.worlds.searchqa.almanac.comparisons import SCALES, compare
from agentgym_envs.worlds.searchqa.almanac.entities import Entity, Facts
from agentgym_envs.worlds.searchqa.almanac.questions import Question
from agentgym_envs.worlds.searchqa.almanac.splits import Part, part
from agentgym_envs.worlds.searchqa.almanac.words import shuffled, stable

SIZES: dict[Part, dict[str, int]] = {
    "train": {
        "1-hop": 6500,
        "2-hop": 8000,
        "3-hop": 6000,
        "1-hop count": 600,
        "2-hop count": 900,
        "3-hop count": 300,
        "2-hop comparison": 500,
        "3-hop comparison": 1000,
    },
    "test": {
        "1-hop": 700,
        "2-hop": 850,
        "3-hop": 650,
        "1-hop count": 100,
        "2-hop count": 120,
        "3-hop count": 60,
        "2-hop comparison": 50,
        "3-hop comparison": 100,
    },
}
"""The maximum number of questions per category."""
_PATIENCE = 400
"""A form is dropped after this many subjects without a new question."""
_SHARE = 0.01
"""The maximum share of a category with the same answer."""


def select(facts: Facts, side: Part) -> list[Question]:
    """Return the questions of one part, in an order in which any prefix is a fair sample."""
    subjects: dict[type[Entity], list[Entity]] = {}
    for entity in facts.entities.values():
        if part(entity) == side:
            subjects.setdefault(type(entity), []).append(entity)
    subjects = {kind: shuffled(f"{side} {kind.__name__}", own) for kind, own in subjects.items()}
    found: list[Question] = []
    for hops in (1, 2, 3):
        made = list(forms(hops))
        for counts in (False, True):
            streams = {f.name: _drafts(facts, f, subjects.get(f.kind, [])) for f in made if f.counts == counts}
            found += _fill(side, f"{hops}-hop count" if counts else f"{hops}-hop", hops, streams)
    for among in (2, 3):
        compared = {scale.name: compare(facts, scale, side, among) for scale in SCALES}
        found += _fill(side, f"{among}-hop comparison", among, compared)
    return sorted(found, key=lambda q: stable(q.id))


def _drafts(facts: Facts, form: Form, subjects: list[Entity]) -> Iterator[Draft | None]:
    start = stable(form.name) % max(1, len(subjects))
    for i in range(len(subjects)):
        yield draft(facts, form, subjects[(start + i) % len(subjects)])


def _fill(side: Part, category: str, hops: int, given: Mapping[str, Iterator[Draft | None]]) -> Iterable[Question]:
    """Return the questions of a category, drawn from the forms in turn until it is full or all are exhausted."""
    size = SIZES[side][category]
    often, most = Counter[str](), max(2, round(size * _SHARE))
    streams, numbers = dict(given), {name: count() for name in given}
    found: list[Question] = []
    while streams and len(found) < size:
        for name, stream in list(streams.items()):
            tried = islice(stream, _PATIENCE)
            fresh = next((d for d in tried if d and often[normalise(d.answers[0])] < most), None)
            if fresh is None:
                del streams[name]
            elif len(found) < size:
                often[normalise(fresh.answers[0])] += 1
                found.append(_question(fresh, category, hops, f"{name}/{next(numbers[name]):04d}"))
    return found


def _question(d: Draft, category: str, hops: int, name: str) -> Question:
    compares = "compare-" if category.endswith("comparison") else ""
    key = f"almanac/{d.part}/{hops}hop-{compares}{name}"
    return Question(key, d.part, category, hops, d.text, d.answers, d.queries, d.support)
