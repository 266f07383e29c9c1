"""Creation of projects and groups."""

from __future__ import annotations

from starlette.responses import Response

from agentgym_envs.worlds.webarena.sites.code.base import (
    MAINTAINER,
    OWNER,
    RIGHT_NOW,
    TODAY,
    VISIBILITIES,
    good_slug,
    group_role,
    site,
    slug_of,
)
from agentgym_envs.worlds.webarena.sites.code.writing import commit_file
from agentgym_envs.worlds.webarena.sites.web import Refused, Visit

RESERVED = ("-", "dashboard", "explore", "search", "login", "logout", "projects", "groups", "static", "api", "help")
_LANGUAGES = ("Python", "TypeScript", "Go", "Rust", "Ruby", "C")


@site.get("/projects/new")
def new_project_form(visit: Visit) -> Response:
    """Show the form for a blank project."""
    values = {"name": "", "path": "", "description": "", "visibility": "private", "namespace": visit.text("namespace")}
    return _project_form(visit, 200, values, "")


@site.post("/projects/new")
def new_project(visit: Visit) -> Response:
    """Create a blank project, with a README if requested."""
    me = visit.signed_in()
    values = {key: visit.text(key, 300) for key in ("name", "path", "description", "visibility", "namespace")}
    path = values["path"] or slug_of(values["name"])
    namespace = values["namespace"] or me["name"]
    if namespace != me["name"] and group_role(visit, namespace) < MAINTAINER:
        raise Refused(f"You cannot make projects in {namespace}.")
    error = _wrong_project(visit, values["name"], path, namespace, values["visibility"])
    if error:
        return _project_form(visit, 422, values, error)
    project = visit.run(
        "INSERT INTO projects (namespace, path, name, description, visibility, language, licence, created, updated)"
        " VALUES (?, ?, ?, ?, ?, '', '', ?, ?)",
        *(namespace, path, values["name"], values["description"], values["visibility"], RIGHT_NOW, RIGHT_NOW),
    )
    visit.run("INSERT INTO members VALUES (?, ?, ?, NULL, ?)", project, me["id"], OWNER, TODAY)
    if visit.text("readme"):
        visit.run("INSERT INTO branches VALUES (?, 'main', ?)", project, RIGHT_NOW)
        text = f"# {values['name']}\n\n{values['description']}".rstrip() + "\n"
        commit_file(visit, project, "main", "README.md", text, "Initial commit")
    return visit.redirect(f"/{namespace}/{path}", f"Project {values['name']} was created.")


def _wrong_project(visit: Visit, name: str, path: str, namespace: str, visibility: str) -> str:
    if not name:
        return "The project needs a name."
    if not good_slug(path):
        return "The project slug may have letters, digits, dots, dashes and underscores only."
    if visibility not in VISIBILITIES:
        return "Choose who may see the project."
    taken = visit.value("SELECT 1 FROM projects WHERE namespace = ? AND path = ?", namespace, path)
    return f"There is a project {namespace}/{path} already." if taken else ""


def _project_form(visit: Visit, status: int, values: dict[str, str], error: str) -> Response:
    me = visit.signed_in()
    query = (
        "SELECT path, name FROM groups JOIN group_members ON group_id = groups.id"
        " WHERE account = ? AND role >= ? ORDER BY name"
    )
    spaces = [(me["name"], me["name"])] + [(row["path"], row["path"]) for row in visit.all(query, me["id"], MAINTAINER)]
    return visit.render("project_new.html", status, values=values, spaces=spaces, error=error)


@site.get("/groups/new")
def new_group_form(visit: Visit) -> Response:
    """Show the form for a group."""
    visit.signed_in()
    values = {"name": "", "path": "", "description": "", "visibility": "private"}
    return visit.render("group_new.html", values=values, error="")


@site.post("/groups/new")
def new_group(visit: Visit) -> Response:
    """Create a group; the visitor becomes its owner."""
    me = visit.signed_in()
    values = {key: visit.text(key, 300) for key in ("name", "path", "description", "visibility")}
    path = values["path"] or slug_of(values["name"])
    error = ""
    if not values["name"]:
        error = "The group needs a name."
    elif not good_slug(path) or path in RESERVED:
        error = "The group address may have letters, digits, dots, dashes and underscores only."
    elif values["visibility"] not in VISIBILITIES:
        error = "Choose who may see the group."
    elif visit.value("SELECT 1 FROM groups WHERE path = ? UNION SELECT 1 FROM accounts WHERE name = ?", path, path):
        error = f"The address {path} is taken."
    if error:
        return visit.render("group_new.html", 422, values=values, error=error)
    group = visit.run(
        "INSERT INTO groups (path, name, description, visibility, created) VALUES (?, ?, ?, ?, ?)",
        *(path, values["name"], values["description"], values["visibility"], RIGHT_NOW),
    )
    visit.run("INSERT INTO group_members VALUES (?, ?, ?, ?)", group, me["id"], OWNER, RIGHT_NOW)
    return visit.redirect(f"/{path}", f"Group {values['name']} was created.")
