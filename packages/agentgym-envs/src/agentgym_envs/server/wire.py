"""Serialization: values to JSON, and request bodies to models.

Every value can be written, and every body that is JSON can be parsed.
"""

from __future__ import annotations

import base64
import json
import math
from typing import Any, TypeVar

import numpy as np
from pydantic import BaseModel, ValidationError
from pydantic_core import PydanticSerializationError, to_json

from agentgym_envs.core.text_env import writable
from agentgym_envs.pool import Result
from agentgym_envs.util.images import png

_Body = TypeVar("_Body", bound=BaseModel)
_SURROGATE = ("surrogate", "hex escape")  # words in pydantic's errors about lone surrogates


def written(value: object) -> bytes:
    """Serialize `value` as JSON. NaN and infinities become null, images `data:` URLs of PNGs, and other values that
    JSON lacks their `repr`.
    """
    try:
        return to_json(value, inf_nan_mode="null", fallback=_jsonable)
    except PydanticSerializationError:  # a lone surrogate, which UTF-8 can't encode but a JSON escape can
        return json.dumps(_finite(value), default=_jsonable).encode()


def parsed(model: type[_Body], body: bytes) -> _Body:
    """Parse `body` as a `model`. Lone surrogates, as from an emoji that a tokenizer cut in half, become question marks,
    as they do in environments.

    Raises:
        pydantic.ValidationError: If the body does not match the model.
    """
    try:
        return model.model_validate_json(body)
    except ValidationError as error:
        if error.error_count() > 1 or not any(word in str(error) for word in _SURROGATE):
            raise
        return model.model_validate_json(_without_surrogates(body) or body)


class OutcomeWriter:
    """Serializes the outcomes of one environment as `models.Outcome` JSON.

    The available actions are the largest part and often stay the same for many turns. They are serialized only when
    they change.
    """

    def __init__(self) -> None:
        self._actions: object = None
        self._written = b"null"

    def __call__(self, result: Result) -> bytes:
        """Serialize the outcome in `result`."""
        info = dict(result.info)
        actions = info.pop("available_actions", None)
        if not isinstance(actions, list) or actions != self._actions:
            self._written = written(actions)
            self._actions = (
                actions[:] if isinstance(actions, list) else None
            )  # copied: an environment may mutate its list
        outcome = {
            "observation": result.observation,
            "reward": result.reward,
            "terminated": result.terminated,
            "truncated": result.truncated,
            "info": info,
        }
        comma = b"," if info else b""
        return b'%b%b"available_actions":%b}}' % (written(outcome)[:-2], comma, self._written)


def _without_surrogates(body: bytes) -> bytes:
    try:
        return writable(json.dumps(json.loads(body), ensure_ascii=False)).encode()
    except (ValueError, RecursionError):
        return b""


def _jsonable(value: object) -> object:
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
