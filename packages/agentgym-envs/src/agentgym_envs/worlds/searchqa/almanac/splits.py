"""Which entities training questions are about, and which test questions.

Each entity belongs to one part, by the hash of its home: a country with its places and subdivisions, a US state with
its places and counties, six neighbouring elements, one currency, language, script or time zone that several countries
share. A question is about the entities whose passages support it, all of one part; so no passage supports both a
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
    """The part an entity belongs to; one home in five is for testing."""
    return _part(entity.home)


@cache
def _part(home: str) -> Part:
    return "train" if stable(f"part of {home}") % _TEST_SHARE else "test"
