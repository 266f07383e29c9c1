"""Labels and milestones of a project's issues."""

from __future__ import annotations

import re
import sqlite3

from starlette.responses import Response

from agentgym_envs.worlds.webarena.sites.code.base import DEVELOPER, REPORTER, Here, day_of, here_at, site
from agentgym_envs.worlds.webarena.sites.web import Visit

_COLOUR = re.compile(r"#[0-9a-fA-F]{6}")
_LABELS = "/{namespace}/{project}/-/labels"
_MILESTONES = "/{namespace}/{project}/-/milestones"
_PROGRESS = (
    "milestones.*, (SELECT count(*) FROM issues WHERE milestone = milestones.id) AS issues,"
    " (SELECT count(*) FROM issues WHERE milestone = milestones.id AND state = 'closed') AS closed"
)


@site.get(_LABELS)
def labels(visit: Visit, namespace: str, project: str) -> Response:
    """List all labels with their numbers of open issues."""
    return _labels(here_at(visit, namespace, project), 200, {"name": "", "description": "", "colour": "#2f5d8a"}, "")


@site.post(_LABELS)
def new_label(visit: Visit, namespace: str, project: str) -> Response:
    """Create a label."""
    here = here_at(visit, namespace, project)
    here.need(REPORTER, "make labels")
    values = {key: visit.text(key, 200) for key in ("name", "description", "colour")}
    error = ""
    if not values["name"]:
        error = "The label needs a name."
    elif not _COLOUR.fullmatch(values["colour"]):
        error = "Write the colour like #2f5d8a."
    elif visit.value("SELECT 1 FROM labels WHERE project = ? AND name = ?", here.id, values["name"]):
        error = f"There is a label {values['name']} already."
    if error:
        return _labels(here, 422, values, error)
    visit.run("INSERT INTO labels (project, name, description, colour) VALUES (?, ?, ?, ?)", here.id, *values.values())
    return visit.redirect(f"{here.path}/-/labels", f"Label {values['name']} was created.")


@site.post(_LABELS + "/{label:int}/delete")
def delete_label(visit: Visit, namespace: str, project: str, label: int) -> Response:
    """Delete a label, also from its issues."""
    here = here_at(visit, namespace, project)
    here.need(REPORTER, "delete labels")
    visit.run("DELETE FROM labels WHERE id = ? AND project = ?", label, here.id)
    return visit.redirect(f"{here.path}/-/labels", "The label was deleted.")


def _labels(here: Here, status: int, values: dict[str, str], error: str) -> Response:
    rows = here.visit.all(
        "SELECT labels.*, (SELECT count(*) FROM issue_labels JOIN issues ON issues.id = issue"
        " WHERE label = labels.id AND state = 'opened') AS uses FROM labels WHERE project = ? ORDER BY name",
        here.id,
    )
    return here.render("labels.html", status, labels=rows, values=values, error=error)


@site.get(_MILESTONES)
def milestones(visit: Visit, namespace: str, project: str) -> Response:
    """List the milestones with their progress."""
    here = here_at(visit, namespace, project)
    state = visit.text("state") if visit.text("state") in ("closed", "all") else "active"
    rows = visit.all(
        f"SELECT {_PROGRESS} FROM milestones WHERE project = ? AND (? = 'all' OR state = ?) ORDER BY due IS NULL, due",
        here.id,
        state,
        state,
    )
    return here.render("milestones.html", milestones=rows, state=state)


@site.get(_MILESTONES + "/new")
def new_milestone_form(visit: Visit, namespace: str, project: str) -> Response:
    """Show the form for a milestone."""
    here = here_at(visit, namespace, project)
    here.need(REPORTER, "make milestones")
    values = {"title": "", "description": "", "start": "", "due": ""}
    return here.render("milestone_form.html", values=values, error="")


@site.post(_MILESTONES + "/new")
def new_milestone(visit: Visit, namespace: str, project: str) -> Response:
    """Create a milestone."""
    here = here_at(visit, namespace, project)
    here.need(REPORTER, "make milestones")
    values = {key: visit.text(key, 2000) for key in ("title", "description", "start", "due")}
    error = _wrong(here, values)
    if error:
        return here.render("milestone_form.html", 422, values=values, error=error)
    iid = visit.value("SELECT coalesce(max(iid), 0) + 1 FROM milestones WHERE project = ?", here.id)
    visit.run(
        "INSERT INTO milestones (project, iid, title, description, start, due, state)"
        " VALUES (?, ?, ?, ?, ?, ?, 'active')",
        *(here.id, iid, values["title"], values["description"], values["start"] or None, values["due"] or None),
    )
    return visit.redirect(f"{here.path}/-/milestones/{iid}", f"Milestone {values['title']} was created.")


def _wrong(here: Here, values: dict[str, str]) -> str:
    start, due = values["start"], values["due"]
    if not values["title"]:
        return "The milestone needs a title."
    if (start and not day_of(start)) or (due and not day_of(due)):
        return "Write dates as YYYY-MM-DD."
    if start and due and due < start:
        return "The due date is before the start date."
    taken = here.visit.value("SELECT 1 FROM milestones WHERE project = ? AND title = ?", here.id, values["title"])
    return f"There is a milestone {values['title']} already." if taken else ""


def _milestone(here: Here, iid: int) -> sqlite3.Row:
    query = f"SELECT {_PROGRESS} FROM milestones WHERE project = ? AND iid = ?"
    return here.visit.one(query, here.id, iid, what="milestone")


@site.get(_MILESTONES + "/{iid:int}")
def milestone(visit: Visit, namespace: str, project: str, iid: int) -> Response:
    """Show a milestone with its issues."""
    here = here_at(visit, namespace, project)
    row = _milestone(here, iid)
    rows = visit.all("SELECT * FROM issues WHERE milestone = ? ORDER BY state DESC, iid DESC", row["id"])
    return here.render("milestone.html", milestone=row, issues=rows)


@site.post(_MILESTONES + "/{iid:int}/state")
def milestone_state(visit: Visit, namespace: str, project: str, iid: int) -> Response:
    """Close or reopen a milestone."""
    here = here_at(visit, namespace, project)
    here.need(DEVELOPER, "close milestones")
    row = _milestone(here, iid)
    state = "closed" if row["state"] == "active" else "active"
    visit.run("UPDATE milestones SET state = ? WHERE id = ?", state, row["id"])
    return visit.redirect(f"{here.path}/-/milestones/{iid}", f"The milestone is {state} now.")
