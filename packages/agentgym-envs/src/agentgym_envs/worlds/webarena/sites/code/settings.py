"""Project settings for maintainers and owners: name, description, topics, visibility, branch, deploy keys, deletion."""

from __future__ import annotations

from starlette.responses import Response

from agentgym_envs.worlds.webarena.sites.code.base import (
    MAINTAINER,
    OWNER,
    RIGHT_NOW,
    VISIBILITIES,
    Here,
    here_at,
    site,
)
from agentgym_envs.worlds.webarena.sites.code.repository import branch_names
from agentgym_envs.worlds.webarena.sites.web import Refused, Visit

_BASE = "/{namespace}/{project}/-/settings"
_WHAT = "change the settings"


@site.get(_BASE)
def settings(visit: Visit, namespace: str, project: str) -> Response:
    """Show all settings."""
    here = here_at(visit, namespace, project)
    here.need(OWNER if here.row["archived"] else MAINTAINER, _WHAT)
    return _settings(here, 200, "")


def _settings(here: Here, status: int, error: str) -> Response:
    visit = here.visit
    topics = [row["topic"] for row in visit.all("SELECT topic FROM topics WHERE project = ? ORDER BY topic", here.id)]
    keys = visit.all("SELECT * FROM deploy_keys WHERE project = ? ORDER BY id", here.id)
    return here.render("settings.html", status, topics=topics, keys=keys, branches=branch_names(here), error=error)


@site.post(_BASE + "/general")
def general(visit: Visit, namespace: str, project: str) -> Response:
    """Save name, description and topics."""
    here = here_at(visit, namespace, project)
    here.need(MAINTAINER, _WHAT)
    name = visit.text("name", 100)
    if not name:
        return _settings(here, 422, "The project needs a name.")
    visit.run(
        "UPDATE projects SET name = ?, description = ? WHERE id = ?", name, visit.text("description", 300), here.id
    )
    topics = dict.fromkeys(topic.strip().lower()[:40] for topic in visit.text("topics", 400).split(","))
    visit.run("DELETE FROM topics WHERE project = ?", here.id)
    for topic in filter(None, topics):
        visit.run("INSERT INTO topics VALUES (?, ?)", here.id, topic)
    return visit.redirect(f"{here.path}/-/settings", "Name, description and topics saved.")


@site.post(_BASE + "/visibility")
def visibility(visit: Visit, namespace: str, project: str) -> Response:
    """Set the visibility."""
    here = here_at(visit, namespace, project)
    here.need(MAINTAINER, _WHAT)
    chosen = visit.text("visibility")
    if chosen not in VISIBILITIES:
        return _settings(here, 422, "Choose who may see the project.")
    visit.run("UPDATE projects SET visibility = ? WHERE id = ?", chosen, here.id)
    return visit.redirect(f"{here.path}/-/settings", f"The project is {chosen} now.")


@site.post(_BASE + "/branch")
def default_branch(visit: Visit, namespace: str, project: str) -> Response:
    """Set the default branch."""
    here = here_at(visit, namespace, project)
    here.need(MAINTAINER, _WHAT)
    branch = visit.text("default_branch")
    if branch not in branch_names(here):
        return _settings(here, 422, "There is no such branch.")
    visit.run("UPDATE projects SET default_branch = ? WHERE id = ?", branch, here.id)
    return visit.redirect(f"{here.path}/-/settings", f"The default branch is {branch} now.")


@site.post(_BASE + "/deploy_keys")
def add_deploy_key(visit: Visit, namespace: str, project: str) -> Response:
    """Add a deploy key, which gives a machine read or write access to the repository."""
    here = here_at(visit, namespace, project)
    here.need(MAINTAINER, _WHAT)
    title, key = visit.text("title", 100), visit.text("key", 2000)
    if not title or not key.startswith("ssh-"):
        return _settings(here, 422, "A deploy key needs a title, and a key that begins with ssh-.")
    visit.run(
        "INSERT INTO deploy_keys (project, title, key, can_push, created) VALUES (?, ?, ?, ?, ?)",
        *(here.id, title, key, int(bool(visit.text("can_push"))), RIGHT_NOW),
    )
    return visit.redirect(f"{here.path}/-/settings", f"The deploy key {title} was added.")


@site.post(_BASE + "/deploy_keys/{key:int}/delete")
def delete_deploy_key(visit: Visit, namespace: str, project: str, key: int) -> Response:
    """Remove a deploy key."""
    here = here_at(visit, namespace, project)
    here.need(MAINTAINER, _WHAT)
    visit.run("DELETE FROM deploy_keys WHERE id = ? AND project = ?", key, here.id)
    return visit.redirect(f"{here.path}/-/settings", "The deploy key was removed.")


@site.post(_BASE + "/archive")
def archive(visit: Visit, namespace: str, project: str) -> Response:
    """Archive the project, which makes it read-only, or unarchive it."""
    here = here_at(visit, namespace, project)
    here.need(OWNER, "archive the project")
    visit.run("UPDATE projects SET archived = 1 - archived WHERE id = ?", here.id)
    notice = "The project is active again." if here.row["archived"] else "The project is archived now."
    return visit.redirect(f"{here.path}/-/settings", notice)


@site.post(_BASE + "/delete")
def delete(visit: Visit, namespace: str, project: str) -> Response:
    """Delete the project if its path was typed as confirmation."""
    here = here_at(visit, namespace, project)
    here.need(OWNER, "delete the project")
    if visit.text("confirm", 200) != f"{namespace}/{project}":
        raise Refused(f"To delete the project, type {namespace}/{project} to confirm.")
    visit.run("DELETE FROM projects WHERE id = ?", here.id)
    return visit.redirect("/dashboard/projects", f"{here.row['name']} was deleted.")
