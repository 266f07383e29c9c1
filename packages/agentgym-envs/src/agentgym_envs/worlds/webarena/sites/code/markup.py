"""Converts the subset of Markdown that this site uses to HTML: headings, lists, code, bold, links.

All other text is escaped.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from markupsafe import Markup, escape

_ITEM = re.compile(r"(?:[-*]|\d+\.) +(.*)")
_HEADING = re.compile(r"(#{1,4}) +(.*)")
_INLINE = (
    (re.compile(r"`([^`]+)`"), r"<code>\1</code>"),
    (re.compile(r"\*\*([^*]+)\*\*"), r"<strong>\1</strong>"),
    (re.compile(r"\[([^\]]+)\]\((/[^)\s]*|http://[\w.]+\.example[^)\s]*)\)"), r'<a href="\2">\1</a>'),
)


def to_html(text: str) -> Markup:
    """Convert a text to safe HTML."""
    return Markup("\n").join(_blocks(text))


def _blocks(text: str) -> Iterator[Markup]:
    for number, part in enumerate(re.split(r"^```.*$", text.replace("\r\n", "\n"), flags=re.MULTILINE)):
        if number % 2:
            yield Markup("<pre><code>{}</code></pre>").format(part.strip("\n"))
            continue
        for block in re.split(r"\n\s*\n", part):
            if block.strip():
                yield from _block(block.strip("\n").split("\n"))


def _block(lines: list[str]) -> Iterator[Markup]:
    if heading := _HEADING.fullmatch(lines[0]):
        level = min(len(heading[1]) + 1, 5)
        yield Markup("<h{0}>{1}</h{0}>").format(level, _inline(heading[2]))
        lines = lines[1:]
    items = [_ITEM.fullmatch(line) for line in lines]
    if lines and all(items):
        tag = "ol" if lines[0][0].isdigit() else "ul"
        listed = Markup("").join(Markup("<li>{}</li>").format(_inline(item[1])) for item in items if item)
        yield Markup("<{0}>{1}</{0}>").format(Markup(tag), listed)
    elif lines:
        yield Markup("<p>{}</p>").format(Markup("<br>").join(map(_inline, lines)))


def _inline(text: str) -> Markup:
    shown = str(escape(text))
    for found, put in _INLINE:
        shown = found.sub(put, shown)
    return Markup(shown)
