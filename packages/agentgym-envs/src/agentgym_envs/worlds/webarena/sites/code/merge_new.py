"""Creation and editing of merge requests."""

from __future__ import annotations

from starlette.responses import Response

from agentgym_envs.worlds.webarena.sites.code.base import DEVELOPER, RIGHT_NOW, Here, here_at, site
from agentgym_envs.worlds.webarena.sites.code.issues import editable
from agentgym_envs.worlds.webarena.sites.code.merges import merge_at
from agentgym_envs.worlds.webarena.sites.code.writing import note
from agentgym_envs.worlds.webarena.sites.web import Visit

_BASE = "/{namespace}/{project}/-/merge_requests"
_FIELDS = ("title", "body", "source", "target", "assignee", "reviewer")


def _form(here: Here, status: int, values: dict[str, str], error: str) -> Response:
    branches = here.visit.all("SELECT name FROM branches WHERE project = ? ORDER BY name", here.id)
    people = [("", "Nobody"), *((person["id"], person["full_name"]) for person in here.people())]
    names = [(row["name"], row["name"]) for row in branches]
    return here.render("merge_form.html", status, values=values, branches=names, people=people, error=error)


@site.get(_BASE + "/new")
def new_form(visit: Visit, namespace: str, project: str) -> Response:
    """Show the form for a new merge request."""
    here = here_at(visit, namespace, project)
    here.need(DEVELOPER, "open a merge request")
    values = dict.fromkeys(_FIELDS, "") | {"source": visit.text("source"), "target": here.row["default_branch"]}
    return _form(here, 200, values, "")


@site.post(_BASE + "/new")
def new(visit: Visit, namespace: str, project: str) -> Response:
    """Open a merge request."""
    here = here_at(visit, namespace, project)
    me = here.need(DEVELOPER, "open a merge request")
    values = {key: visit.text(key, 5000) for key in _FIELDS}
    error = _wrong(here, values)
    if error:
        return _form(here, 422, values, error)
    members = [person["id"] for person in here.people()]
    chosen = [visit.number(role, 0, 0) for role in ("assignee", "reviewer")]
    iid = visit.value("SELECT coalesce(max(iid), 0) + 1 FROM merges WHERE project = ?", here.id)
    merge = visit.run(
        "INSERT INTO merges (project, iid, title, body, author, source, target, state, created, updated, assignee,"
        " reviewer) VALUES (?, ?, ?, ?, ?, ?, ?, 'opened', ?, ?, ?, ?)",
        *(here.id, iid, values["title"], values["body"], me["id"], values["source"], values["target"]),
        *(RIGHT_NOW, RIGHT_NOW, *(person if person in members else None for person in chosen)),
    )
    visit.run(
        "UPDATE commits SET merge = ? WHERE project = ? AND branch = ? AND merge IS NULL",
        merge,
        here.id,
        values["source"],
    )
    return visit.redirect(f"{here.path}/-/merge_requests/{iid}", f"Merge request !{iid} was created.")


def _wrong(here: Here, values: dict[str, str]) -> str:
    visit = here.visit
    known = "SELECT 1 FROM branches WHERE project = ? AND name = ?"
    if not values["title"]:
        return "The merge request needs a title."
    if not all(visit.value(known, here.id, values[key]) for key in ("source", "target")):
        return "Choose two branches of this project."
    if values["source"] == values["target"]:
        return "Source and target are the same branch."
    taken = visit.value(
        "SELECT iid FROM merges WHERE project = ? AND source = ? AND target = ? AND state = 'opened'",
        *(here.id, values["source"], values["target"]),
    )
    return f"There is an open merge request from this branch already: !{taken}." if taken else ""


@site.get(_BASE + "/{iid:int}/edit")
def edit_form(visit: Visit, namespace: str, project: str, iid: int) -> Response:
    """Show the form for editing title and description."""
    here = here_at(visit, namespace, project)
    row = merge_at(here, iid)
    editable(here, row)
    return here.render("merge_edit.html", merge=row, values=dict(row), error="")


@site.post(_BASE + "/{iid:int}/edit")
def edit(visit: Visit, namespace: str, project: str, iid: int) -> Response:
    """Save title and description."""
    here = here_at(visit, namespace, project)
    row = merge_at(here, iid)
    editable(here, row)
    values = {"title": visit.text("title", 255), "body": visit.text("body")}
    if not values["title"]:
        return here.render("merge_edit.html", 422, merge=row, values=values, error="The merge request needs a title.")
    visit.run("UPDATE merges SET title = ?, body = ? WHERE id = ?", *values.values(), row["id"])
    note(visit, "merge", row["id"], "changed title or description")
    return visit.redirect(f"{here.path}/-/merge_requests/{iid}", "Changes saved.")
