"""What pages are made of: an index, links and templates. A page is a function from these to HTML; who serves it, or
writes it to a file, is no concern of it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cache
from typing import Any, cast

from agentgym_envs.util.installation import command
from jinja2 import Environment, PackageLoader, StrictUndefined

from agentgym_eval.viewer.index.index import Index
from agentgym_eval.viewer.index.links import Links
from agentgym_eval.viewer.index.tokens import colours, stretches, told
from agentgym_eval.viewer.pages import words
from agentgym_eval.viewer.pages.reading import lines
from agentgym_eval.viewer.pages.scenes import Stage


@dataclass(frozen=True, slots=True)
class Site:
    """The pages of one folder."""

    index: Index
    links: Links
    stage: Stage = field(default_factory=Stage)
    """Where recorded episodes are played again for their scenes."""

    def render(self, template: str, **values: Any) -> str:
        """A template filled in; all that it is given is escaped. `links`, `index` and `version` are always there."""
        shared = {"links": self.links, "index": self.index, "version": self.index.version}
        text = _templates().get_template(template).render(**shared, **values)
        return text.encode(errors="replace").decode()  # half of a surrogate pair is in no file's encoding


@cache
def _templates() -> Environment:
    made = Environment(
        loader=PackageLoader("agentgym_eval.viewer"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    filters = cast("dict[str, Any]", made.filters)
    filters |= {name: getattr(words, name) for name in words.FILTERS}
    filters |= {"changes": lines, "command": command, "colours": colours, "told": told, "stretches": stretches}
    return made
