"""Validation helpers for a task's `eval`, whose error messages name the field."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Mapping
from typing import Any, cast


def string_list(value: object, field: str) -> list[str]:
    """Convert `value` to a list of strings; a single string or number becomes a list of one.

    Raises:
        ValueError: if it is neither, or empty.
    """
    listed = cast("list[object]", value) if isinstance(value, list) else [value]
    if not listed or any(isinstance(item, bool) or not isinstance(item, str | int | float) for item in listed):
        raise ValueError(f"`{field}` is {value!r}; it must be a non-empty list of strings.")
    return [str(item) for item in listed]


def check_known(names: Collection[str], choices: Collection[str], field: str) -> None:
    """Raise a ValueError unless `names` is a non-empty subset of `choices`."""
    if not names:
        raise ValueError(f"`{field}` is empty; it must contain at least one of {', '.join(choices)}.")
    for name in names:
        if name not in choices:
            near = difflib.get_close_matches(str(name), choices, n=1)
            hint = f" Did you mean {near[0]!r}?" if near else ""
            raise ValueError(f"`{field}` has the unknown name {name!r}.{hint} Known names: {', '.join(choices)}.")


def object_list(value: object, field: str) -> list[dict[str, Any]]:
    """Convert `value` to a list of JSON objects.

    Raises:
        ValueError: if it isn't one, or is empty.
    """
    listed = cast("list[object]", value) if isinstance(value, list) else []
    if not listed or not all(isinstance(item, Mapping) for item in listed):
        raise ValueError(f"`{field}` is {value!r}; it must be a non-empty list of objects.")
    return [dict(cast("Mapping[str, Any]", item)) for item in listed]
