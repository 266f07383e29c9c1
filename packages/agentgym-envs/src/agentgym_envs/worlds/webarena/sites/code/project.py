"""A project's front page, its stars and its forks."""

from __future__ import annotations

from starlette.responses import Response

from agentgym_envs.worlds.webarena.sites.code.base import (
    MAINTAINER,
    OWNER,
    RIGHT_NOW,
    TODAY,
    Here,
    group_role,
    here_at,
    site,
    who,
)
from agentgym_envs.worlds.webarena.sites.code.repository import entries
from agentgym_envs.worlds.webarena.sites.code.writing import file_text
from agentgym_envs.worlds.webarena.sites.web import Refused, Visit

_BASE = "/{namespace}/{project}"


@site.post(_BASE + "/-/star")
def star(visit: Visit, namespace: str, project: str) -> Response:
    """Star or unstar a project."""
    here = here_at(visit, namespace, project)
    me = visit.signed_in()["id"]
    starred = _starred(here)
    if starred:
        visit.run("DELETE FROM stars WHERE account = ? AND project = ?", me, here.id)
    else:
        visit.run("INSERT INTO stars VALUES (?, ?)", me, here.id)
    visit.run("UPDATE projects SET stars = stars + ? WHERE id = ?", -1 if starred else 1, here.id)
    return visit.redirect(here.path, "Star removed." if starred else "Project starred.")


def _starred(here: Here) -> bool:
    query = "SELECT 1 FROM stars WHERE account = ? AND project = ?"
    return here.visit.value(query, who(here.visit)["me"], here.id) is not None


@site.get(_BASE + "/-/forks/new")
def fork_form(visit: Visit, namespace: str, project: str) -> Response:
    """Show the choice of namespaces to fork into."""
    here = here_at(visit, namespace, project)
    me = visit.signed_in()
    query = (
        "SELECT path FROM groups JOIN group_members ON group_id = groups.id WHERE account = ? AND role >= ?"
        " ORDER BY path"
    )
    spaces = [me["name"], *(row["path"] for row in visit.all(query, me["id"], MAINTAINER))]
    return here.render("fork.html", spaces=spaces)


@site.post(_BASE + "/-/forks/new")
def fork(visit: Visit, namespace: str, project: str) -> Response:
    """Copy the project's files into another namespace."""
    here = here_at(visit, namespace, project)
    me = visit.signed_in()
    space = visit.text("space", 100) or me["name"]
    if space != me["name"] and group_role(visit, space) < MAINTAINER:
        raise Refused(f"You cannot make projects in {space}.")
    path = here.row["path"]
    if visit.value("SELECT 1 FROM projects WHERE namespace = ? AND path = ?", space, path):
        raise Refused(f"There is a project {space}/{path} already.")
    made = visit.run(
        "INSERT INTO projects (namespace, path, name, description, visibility, language, licence, default_branch,"
        " fork_of, created, updated) SELECT ?, path, name, description, visibility, language, licence, default_branch,"
        " id, ?, ? FROM projects WHERE id = ?",
        *(space, RIGHT_NOW, RIGHT_NOW, here.id),
    )
    for table in ("topics", "files", "branches"):
        columns = {"topics": "topic", "files": "path, content", "branches": "name, created"}[table]
        visit.run(f"INSERT INTO {table} SELECT ?, {columns} FROM {table} WHERE project = ?", made, here.id)
    visit.run("INSERT INTO members VALUES (?, ?, ?, NULL, ?)", made, me["id"], OWNER, TODAY)
    visit.run("UPDATE projects SET forks = forks + 1 WHERE id = ?", here.id)
    return visit.redirect(f"/{space}/{path}", f"{here.row['name']} was forked.")


@site.get(_BASE)
def home(visit: Visit, namespace: str, project: str) -> Response:
    """Show the front page: description, files, README."""
    here = here_at(visit, namespace, project)
    branch = here.row["default_branch"]
    counted = {
        table: visit.value(f"SELECT count(*) FROM {table} WHERE project = ?", here.id) for table in ("branches", "tags")
    }
    counted["commits"] = visit.value("SELECT count(*) FROM commits WHERE project = ? AND branch = ?", here.id, branch)
    last = visit.all(
        "SELECT commits.*, name, full_name FROM commits JOIN accounts ON accounts.id = author"
        " WHERE project = ? AND branch = ? ORDER BY commits.created DESC, commits.id DESC LIMIT 1",
        here.id,
        branch,
    )
    source = visit.all("SELECT namespace, path FROM projects WHERE id = ?", here.row["fork_of"])
    return here.render(
        "project.html",
        counted=counted,
        last=last,
        source=source,
        starred=_starred(here),
        topics=[
            row["topic"] for row in visit.all("SELECT topic FROM topics WHERE project = ? ORDER BY topic", here.id)
        ],
        entries=entries(here, ""),
        readme=file_text(visit, here.id, "", "README.md"),
        branch=branch,
    )
