"""Tasks that the code host makes impossible, with the wording of achievable ones; the answer is `N/A`."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random

from agentgym_envs.worlds.webarena.sites.code import tasks_ask
from agentgym_envs.worlds.webarena.sites.code.task_parts import about, ask, merges, projects, to_merge, to_project
from agentgym_envs.worlds.webarena.sites.tasks import Case, Databases, click, stop, unachievable

_ACHIEVABLE = {template.name: template for template in tasks_ask.TEMPLATES}


def _missing_tag(databases: Databases, random: Random) -> Iterator[Case]:
    """Ask for the day of a tag that other projects have."""
    db = databases["code"]
    every = [row["name"] for row in db.execute("SELECT DISTINCT name FROM tags ORDER BY name")]
    for row in projects(db, random):
        own = {tag["name"] for tag in db.execute("SELECT name FROM tags WHERE project = ?", (row["project_id"],))}
        if own:
            tag = random.choice([name for name in every if name not in own])
            judged = unachievable(f"{row['place']} has no tag {tag}.")
            values = {"project": row["place"], "tag": tag}
            plan = [*to_project(row), click("link", "Tags"), stop("N/A")]
            yield Case(values, about(f"project:{row['place']}"), judged, plan)


def _no_reviewer(databases: Databases, random: Random) -> Iterator[Case]:
    """Ask for the reviewer of a merge request that has none."""
    for row in merges(databases["code"], random, 0, "reviewer IS NULL"):
        judged = unachievable("Nobody is asked to review the merge request.")
        values = {"title": row["title"], "project": row["place"]}
        yield Case(values, about(f"merge:{row['title']}"), judged, [*to_merge(row), stop("N/A")])


def _missing_milestone(databases: Databases, random: Random) -> Iterator[Case]:
    """Ask for the due day of a milestone that another project has."""
    db = databases["code"]
    titles = [row["title"] for row in db.execute("SELECT DISTINCT title FROM milestones ORDER BY title")]
    for row in projects(db, random):
        own = {one["title"] for one in ask(db, random, "SELECT * FROM milestones WHERE project = ?", row["project_id"])}
        if own and (others := [title for title in titles if title not in own]):
            title = random.choice(others)
            judged = unachievable(f"{row['place']} has no milestone {title}.")
            values = {"title": title, "project": row["place"]}
            plan = [*to_project(row), click("link", "Milestones"), stop("N/A")]
            yield Case(values, about(f"project:{row['place']}"), judged, plan)


TEMPLATES = (
    _ACHIEVABLE["code/tag-date"].unachievable(_missing_tag),
    _ACHIEVABLE["code/reviewer"].unachievable(_no_reviewer),
    _ACHIEVABLE["code/milestone-due"].unachievable(_missing_milestone),
)
