"""The protocol between a host process and its owner: pickles that cannot break the connection.

The owner first sends `(sys.path, alone)`, then `(request_id, key, order)` messages. `order` is a nested pickle, so that
an order that can't be unpickled is answered like any other. The process answers with `(request_id, result)`, where
`result` is a nested pickle as well.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import traceback
from dataclasses import dataclass
from typing import Any, Literal

import gymnasium

from agentgym_envs.core.registry import code_module
from agentgym_envs.pool.calls import Call, Result, WorldSpec


@dataclass(frozen=True, slots=True)
class Open:
    """Create the slot that later orders with this key refer to."""

    number: int
    world: str
    spec: bytes
    """Return value of `sendable`."""
    backend: Literal["inline", "thread"]


@dataclass(frozen=True, slots=True)
class Replace:
    """See `Slot.replace`."""


@dataclass(frozen=True, slots=True)
class Close:
    """See `Slot.close`. The process responds when the slot is closed."""


Order = Open | Replace | Close | Call


def sendable(spec: WorldSpec) -> bytes:
    """Pickle `spec` with its Gymnasium registration, which may be missing in the other process.

    Raises:
        ValueError: If an option or the environment can't be pickled, or not be unpickled in another process.
    """
    registered = gymnasium.registry.get(spec.id)
    if registered is not None and code_module(registered) == "__main__":
        raise ValueError(
            f"{spec.id} is defined in a script or a notebook, which other processes can't import: put it in a module, "
            "or use the thread backend."
        )
    try:
        return pickle.dumps((spec, registered))
    except Exception as error:
        raise ValueError(
            f"{spec.id} or one of its options can't be sent to another process ({error}); use the thread backend."
        ) from error


def built(sent: bytes) -> gymnasium.Env[str, str]:
    """Create the environment that `sendable` pickled. Raises the errors of unpickling and of `WorldSpec.build`."""
    spec, registered = pickle.loads(sent)
    if registered is not None:
        gymnasium.registry.setdefault(registered.id, registered)
    return spec.build()


def packed(result: Result) -> bytes:
    """Pickle `result` as a plain tuple. If that fails, pickle a result with an error that describes the problem."""
    if result.error is not None:
        error = _portable(result.error)
        trace = "".join(traceback.format_tb(result.error.__traceback__))  # pickling drops tracebacks
        error.add_note(f"In process {os.getpid()}:\n{trace}")
        result = result._replace(error=error)
    try:
        return pickle.dumps(tuple(result))
    except Exception as error:  # noqa: BLE001 - pickling runs code of the environment's classes
        kind = type(result.value).__name__ if result.value is not None else "The environment's return value"
        problem = TypeError(f"{kind} can't be sent to another process ({error}); use the thread backend to get it.")
        return pickle.dumps(tuple(Result(result.slot, error=problem)))


def _portable(error: Exception) -> Exception:
    """Convert `error` to the nearest base class that can be unpickled elsewhere, with the same arguments."""
    kinds = type(error).__mro__
    for kind in kinds[: kinds.index(Exception)]:
        with contextlib.suppress(Exception):
            candidate = error if kind is type(error) else kind(*error.args)
            copy: Any = pickle.loads(pickle.dumps(candidate))
            if type(copy) is kind and isinstance(candidate, Exception) and str(copy) == str(candidate):
                return candidate
    return RuntimeError(f"{type(error).__name__}: {error}")


def unpacked(number: int, packed: bytes) -> Result:
    """Unpickle the result for slot `number`. If that fails, return a result with an error that says so."""
    try:
        fields: tuple[Any, ...] = pickle.loads(packed)
    except Exception as error:  # noqa: BLE001 - the caller gets it in the result
        return Result(number, error=TypeError(f"The result can't be unpickled in this process: {error}"))
    return Result(number, *fields[1:])
