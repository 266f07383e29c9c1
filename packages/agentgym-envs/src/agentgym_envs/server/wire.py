"""How values become bytes and bytes values: JSON as the contract has it, pictures as PNG. Total in both directions but
for what is no JSON.
"""

from __future__ import annotations

import base64
import json
import math
import struct
import zlib
from typing import Any, TypeVar

import numpy as np
from pydantic import BaseModel, ValidationError
from pydantic_core import PydanticSerializationError, to_json

from agentgym_envs.core.text_env import writable
from agentgym_envs.pool import Result

_Body = TypeVar("_Body", bound=BaseModel)
_SURROGATE = ("surrogate", "hex escape")  # how pydantic's parser complains of half an emoji


def written(value: object) -> bytes:
    """`value` as JSON. What JSON can't write: NaN becomes null, a picture a `data:` URL of a PNG, and anything else
    its `repr`.
    """
    try:
        return to_json(value, inf_nan_mode="null", fallback=_instead)
    except PydanticSerializationError:  # half an emoji, which UTF-8 can't write and an escape can
        return json.dumps(_finite(value), default=_instead).encode()


def parsed(model: type[_Body], body: bytes) -> _Body:
    """The `body` as what is wanted. Half an emoji in it, as a tokenizer may cut one, becomes a question mark, which is
    what worlds make of it.

    Raises:
        pydantic.ValidationError: when it is something else.
    """
    try:
        return model.model_validate_json(body)
    except ValidationError as error:
        if error.error_count() > 1 or not any(word in str(error) for word in _SURROGATE):
            raise
        return model.model_validate_json(_mended(body) or body)


class OutcomeWriter:
    """Writes what a client sees of the resets and steps of one world, a `models.Outcome`, as JSON.

    Most of it are the available actions, which stay the same for many turns in many worlds; they are written when they
    change.
    """

    def __init__(self) -> None:
        self._actions: object = None
        self._written = b"null"

    def __call__(self, result: Result) -> bytes:
        """The outcome of `result`."""
        info = dict(result.info)
        actions = info.pop("available_actions", None)
        if not isinstance(actions, list) or actions != self._actions:
            self._written = written(actions)
            self._actions = actions[:] if isinstance(actions, list) else None  # a world may go on with the same list
        outcome = {
            "observation": result.observation,
            "reward": result.reward,
            "terminated": result.terminated,
            "truncated": result.truncated,
            "info": info,
        }
        comma = b"," if info else b""
        return b'%b%b"available_actions":%b}}' % (written(outcome)[:-2], comma, self._written)


def png(pixels: np.ndarray[Any, Any]) -> bytes:
    """The picture (height, width, 3) of uint8 as PNG."""
    height, width, _ = pixels.shape
    rows = np.pad(pixels.reshape(height, width * 3), ((0, 0), (1, 0)))  # each row begins with its filter: none
    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    parts = (b"IHDR", head), (b"IDAT", zlib.compress(rows.tobytes(), 1)), (b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + b"".join(_chunk(kind, data) for kind, data in parts)


def _chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def _mended(body: bytes) -> bytes:
    try:
        return writable(json.dumps(json.loads(body), ensure_ascii=False)).encode()
    except (ValueError, RecursionError):
        return b""


def _instead(value: object) -> object:
    match value:
        case np.generic():
            return value.item()
        case np.ndarray() if value.dtype == np.uint8 and value.ndim == 3 and value.shape[2] == 3:
            return f"data:image/png;base64,{base64.b64encode(png(value)).decode()}"
        case np.ndarray():
            return value.tolist()
        case _:
            return repr(value)


def _finite(value: Any) -> Any:
    match value:
        case float() if not math.isfinite(value):
            return None
        case dict():
            return {str(key): _finite(item) for key, item in value.items()}
        case list() | tuple():
            return [_finite(item) for item in value]
        case _:
            return value
