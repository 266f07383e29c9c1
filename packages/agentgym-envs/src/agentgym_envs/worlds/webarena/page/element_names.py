"""Names of elements: their role and name, such as `button 'Save'`, in place of an id.

The second element with the same role and name is `button 'Save' #2`, and so on, counted over the whole page. A reply
can copy a name from the objective instead of looking up a number, and unlike an id, it depends only on elements of the
same role and name. Tests of web pages refer to elements in this way, too (Playwright's `get_by_role`).
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import replace
from difflib import get_close_matches

from agentgym_envs.core.action_schema import Function
from agentgym_envs.worlds.webarena.page.observation import literal
from agentgym_envs.worlds.webarena.page.snapshot import Node

ON_NAMES = (
    "Here elements have no ids. A line begins with the element's role and name, `role 'name' property: value`, and "
    "these stand for the id in actions: `click [button 'Save']`, `type [textbox 'Title'] [content]`. A second element "
    "of the same role and name is `button 'Save' #2`."
)
"""What agents are told about names."""

_ELEMENTS = frozenset(("id", "source", "destination"))
"""Arguments of functions that stand for an element."""
_COMPARED = 200
"""Most characters of a name, and most names, that are compared with one that a page doesn't have."""
_NAME = r"""[^\s\[\]'"]+ (?:'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*")(?: #\d+)?"""
# Possessive quantifiers (`*+`) keep the time linear: agents also write hundreds of spaces.
_TARGET = rf"\[\s*+({_NAME}|\d++(?:[, ]++\d++)*+)\s*+\]"
_VERB = r"click|(?:double|right)[ _-]click|type|hover|select[ _-](?:option|text)|scroll\s*\[\s*(?:up|down)\s*\]"
_ACTION = re.compile(rf"((?:^|```)[\s`]*+(?:{_VERB})\s*+){_TARGET}", re.IGNORECASE)
_DRAG = re.compile(rf"((?:^|```)[\s`]*+drag\s*+){_TARGET}(\s*+(?:to\s*+)?){_TARGET}", re.IGNORECASE)
_ID_BEFORE_NAME = re.compile(rf"\[\d+\] (?={_NAME})")
_EXAMPLE_WITH_ID = re.compile(r", such as \w+ \[12\].*(?=\.$)")


class ElementNames:
    """The names of a page's elements."""

    def __init__(self, nodes: Iterable[Node]) -> None:
        """Name the nodes of a page, which are in document order."""
        count: Counter[str] = Counter()
        self._names: dict[str, str] = {}
        for node in nodes:
            name = f"{node.role} {literal(node.name)}"
            count[name] += 1
            self._names[str(node.id)] = name if count[name] == 1 else f"{name} #{count[name]}"
        self._ids = {name: id for id, name in self._names.items()}

    def of(self, node: Node) -> str:
        """Return an element's name."""
        return self._names[str(node.id)]

    def with_ids(self, action: str) -> str:
        """Return `action` with ids in place of names.

        Raises:
            LookupError: if no element has that name; the message is a sentence for the agent.
        """
        return _replace(action, self._id)

    def with_names(self, action: str) -> str:
        """Return `action` with names in place of ids."""
        return _replace(action, lambda id: self._names.get(id, id))

    def _id(self, name: str) -> str:
        if name in self._ids or ("'" not in name and '"' not in name):  # a point or an id stays as it is
            return self._ids.get(name, name)
        role = name.split(" ")[0]
        alike = [known for known in self._ids if known.startswith(f"{role} ") and len(known) <= _COMPARED]
        near = get_close_matches(name[:_COMPARED], alike[:_COMPARED], 1, 0.5)
        meant = f" Did you mean [{near[0]}]?" if near else ""
        raise LookupError(f"There is no element [{name}]; write role and name as in its line.{meant}")


def without_ids(sentence: str) -> str:
    """Return a sentence on an action without ids: `[3] button 'Save'` becomes `button 'Save'`."""
    return _EXAMPLE_WITH_ID.sub("", _ID_BEFORE_NAME.sub("", sentence)).replace("[id]", "[role 'name']")


def on_named_elements(function: Function) -> Function:
    """Return a kind of action that takes a name where it took an id."""
    properties = dict(function.properties)
    for argument in _ELEMENTS & properties.keys():
        description = properties[argument]["description"].replace("Id of", "Role and name, as in its line, of")
        properties[argument] = {"type": "string", "description": description}
    return replace(function, properties=properties)


def _replace(action: str, other: Callable[[str], str]) -> str:
    """Replace the elements that an action is on."""
    replaced = _DRAG.sub(lambda at: f"{at[1]}[{other(at[2])}]{at[3]}[{other(at[4])}]", action, count=1)
    return _ACTION.sub(lambda at: f"{at[1]}[{other(at[2])}]", replaced, count=1)
