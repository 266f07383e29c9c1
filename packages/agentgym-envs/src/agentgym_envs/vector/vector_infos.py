"""Batching of infos into one dict of arrays, in the format of Gymnasium's vector environments."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import NDArray


def batch_infos(infos: Mapping[int, Mapping[str, Any]], count: int) -> dict[str, Any]:
    """Batch the infos of some of `count` environments by key, with a mask of the environments that have it in `_key`.

    Where `VectorEnv._add_info` works value by value, this works by column, in half the time. If environments differ in
    the type of a value, the column has a type that can hold all of them.

    Args:
        infos: The infos by index, in ascending order.
        count: The number of environments.
    """
    all_present = _mask(infos, count)
    batch: dict[str, Any] = {}
    for key in dict.fromkeys(chain.from_iterable(infos.values())):
        values = [info[key] for info in infos.values() if key in info]
        if len(values) == len(infos):
            indices, mask = infos, all_present.copy()
        else:
            indices = [i for i, info in infos.items() if key in info]
            mask = _mask(indices, count)
        batch[key], batch[f"_{key}"] = _column(indices, values, count), mask
    return batch


def _mask(indices: Iterable[int], count: int) -> NDArray[np.bool_]:
    mask = np.zeros(count, np.bool_)
    mask[list(indices)] = True
    return mask


def _column(indices: Iterable[int], values: list[Any], count: int) -> Any:
    """Batch the values of one key: a dict of columns for dicts, otherwise an array with a row per environment."""
    kind, *others = set(map(type, values))
    if others:
        kind = np.result_type(kind, *others).type if all(map(_is_number, (kind, *others))) else object
    if kind is dict:
        return batch_infos(dict(zip(indices, values, strict=True)), count)
    shape: tuple[int, ...] = ()
    if kind is np.ndarray and len({(value.shape, value.dtype) for value in values}) == 1:
        kind, shape = values[0].dtype, values[0].shape
    elif not _is_number(kind):
        kind = object
    if len(values) == count and not shape:
        return np.fromiter(values, kind, count)
    array = np.full((count, *shape), None if kind is object else 0, kind)
    for i, value in zip(indices, values, strict=True):
        array[i] = value
    return array


def _is_number(kind: type) -> bool:
    return kind in (int, float, bool) or issubclass(kind, np.number)
