"""A project's repository: folders, files with line numbers, raw text, the finder, and editing."""

from __future__ import annotations

from typing import Any

from starlette.responses import PlainTextResponse, Response

from agentgym_envs.worlds.webarena.sites.code.base import DEVELOPER, Here, here_at, site
from agentgym_envs.worlds.webarena.sites.code.writing import commit_file, file_text
from agentgym_envs.worlds.webarena.sites.web import NotFound, Visit

_BASE = "/{namespace}/{project}/-"
_RENDERED = (".md",)


def branch_names(here: Here) -> list[str]:
    """Return all branches, the default one first."""
    rows = here.visit.all(
        "SELECT name FROM branches WHERE project = ? ORDER BY name <> ?, name", here.id, here.row["default_branch"]
    )
    return [row["name"] for row in rows]


def _known(here: Here, branch: str) -> None:
    if branch not in branch_names(here):
        raise NotFound("branch")


def entries(here: Here, folder: str) -> list[dict[str, str]]:
    """Return the contents of a folder (`src/`, or empty for the root), folders first."""
    rows = here.visit.all("SELECT path FROM files WHERE project = ? ORDER BY path", here.id)
    inside = [row["path"][len(folder) :] for row in rows if row["path"].startswith(folder)]
    folders = dict.fromkeys(path.split("/")[0] for path in inside if "/" in path)
    return [{"kind": "tree", "name": name} for name in folders] + [
        {"kind": "blob", "name": path} for path in inside if "/" not in path
    ]


def crumbs(path: str) -> list[tuple[str, str]]:
    """Return name and address of each folder on a path."""
    parts = [part for part in path.split("/") if part]
    return [(part, "/".join(parts[: number + 1])) for number, part in enumerate(parts)]


@site.get(_BASE + "/tree/{branch}")
def top(visit: Visit, namespace: str, project: str, branch: str) -> Response:
    """List the files of the root folder."""
    return tree(visit, namespace, project, branch, "")


@site.get(_BASE + "/tree/{branch}/{path:path}")
def tree(visit: Visit, namespace: str, project: str, branch: str, path: str) -> Response:
    """List the files of a folder."""
    here = here_at(visit, namespace, project)
    _known(here, branch)
    folder = path.strip("/") + "/" if path.strip("/") else ""
    found = entries(here, folder)
    if folder and not found:
        raise NotFound("folder")
    return here.render(
        "tree.html", branch=branch, branches=branch_names(here), folder=folder, entries=found, crumbs=crumbs(folder)
    )


@site.get(_BASE + "/blob/{branch}/{path:path}")
def blob(visit: Visit, namespace: str, project: str, branch: str, path: str) -> Response:
    """Show a file with line numbers; Markdown is rendered unless its source is requested."""
    here = here_at(visit, namespace, project)
    _known(here, branch)
    text = file_text(visit, here.id, branch, path)
    if text is None:
        raise NotFound("file")
    visit.canonical()
    last = visit.all(
        "SELECT commits.*, full_name, name FROM commits JOIN accounts ON accounts.id = author"
        " WHERE project = ? AND branch IN (?, ?) AND path = ? ORDER BY commits.created DESC LIMIT 1",
        *(here.id, branch, here.row["default_branch"], path),
    )
    source = visit.text("plain") == "1" or not path.endswith(_RENDERED)
    shown: dict[str, Any] = {
        "branch": branch,
        "branches": branch_names(here),
        "path": path,
        "text": text,
        "source": source,
    }
    return here.render("blob.html", crumbs=crumbs(path), last=last, rendered=path.endswith(_RENDERED), **shown)


@site.get(_BASE + "/raw/{branch}/{path:path}")
def raw(visit: Visit, namespace: str, project: str, branch: str, path: str) -> Response:
    """Return a file's raw text."""
    here = here_at(visit, namespace, project)
    _known(here, branch)
    text = file_text(visit, here.id, branch, path)
    if text is None:
        raise NotFound("file")
    return PlainTextResponse(text)


@site.get(_BASE + "/find_file/{branch}")
def find_file(visit: Visit, namespace: str, project: str, branch: str) -> Response:
    """Show the file finder, which needs JavaScript."""
    here = here_at(visit, namespace, project)
    _known(here, branch)
    return here.render("find_file.html", branch=branch)


@site.get(_BASE + "/files/{branch}")
def files(visit: Visit, namespace: str, project: str, branch: str) -> Response:
    """Return the paths of all files for the finder."""
    here = here_at(visit, namespace, project)
    _known(here, branch)
    rows = visit.all("SELECT path FROM files WHERE project = ? ORDER BY path", here.id)
    return visit.json([row["path"] for row in rows])


@site.get(_BASE + "/new_file")
def new_file_form(visit: Visit, namespace: str, project: str) -> Response:
    """Show the form for a new file on the default branch."""
    here = here_at(visit, namespace, project)
    here.need(DEVELOPER, "write files")
    values = {"path": visit.text("folder", 200), "text": "", "message": "Add new file"}
    return here.render("file_form.html", values=values, fixed=False, error="")


@site.get(_BASE + "/edit/{path:path}")
def edit_file_form(visit: Visit, namespace: str, project: str, path: str) -> Response:
    """Show the form for editing a file of the default branch."""
    here = here_at(visit, namespace, project)
    here.need(DEVELOPER, "write files")
    text = file_text(visit, here.id, "", path)
    if text is None:
        raise NotFound("file")
    values = {"path": path, "text": text, "message": f"Update {path.rpartition('/')[2]}"}
    return here.render("file_form.html", values=values, fixed=True, error="")


@site.post(_BASE + "/write")
def write(visit: Visit, namespace: str, project: str) -> Response:
    """Commit a file to the default branch."""
    here = here_at(visit, namespace, project)
    here.need(DEVELOPER, "write files")
    path, message = visit.text("path", 200).strip("/"), visit.text("message", 200)
    text = str(visit.form.get("text", ""))[:50_000].replace("\r\n", "\n")
    fixed = bool(visit.text("fixed"))
    exists = file_text(visit, here.id, "", path) is not None
    error = ""
    if not path or "//" in path or any(part in (".", "..") for part in path.split("/")):
        error = "Give the file a name, such as docs/setup.md."
    elif not message:
        error = "The commit needs a message."
    elif exists and not fixed:
        error = f"There is a file {path} already."
    if error:
        values = {"path": path, "text": text, "message": message}
        return here.render("file_form.html", 422, values=values, fixed=fixed, error=error)
    branch = here.row["default_branch"]
    if not branch_names(here):
        visit.run("INSERT INTO branches VALUES (?, ?, ?)", here.id, branch, here.row["created"])
    commit_file(visit, here.id, branch, path, text, message)
    return visit.redirect(f"{here.path}/-/blob/{branch}/{path}", "Your changes were committed.")
