"""Questions that compare two or three entities of one kind by a number with a clear difference.

The numbers to compare by and the wordings are in `comparisons.json`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib import resources

from agentgym_envs.worlds.searchqa.almanac.chains import Draft, called, searched
from agentgym_envs.worlds.searchqa.almanac.entities import Entity, Facts
from agentgym_envs.worlds.searchqa.almanac.relations import kind_named
from agentgym_envs.worlds.searchqa.almanac.splits import Part, part
from agentgym_envs.worlds.searchqa.almanac.words import capitalised, choose, shuffled

_CLEAR = 1.25
"""The minimum ratio between the greatest and the second greatest number."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """A number to compare entities by. In wordings `{some}` is replaced by their list."""

    name: str
    kind: type[Entity]
    field: str
    """The field of the entities with the number, or with the ids to count."""
    two: Sequence[str]
    more: Sequence[str]
    query: str

    def figure(self, x: Entity) -> float | None:
        """Return the number of an entity; None if it isn't known."""
        value: tuple[str, ...] | float | str | None = getattr(x, self.field)
        if isinstance(value, tuple):
            return len(value)
        return None if value is None else float(value)


_TABLE = json.loads(resources.files(__package__ or "").joinpath("comparisons.json").read_text(encoding="utf-8"))
SCALES = tuple(Scale(name=name, **row | {"kind": kind_named(row["kind"])}) for name, row in _TABLE.items())


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
