"""Settings in JSON and TOML files, read into the types of a dataclass's fields; commands of both packages use it."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import fields
from pathlib import Path
from types import NoneType
from typing import Any, Literal, cast, get_args, get_origin, get_type_hints

from agentgym_eval.util.errors import UsageError, nearest

ValueReader = Callable[[Any, Any, str], Any]
"""Returns the value of a type hint for a JSON value, given the path of the setting for messages."""


def read_file(path: Path) -> dict[str, Any]:
    """Return the settings in the file of `--config`, by name.

    Raises:
        UsageError: The file can't be read, or isn't JSON or TOML with settings by name.
    """
    try:
        text = path.read_text(encoding="utf-8")
        read: Any = tomllib.loads(text) if path.suffix == ".toml" else json.loads(text)
    except OSError as error:
        raise UsageError(f"--config {path} can't be read ({error.strerror}). Give a JSON or TOML file.") from error
    except (ValueError, RecursionError) as error:
        form = "TOML" if path.suffix == ".toml" else "JSON (a TOML file needs the ending .toml)"
        raise UsageError(f"--config {path} isn't valid {form}: {error}") from error
    if not isinstance(read, dict):
        raise UsageError(f'--config {path} must contain settings by name, such as {{"seed": 1}}.')
    return cast(dict[str, Any], read)


def field_values(kind: type[Any], record: Mapping[str, Any], read: ValueReader, prefix: str = "") -> dict[str, Any]:
    """Return the values of a dataclass's fields that a record of JSON values has.

    Args:
        kind: The dataclass.
        record: Values by the names of fields; it needn't have all.
        read: Reads each value.
        prefix: Path of the record, for messages.

    Raises:
        ValueError: There is no such field (the message names the nearest one), or as `read`.
    """
    hints = get_type_hints(kind)
    known = {f.name for f in fields(kind)}
    for key in record:
        if key not in known:
            raise ValueError(f"There is no setting {prefix + key!r}. {nearest(key, known)}")
    return {key: read(hints[key], value, f"{prefix}{key}") for key, value in record.items()}


def plain_value(hint: Any, value: Any, path: str, read: ValueReader | None = None) -> Any:
    """Return the value of a setting: a number, a text, a path, or a tuple or choice of these.

    Args:
        hint: The type of the field.
        value: A JSON value.
        path: The setting, for messages.
        read: Reads the items of tuples; by default this function.

    Raises:
        ValueError: The value has another type.
    """
    if get_origin(hint) is tuple:
        return _tuple(get_args(hint), value, path, read or plain_value)
    if NoneType in (options := get_args(hint)):
        if value is None:
            return None
        (hint,) = (option for option in options if option is not NoneType)
    if get_origin(hint) is Literal:
        if value not in get_args(hint):
            raise ValueError(f"{path} can't be {value!r}. {nearest(str(value), get_args(hint))}")
        return value
    if hint is float and type(value) is int:
        return float(value)
    if hint is Path and type(value) is str:
        return Path(value)
    if type(value) is not hint:
        raise ValueError(f"{path} must be of type {'str' if hint is Path else hint.__name__}, not {value!r}.")
    return value


def _tuple(items: tuple[Any, ...], value: Any, path: str, read: ValueReader) -> tuple[Any, ...]:
    if not isinstance(value, list | tuple):
        raise ValueError(f"{path} must be a list, not {value!r}.")
    hints = [items[0]] * len(value) if items[-1] is Ellipsis else list(items)
    if len(hints) != len(value):
        raise ValueError(f"{path} must be a list of {len(hints)}, not {value!r}.")
    return tuple(read(hint, item, f"{path}.{i}") for i, (hint, item) in enumerate(zip(hints, value, strict=True)))
