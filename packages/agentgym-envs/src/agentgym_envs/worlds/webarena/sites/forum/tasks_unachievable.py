"""Tasks that the forum makes impossible, with the wording of achievable ones; the answer is `N/A`."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random

from agentgym_envs.worlds.webarena.sites.forum import tasks_asking
from agentgym_envs.worlds.webarena.sites.forum.task_parts import communities, community_entity, to_community
from agentgym_envs.worlds.webarena.sites.tasks import Case, Databases, stop, unachievable

_ACHIEVABLE = {template.name: template for template in tasks_asking.TEMPLATES}


def _missing_rule(databases: Databases, random: Random) -> Iterator[Case]:
    """Ask for a rule beyond the community's last one."""
    for place in communities(databases, random):
        sql = "SELECT count(*) FROM rules WHERE community = ?"
        count = databases["forum"].execute(sql, (place["id"],)).fetchone()[0]
        number = random.randint(count + 1, max(6, count + 1))
        judged = unachievable(f"The community {place['name']} has only {count} rules.")
        values = {"number": number, "community": place["name"]}
        plan = [*to_community(place["name"]), stop("N/A")]
        yield Case(values, frozenset({community_entity(place["name"])}), judged, plan)


TEMPLATES = (_ACHIEVABLE["forum/rule"].unachievable(_missing_rule),)
