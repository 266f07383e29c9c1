"""Small checks of a task's `eval`, for messages that name the field. Knows no evaluator."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Mapping
from typing import Any, cast


def texts(value: object, field: str) -> list[str]:
    """`value` as a list of texts; a single text or number counts as a list of one.

    Raises:
        ValueError: when it is neither, or empty.
    """
    listed = cast("list[object]", value) if isinstance(value, list) else [value]
    if not listed or any(isinstance(one, bool) or not isinstance(one, str | int | float) for one in listed):
        raise ValueError(f"`{field}` is {value!r}; it must be a list of texts.")
    return [str(one) for one in listed]


def known(names: Collection[str], choices: Collection[str], field: str) -> None:
    """Raises ValueError unless `names` are some of `choices`, and at least one."""
    if not names:
        raise ValueError(f"`{field}` is empty; it must hold some of {', '.join(choices)}.")
    for name in names:
        if name not in choices:
            near = difflib.get_close_matches(str(name), choices, n=1)
            hint = f"did you mean {near[0]!r}? " if near else ""
            raise ValueError(f"`{field}` has {name!r}; {hint}Known here: {', '.join(choices)}.")


def objects(value: object, field: str) -> list[dict[str, Any]]:
    """`value` as a list of JSON objects.

    Raises:
        ValueError: when it isn't one, or is empty.
    """
    listed = cast("list[object]", value) if isinstance(value, list) else []
    if not listed or not all(isinstance(one, Mapping) for one in listed):
        raise ValueError(f"`{field}` is {value!r}; it must be a list of objects.")
    return [dict(cast("Mapping[str, Any]", one)) for one in listed]
