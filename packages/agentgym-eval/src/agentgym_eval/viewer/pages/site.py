"""The site: an index, links and templates, from which the functions in `pages` render HTML.

Rendering does not depend on whether the HTML is served or written to a file.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cache
from typing import Any, cast

from agentgym_envs.util.installation import command
from jinja2 import Environment, PackageLoader, StrictUndefined

from agentgym_eval.util.tool_calls import content_parts
from agentgym_eval.viewer.index.index import Index
from agentgym_eval.viewer.index.links import Links
from agentgym_eval.viewer.index.tokens import css_classes, describe, spans
from agentgym_eval.viewer.pages import words
from agentgym_eval.viewer.pages.curve_chart import numbers, style_classes
from agentgym_eval.viewer.pages.reading import lines
from agentgym_eval.viewer.pages.scenes import SceneReplayer


@dataclass(frozen=True, slots=True)
class Site:
    """The pages of one folder."""

    index: Index
    links: Links
    scene_replayer: SceneReplayer = field(default_factory=SceneReplayer)
    """Replays recorded episodes to render their scenes."""
    editable: bool = False
    """Whether readers can annotate episodes, name runs, and move runs to the trash."""

    def render(self, template: str, **values: Any) -> str:
        """Render a template with escaped values; `links`, `index`, `version` and `editable` are always defined."""
        shared = {"links": self.links, "index": self.index, "version": self.index.version, "editable": self.editable}
        text = _templates().get_template(template).render(**shared, **values)
        return text.encode(errors="replace").decode()  # lone surrogates can't be encoded


@cache
def _templates() -> Environment:
    environment = Environment(
        loader=PackageLoader("agentgym_eval.viewer"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    filters = cast("dict[str, Any]", environment.filters)
    filters |= words.FILTERS
    filters |= {"changes": lines, "command": command}
    filters |= {"css_classes": css_classes, "describe": describe, "spans": spans}
    filters |= {"parts": content_parts}
    filters |= {"numbers": numbers, "style": style_classes}
    return environment
