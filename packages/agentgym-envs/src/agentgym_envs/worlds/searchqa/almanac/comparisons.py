"""Questions that compare two or three entities of one kind by a number with a clear difference."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from agentgym_envs.worlds.searchqa.almanac.chains import Draft, called, searched
from agentgym_envs.worlds.searchqa.almanac.entities import City, Country, Element, Entity, Facts, State
from agentgym_envs.worlds.searchqa.almanac.splits import Part, part
from agentgym_envs.worlds.searchqa.almanac.words import capitalised, choose, shuffled

_CLEAR = 1.25
"""The minimum ratio between the greatest and the second greatest number."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """A number to compare entities by. In wordings `{some}` is replaced by their list."""

    name: str
    kind: type[Entity]
    figure: Callable[[Any], float | None]
    two: tuple[str, ...]
    more: tuple[str, ...]
    query: str


SCALES = (
    Scale(
        name="city-population",
        kind=City,
        figure=lambda c: c.population,
        two=("Which place has more inhabitants, {some}?", "Where do more people live, in {some}?"),
        more=("Which of these places has the most inhabitants: {some}?", "Where do the most people live, in {some}?"),
        query="population",
    ),
    Scale(
        name="country-area",
        kind=Country,
        figure=lambda c: c.area,
        two=("Which covers the larger area, {some}?",),
        more=("Which of these covers the largest area: {some}?",),
        query="country area square kilometres capital",
    ),
    Scale(
        name="country-population",
        kind=Country,
        figure=lambda c: c.population,
        two=("Which has more inhabitants, {some}?",),
        more=("Which of these has the most inhabitants: {some}?",),
        query="country population area capital",
    ),
    Scale(
        name="state-counties",
        kind=State,
        figure=lambda s: len(s.counties),
        two=("Which has more counties or equivalents, {some}?",),
        more=("Which of these has the most counties or equivalents: {some}?",),
        query="postal abbreviation number of counties",
    ),
    Scale(
        name="element-density",
        kind=Element,
        figure=lambda e: float(e.density) if e.density else None,
        two=("Which element is denser, {some}?",),
        more=("Which of these elements has the greatest density: {some}?",),
        query="density",
    ),
)


def compare(facts: Facts, scale: Scale, side: Part, among: int) -> Iterator[Draft]:
    """Yield questions that compare `among` entities each; every entity occurs in at most one."""
    own = [x for x in facts.all(scale.kind) if part(x) == side and scale.figure(x) is not None]
    mixed = shuffled(f"{scale.name} {side} {among}", own)
    for start in range(0, len(mixed) - among + 1, among):
        drafted = _draft(scale, mixed[start : start + among], side)
        if drafted:
            yield drafted


def _draft(scale: Scale, some: Sequence[Entity], side: Part) -> Draft | None:
    order = sorted(some, key=lambda x: scale.figure(x) or 0)
    if (scale.figure(order[-1]) or 0) < _CLEAR * (scale.figure(order[-2]) or 0):
        return None
    names = [called(x) for x in some]
    said = f"{', '.join(names[:-1])} or {names[-1]}"
    asked = choose(" ".join(x.id for x in some), scale.two if len(some) == 2 else scale.more).format(some=said)
    queries = tuple(f"{searched(x, True)} {scale.query}" for x in some)
    return Draft(capitalised(asked), order[-1].aliases, queries, tuple(x.id for x in some), side)
