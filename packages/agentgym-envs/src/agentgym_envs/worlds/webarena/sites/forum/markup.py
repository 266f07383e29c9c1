"""The forum's markup: paragraphs, lists, quotes, **bold**, *emphasis*, `code` and [links](address)."""

from __future__ import annotations

import re
from itertools import groupby

from markupsafe import Markup, escape

_INLINE = (
    (re.compile(r"`([^`\n]+)`"), r"<code>\1</code>"),
    (re.compile(r"\*\*([^*\n]+)\*\*"), r"<strong>\1</strong>"),
    (re.compile(r"\*([^*\n]+)\*"), r"<em>\1</em>"),
    (re.compile(r"\[([^\]\n]+)\]\((https?://[^\s()]+|/[^\s()]*)\)"), r'<a href="\2">\1</a>'),
)


def markup(text: str) -> Markup:
    """Convert a text to HTML; everything that isn't markup is escaped."""
    blocks: list[str] = []
    lines = text.replace("\r\n", "\n").split("\n")
    for kind, group in groupby(lines, key=_kind):
        found = [_inline(line.lstrip("-> ") if kind in ("ul", "blockquote") else line) for line in group]
        if kind == "ul":
            blocks.append("<ul>" + "".join(f"<li>{line}</li>" for line in found) + "</ul>")
        elif kind:
            blocks.append(f"<{kind}>" + "<br>".join(found) + f"</{kind}>")
    return Markup("\n".join(blocks))


def _kind(line: str) -> str:
    if not line.strip():
        return ""
    return "ul" if line.startswith("- ") else "blockquote" if line.startswith(">") else "p"


def _inline(line: str) -> str:
    html = str(escape(line))
    for pattern, replacement in _INLINE:
        html = pattern.sub(replacement, html)
    return html
