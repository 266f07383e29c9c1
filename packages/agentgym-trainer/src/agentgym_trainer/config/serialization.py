"""Convert configurations to and from JSON: frozen dataclasses of plain values, tuples and nested dataclasses."""

from __future__ import annotations

import types
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import Any, Union, cast, get_args, get_origin, get_type_hints

from agentgym_eval.util.errors import nearest
from agentgym_eval.util.settings_files import field_values, plain_value

from agentgym_trainer.plugins import POINTS, PluginPoint


def to_json(config: Any) -> Any:
    """Convert a configuration to JSON values.

    A field that allows several types gets a key `type`; a class of another package is MODULE:CLASS, a function
    MODULE:FUNCTION.
    """
    if isinstance(config, tuple):
        return [to_json(value) for value in config]
    if not is_dataclass(config) or isinstance(config, type):
        return config
    hints = get_type_hints(type(config))
    result: dict[str, Any] = {}
    for f in fields(config):
        value = getattr(config, f.name)
        hint, record = hints[f.name], to_json(value)
        if hint in POINTS and type(value) is not hint:
            record = {"type": POINTS[hint].name_of(value), **(record if is_dataclass(value) else {})}
        elif len(_dataclasses(hint)) > 1:
            record = {"type": type(value).__name__, **record}
        result[f.name] = record
    return result


def from_json(kind: type[Any], record: Mapping[str, Any], prefix: str = "") -> Any:
    """Restore a configuration from what `to_json` returned.

    Raises:
        ValueError: A key or type doesn't exist (the message names the nearest one), or a value has the wrong type.
    """
    return kind(**field_values(kind, record, _value, prefix))


def _value(hint: Any, value: Any, path: str) -> Any:
    kinds, point = _dataclasses(hint), POINTS.get(hint)
    if (kinds or point) and not isinstance(value, Mapping):
        raise ValueError(f"{path} must be a record of settings, not {value!r}.")
    if point and ("type" in value or point.contract not in kinds):
        return _extension(point, dict(value), path)
    if len(kinds) > 1:
        by_name = {kind.__name__: kind for kind in kinds}
        record = dict(value)
        name = record.pop("type", None)
        if name not in by_name:
            raise ValueError(f"{path} can't be of type {name!r}. {nearest(str(name), by_name)}")
        return from_json(by_name[name], record, f"{path}.")
    if kinds:
        return from_json(kinds[0], value, f"{path}.")
    return plain_value(hint, value, path, _value)


def _extension(point: PluginPoint, record: dict[str, Any], path: str) -> Any:
    name = record.pop("type", None)
    found = point.named(name, path)
    if is_dataclass(found):
        return point.checked(from_json(cast(type[Any], found), record, f"{path}."), name)
    if record:
        raise ValueError(f"{path} is the function {name}, which has no setting {next(iter(record))!r}.")
    return point.checked(found, name)


def _dataclasses(hint: Any) -> list[type[Any]]:
    """The dataclasses that a field may hold."""
    options = get_args(hint) if get_origin(hint) in (Union, types.UnionType) else (hint,)
    return [option for option in options if is_dataclass(option) and isinstance(option, type)]
