"""A Sphinx extension that makes a site of the Markdown files as GitHub shows them.

- `README.md` is the first page of its folder, at `index.html`.
- The navigation has the pages that `README.md` links in the first columns of its tables, under its headings.
- Pages may be outside of `docs`, such as `../CHANGELOG.md`. Other linked files of the repository become downloads, and
  links to folders plain text.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from docutils import nodes
from sphinx import addnodes
from sphinx.application import Sphinx
from sphinx.project import Project

_LINK = re.compile(r"\[([^\]]+)\]\(([\w./-]+\.(?:md|ipynb))\)")


def navigation(readme: str) -> Iterator[tuple[str, list[tuple[str, str]]]]:
    """Yield the sections of a `README.md`: heading, and label and path of each page in its tables' first columns."""
    heading, entries = "", list[tuple[str, str]]()
    for line in [*readme.splitlines(), "## "]:
        if line.startswith("## "):
            if entries:
                yield heading, entries
            heading, entries = line[3:], []
        elif line.startswith("|"):
            entries += [(label.strip("`"), path) for label, path in _LINK.findall(line.split("|")[1])]


def docname_of(path: Path) -> str:
    """Return the name of the page of a file, given relative to `docs`."""
    if path.parts[0] == "..":
        return path.stem.lower()
    return (path.with_name("index") if path.name == "README.md" else path.with_suffix("")).as_posix()


class Pages(Project):
    """The files of `docs`, and those outside that its `README.md` links in a table."""

    def discover(self, *args: Any, **kwargs: Any) -> set[str]:
        """Find all pages."""
        files = [self.doc2path(name, absolute=False) for name in super().discover(*args, **kwargs)]
        readme = (Path(self.srcdir) / "README.md").read_text(encoding="utf-8")
        linked = [path for _, entries in navigation(readme) for _, path in entries if path.startswith("../")]
        self.docnames.clear()
        self._path_to_docname.clear()
        self._docname_to_path.clear()
        for path in map(Path, [*files, *linked]):
            name = docname_of(path)
            self.docnames.add(name)
            self._docname_to_path[name] = path
            self._path_to_docname[path] = self._path_to_docname[(Path(self.srcdir) / path).resolve()] = name
        return self.docnames


def find_pages(app: Sphinx) -> None:
    """Let Sphinx find the pages as `Pages` does."""
    app.project = app.env.project = Pages(app.srcdir, app.config.source_suffix)


def add_navigation(app: Sphinx, docname: str, source: list[str]) -> None:
    """Append the navigation to a `README.md`."""
    folder, name = Path(docname).parent, Path(docname).name
    if name != "index":
        return
    for heading, entries in navigation(source[0]):
        pages = [f"{label[0].upper() + label[1:]} </{docname_of(folder / path)}>" for label, path in entries]
        caption = [f":caption: {heading}"] if heading else []
        source[0] += "\n".join(["", "", "```{toctree}", ":hidden:", *caption, "", *pages, "```"])


def unlink_folders(app: Sphinx, doctree: nodes.document) -> None:
    """Replace links to folders of the repository by their text."""
    for link in list(doctree.findall(addnodes.pending_xref)):
        _, path = app.env.relfn2path(link["reftarget"])
        if link["reftype"] == "myst" and not link["refdomain"] and Path(path).is_dir():
            link.replace_self(link.children)


def setup(app: Sphinx) -> dict[str, bool]:
    """Set the extension up."""
    app.connect("builder-inited", find_pages)
    app.connect("source-read", add_navigation)
    app.connect("doctree-read", unlink_folders)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
