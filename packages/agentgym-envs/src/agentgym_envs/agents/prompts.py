"""Prompts: what an agent gets as its system message, in place of the environment's instructions and the description of
the reply format.

One name, the same for `collect`, `evaluate` and `train`, specifies a prompt: a file with a template, the function
MODULE:NAME, or one that an installed package has registered.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Mapping
from functools import cache, reduce
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

from agentgym_envs.util.importing import described, import_named

GROUP = "agentgym.prompts"
"""Entry points `NAME = MODULE:NAME` of other packages, for functions and templates."""
PromptFunction = Callable[[str, str], str]
"""Takes the environment's instructions and the description of the reply format, and returns the system message."""
_PLACEHOLDERS = ("instructions", "format_instructions")
_PLACEHOLDER = re.compile(r"\{(\w+)\}")


def find_prompt(name: str) -> PromptFunction:
    """Return the prompt called `name`.

    Args:
        name: The path of a text file (a name with a dot or a slash) with a template, MODULE:NAME of a function or of a
            text that is a template, or the name of an entry point of the group `agentgym.prompts`. A template may have
            the placeholders `{instructions}` and `{format_instructions}`; other braces are text.

    Returns:
        The function. It is called once for each pair of arguments, so all episodes have the same text. It raises
        ValueError if what was found fails or returns no text.

    Raises:
        ValueError: If there is no such file, module or entry point, or it is no prompt.
    """
    if re.fullmatch(r"[^/:]+:[\w.]+", name) and not Path(name).is_file():
        return _imported(name, name)
    if "." in name or "/" in name:
        return _template(_read(Path(name)), name)
    registered = {entry.name: entry.value for entry in entry_points(group=GROUP)}
    if name in registered:
        return _imported(registered[name], name)
    near = difflib.get_close_matches(name, registered, n=1, cutoff=0.5)
    hint = f" Did you mean {near[0]}?" if near else ""
    hint += f" Installed are: {', '.join(sorted(registered))}." if registered else " No package has installed any."
    raise ValueError(
        f"There is no prompt {name!r}.{hint} A prompt of your own is a text file, such as {name or 'prompt'}.md, or a "
        "function MODULE:NAME."
    )


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8").strip()
    except FileNotFoundError as error:
        raise ValueError(
            f"There is no prompt file {path} in {Path.cwd()}. Give the path of a text file, a function MODULE:NAME, or "
            "the name of an installed prompt."
        ) from error
    except OSError as error:
        raise ValueError(f"The prompt file {path} can't be read ({error.strerror}). Give a text file.") from error
    except UnicodeDecodeError as error:
        raise ValueError(f"The prompt file {path} isn't UTF-8 text. Save it as UTF-8.") from error


def _imported(path: str, name: str) -> PromptFunction:
    module, _, attribute = path.partition(":")
    imported = import_named(module, f"the prompt {name}")
    try:
        found: Any = reduce(getattr, attribute.split("."), imported)
    except AttributeError as error:
        public = [known for known in vars(imported) if not known.startswith("_")]
        near = difflib.get_close_matches(attribute, public, n=1, cutoff=0.5)
        raise ValueError(f"{module} has no {attribute!r}.{f' Did you mean {near[0]}?' if near else ''}") from error
    if isinstance(found, str):
        return _template(found.strip(), name)
    if not callable(found) or isinstance(found, type):
        raise ValueError(
            f"The prompt {name} is of type {type(found).__name__}: it must be a function that gets the environment's "
            "instructions and the description of the reply format and returns the system message, or a template."
        )
    return _function(found, name)


def _function(write: Callable[..., Any], name: str) -> PromptFunction:
    from inspect import signature

    try:
        signature(write).bind("", "")
    except (TypeError, ValueError) as error:
        raise ValueError(
            f"The prompt {name} must take two arguments, the environment's instructions and the description of the "
            f"reply format: def {name.rpartition(':')[2]}(instructions, format_instructions)."
        ) from error

    @cache
    def prompt(instructions: str, format_instructions: str) -> str:
        try:
            text = write(instructions, format_instructions)
        except Exception as error:  # code of the user
            raise ValueError(f"The prompt {name} failed: {described(error)}.") from error
        if not isinstance(text, str) or not text.strip():
            returned = "an empty text" if isinstance(text, str) else f"no text, but {text!r:.80}"
            raise ValueError(
                f"The prompt {name} returned {returned}: return the system message. For none, give --no-instructions "
                "instead of a prompt."
            )
        return text

    return prompt


def _template(text: str, name: str) -> PromptFunction:
    if not text:
        raise ValueError(f"The prompt {name} has no text. For no system message, give --no-instructions instead.")
    for word in _PLACEHOLDER.findall(text):
        near = difflib.get_close_matches(word, _PLACEHOLDERS, n=1, cutoff=0.8)
        if near and word not in _PLACEHOLDERS:
            raise ValueError(f"The prompt {name} has {{{word}}}, which is no placeholder. Did you mean {{{near[0]}}}?")

    def prompt(instructions: str, format_instructions: str) -> str:
        values: Mapping[str, str] = {"instructions": instructions, "format_instructions": format_instructions}
        # In one pass, so that braces in the environment's instructions stay text.
        return _PLACEHOLDER.sub(lambda found: values.get(found[1], found[0]), text)

    return prompt
