"""Configurations to and from JSON: any frozen dataclasses of plain values, tuples and other such dataclasses."""

from __future__ import annotations

import types
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from types import NoneType
from typing import Any, Literal, Union, cast, get_args, get_origin, get_type_hints

from agentgym_trainer.plugins import POINTS, PluginPoint, nearest


def to_json(config: Any) -> Any:
    """A configuration as JSON values. Where a field may be of several types, its `type` is noted; a class of another
    package as MODULE:CLASS, a function as MODULE:FUNCTION.
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
        elif len(_nouns(hint)) > 1:
            record = {"type": type(value).__name__, **record}
        result[f.name] = record
    return result


def from_json(noun: type[Any], record: Mapping[str, Any], where: str = "") -> Any:
    """The configuration that `to_json` wrote.

    Raises:
        ValueError: for a key or type that doesn't exist, naming the nearest that does, and for a value of a wrong type.
    """
    hints = get_type_hints(noun)
    known = {f.name for f in fields(noun)}
    for key in record:
        if key not in known:
            raise ValueError(f"There is no setting {where + key!r}. {nearest(key, known)}")
    return noun(**{key: _value(hints[key], value, f"{where}{key}") for key, value in record.items()})


def _value(hint: Any, value: Any, where: str) -> Any:
    nouns, point = _nouns(hint), POINTS.get(hint)
    if (nouns or point) and not isinstance(value, Mapping):
        raise ValueError(f"{where} must be a record of settings, not {value!r}.")
    if point and ("type" in value or point.contract not in nouns):
        return _extension(point, dict(value), where)
    if len(nouns) > 1:
        named = {noun.__name__: noun for noun in nouns}
        record = dict(value)
        name = record.pop("type", None)
        if name not in named:
            raise ValueError(f"{where} can't be of type {name!r}. {nearest(str(name), named)}")
        return from_json(named[name], record, f"{where}.")
    if nouns:
        return from_json(nouns[0], value, f"{where}.")
    if get_origin(hint) is tuple:
        return _tuple(get_args(hint), value, where)
    return _plain(hint, value, where)


def _extension(point: PluginPoint, record: dict[str, Any], where: str) -> Any:
    name = record.pop("type", None)
    found = point.named(name, where)
    if is_dataclass(found):
        return point.checked(from_json(cast(type[Any], found), record, f"{where}."), name)
    if record:
        raise ValueError(f"{where} is the function {name}, which has no setting {next(iter(record))!r}.")
    return point.checked(found, name)


def _tuple(items: tuple[Any, ...], value: Any, where: str) -> tuple[Any, ...]:
    if not isinstance(value, list | tuple):
        raise ValueError(f"{where} must be a list, not {value!r}.")
    hints = [items[0]] * len(value) if items[-1] is Ellipsis else list(items)
    if len(hints) != len(value):
        raise ValueError(f"{where} must be a list of {len(hints)}, not {value!r}.")
    return tuple(_value(hint, item, f"{where}.{i}") for i, (hint, item) in enumerate(zip(hints, value, strict=True)))


def _plain(hint: Any, value: Any, where: str) -> Any:
    if NoneType in (options := get_args(hint)):
        (hint,) = (option for option in options if option is not NoneType)
        if value is None:
            return None
    if get_origin(hint) is Literal:
        if value not in get_args(hint):
            raise ValueError(f"{where} can't be {value!r}. {nearest(str(value), get_args(hint))}")
        return value
    if hint is float and type(value) is int:
        return float(value)
    if type(value) is not hint:
        raise ValueError(f"{where} must be of type {hint.__name__}, not {value!r}.")
    return value


def _nouns(hint: Any) -> list[type[Any]]:
    """The dataclasses that a field may hold."""
    options = get_args(hint) if get_origin(hint) in (Union, types.UnionType) else (hint,)
    return [option for option in options if is_dataclass(option) and isinstance(option, type)]
