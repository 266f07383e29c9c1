"""The train/test split of the entities.

Each entity belongs to one part, by the hash of its home: a country with its places and subdivisions, a US state with
its places and counties, six neighbouring elements, or one currency, language, script or time zone that several
countries share. All passages that support a question are on entities of one part, so no passage supports both a
training and a test question.
"""

from __future__ import annotations

from functools import cache
from typing import Literal

from agentgym_envs.worlds.searchqa.almanac.entities import Entity
from agentgym_envs.worlds.searchqa.almanac.words import stable

Part = Literal["train", "test"]
PARTS: tuple[Part, ...] = ("train", "test")
_TEST_SHARE = 5


def part(entity: Entity) -> Part:
    """Return the part of an entity; one home in five belongs to the test part."""
    return _part(entity.home)


@cache
def _part(home: str) -> Part:
    return "train" if stable(f"part of {home}") % _TEST_SHARE else "test"
