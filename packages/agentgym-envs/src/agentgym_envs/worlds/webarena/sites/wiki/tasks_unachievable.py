"""Tasks that the encyclopedia makes impossible, with the wording of achievable ones; the answer is `N/A`."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random

from agentgym_envs.worlds.webarena.sites.region import region
from agentgym_envs.worlds.webarena.sites.tasks import Case, Databases, stop, unachievable
from agentgym_envs.worlds.webarena.sites.wiki import tasks
from agentgym_envs.worlds.webarena.sites.wiki.tasks import look_up

_ACHIEVABLE = {template.name: template for template in tasks.TEMPLATES}


def _unknown_architect(databases: Databases, random: Random) -> Iterator[Case]:
    """Ask for the architect of a building whose architect isn't known."""
    buildings = [building for building in region().buildings if not building.architect]
    for building in random.sample(buildings, len(buildings)):
        judged = unachievable(f"The architect of {building.name} is not known.")
        plan = [look_up(building.name), stop("N/A")]
        yield Case({"building": building.name}, frozenset({f"town:{building.town}"}), judged, plan)


TEMPLATES = (_ACHIEVABLE["wiki/architect"].unachievable(_unknown_architect),)
