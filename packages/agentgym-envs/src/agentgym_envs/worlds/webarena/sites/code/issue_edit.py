"""Creation and editing of issues: the two forms and the pickers of an issue's page."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from starlette.responses import Response

from agentgym_envs.worlds.webarena.sites.code.base import REPORTER, RIGHT_NOW, Here, day_of, here_at, site
from agentgym_envs.worlds.webarena.sites.code.issues import assignees, editable, issue_at, labels_of
from agentgym_envs.worlds.webarena.sites.code.writing import note
from agentgym_envs.worlds.webarena.sites.web import Visit

_BASE = "/{namespace}/{project}/-/issues"


@dataclass
class _Draft:
    """The contents of the form."""

    title: str = ""
    body: str = ""
    labels: tuple[int, ...] = ()
    assignees: tuple[int, ...] = ()
    milestone: int | None = None
    due: str = ""
    weight: str = ""
    confidential: bool = False

    def wrong(self) -> str:
        """Return the first error as a sentence, or an empty string."""
        if not self.title:
            return "The issue needs a title."
        if self.due and day_of(self.due) is None:
            return "Write the due date as YYYY-MM-DD."
        if self.weight and not (self.weight.isascii() and self.weight.isdigit() and int(self.weight[:9]) <= 100):
            return "The weight is a whole number from 0 to 100."
        return ""


def _sent(here: Here) -> _Draft:
    """Parse the submitted form; visitors without a role in the project can only set title and description."""
    visit = here.visit
    draft = _Draft(visit.text("title", 255), visit.text("body"))
    if here.role < REPORTER:
        return draft
    milestones = [row["id"] for row in visit.all("SELECT id FROM milestones WHERE project = ?", here.id)]
    chosen = visit.number("milestone", 0, 0)
    draft.labels, draft.assignees = _chosen_labels(here), _chosen_people(here)
    draft.milestone = chosen if chosen in milestones else None
    draft.due, draft.weight = visit.text("due", 20), visit.text("weight", 20)
    draft.confidential = bool(visit.text("confidential"))
    return draft


def _chosen_labels(here: Here) -> tuple[int, ...]:
    wanted = here.visit.texts("labels")
    rows = here.visit.all("SELECT id FROM labels WHERE project = ? ORDER BY name", here.id)
    return tuple(row["id"] for row in rows if str(row["id"]) in wanted)


def _chosen_people(here: Here) -> tuple[int, ...]:
    wanted = here.visit.texts("assignees")
    return tuple(row["id"] for row in here.people() if str(row["id"]) in wanted)


def _form(here: Here, status: int, draft: _Draft, error: str, **values: Any) -> Response:
    visit = here.visit
    goals = visit.all(
        "SELECT id, title FROM milestones WHERE project = ? AND (state = 'active' OR id = ?) ORDER BY iid",
        here.id,
        draft.milestone,
    )
    return here.render(
        "issue_form.html",
        status,
        draft=draft,
        error=error,
        all_labels=visit.all("SELECT * FROM labels WHERE project = ? ORDER BY name", here.id),
        people=here.people(),
        goals=[("", "No milestone"), *((row["id"], row["title"]) for row in goals)],
        full=here.role >= REPORTER,
        **values,
    )


@site.get(_BASE + "/new")
def new_issue_form(visit: Visit, namespace: str, project: str) -> Response:
    """Show the form for a new issue."""
    here = here_at(visit, namespace, project)
    here.need(0, "open an issue")
    return _form(here, 200, _Draft(title=visit.text("title", 255)), "", issue=None)


@site.post(_BASE + "/new")
def new_issue(visit: Visit, namespace: str, project: str) -> Response:
    """Open an issue."""
    here = here_at(visit, namespace, project)
    me = here.need(0, "open an issue")
    draft = _sent(here)
    if draft.wrong():
        return _form(here, 422, draft, draft.wrong(), issue=None)
    iid = visit.value("SELECT coalesce(max(iid), 0) + 1 FROM issues WHERE project = ?", here.id)
    issue = visit.run(
        "INSERT INTO issues (project, iid, title, body, author, state, created, updated) VALUES (?, ?, '', '', ?,"
        " 'opened', ?, ?)",
        *(here.id, iid, me["id"], RIGHT_NOW, RIGHT_NOW),
    )
    _save(visit, issue, draft)
    return visit.redirect(f"{here.path}/-/issues/{iid}", f"Issue #{iid} was created.")


@site.get(_BASE + "/{iid:int}/edit")
def edit_form(visit: Visit, namespace: str, project: str, iid: int) -> Response:
    """Show the form for editing an issue."""
    here = here_at(visit, namespace, project)
    row = issue_at(here, iid)
    editable(here, row)
    draft = _Draft(
        title=row["title"],
        body=row["body"],
        labels=tuple(label["id"] for label in labels_of(visit, [row])[row["id"]]),
        assignees=tuple(person["id"] for person in assignees(visit, row["id"])),
        milestone=row["milestone"],
        due=row["due"] or "",
        weight="" if row["weight"] is None else str(row["weight"]),
        confidential=bool(row["confidential"]),
    )
    return _form(here, 200, draft, "", issue=row)


@site.post(_BASE + "/{iid:int}/edit")
def edit(visit: Visit, namespace: str, project: str, iid: int) -> Response:
    """Save an issue."""
    here = here_at(visit, namespace, project)
    row = issue_at(here, iid)
    editable(here, row)
    draft = _sent(here)
    if draft.wrong():
        return _form(here, 422, draft, draft.wrong(), issue=row)
    if here.role < REPORTER:
        visit.run("UPDATE issues SET title = ?, body = ? WHERE id = ?", draft.title, draft.body, row["id"])
    else:
        _save(visit, row["id"], draft)
    note(visit, "issue", row["id"], "changed the issue")
    return visit.redirect(f"{here.path}/-/issues/{iid}", "Changes saved.")


def _save(visit: Visit, issue: int, draft: _Draft) -> None:
    weight = int(draft.weight) if draft.weight else None
    values = (draft.title, draft.body, draft.milestone, draft.due or None, weight, int(draft.confidential), issue)
    visit.run(
        "UPDATE issues SET title = ?, body = ?, milestone = ?, due = ?, weight = ?, confidential = ? WHERE id = ?",
        *values,
    )
    _replace(visit, "issue_labels", issue, draft.labels)
    _replace(visit, "issue_assignees", issue, draft.assignees)


def _replace(visit: Visit, table: str, issue: int, values: tuple[int, ...]) -> None:
    visit.run(f"DELETE FROM {table} WHERE issue = ?", issue)
    for value in values:
        visit.run(f"INSERT INTO {table} VALUES (?, ?)", issue, value)


@site.post(_BASE + "/{iid:int}/labels")
def set_labels(visit: Visit, namespace: str, project: str, iid: int) -> Response:
    """Set the labels that the label picker sends."""
    here = here_at(visit, namespace, project)
    here.need(REPORTER, "label issues")
    row = issue_at(here, iid)
    _replace(visit, "issue_labels", row["id"], _chosen_labels(here))
    note(visit, "issue", row["id"], "changed the labels")
    return visit.redirect(f"{here.path}/-/issues/{iid}", "Labels changed.")


@site.post(_BASE + "/{iid:int}/assignees")
def set_assignees(visit: Visit, namespace: str, project: str, iid: int) -> Response:
    """Set the assignees that the assignee picker sends."""
    here = here_at(visit, namespace, project)
    here.need(REPORTER, "assign issues")
    row = issue_at(here, iid)
    _replace(visit, "issue_assignees", row["id"], _chosen_people(here))
    note(visit, "issue", row["id"], "changed the assignees")
    return visit.redirect(f"{here.path}/-/issues/{iid}", "Assignees changed.")
