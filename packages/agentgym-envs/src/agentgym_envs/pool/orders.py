"""What the owner of a host and the process itself say to each other, as pickles that either can survive.

The owner first sends `(sys.path, alone)`, then `(ticket, key, order)` with the order a pickle of its own, so that one
that can't be read is answered like any other. Back come `(ticket, result)`, the result again a pickle of its own.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import traceback
from dataclasses import dataclass
from typing import Any, Literal

import gymnasium

from agentgym_envs.pool.calls import Call, Result, WorldSpec


@dataclass(frozen=True, slots=True)
class Open:
    """Make the slot that later orders with this key are for."""

    number: int
    world: str
    spec: bytes
    """What `sendable` made of it."""
    backend: Literal["inline", "thread"]


@dataclass(frozen=True, slots=True)
class Replace:
    """See `Slot.replace`."""


@dataclass(frozen=True, slots=True)
class Close:
    """See `Slot.close`; answered when it is done."""


Order = Open | Replace | Close | Call


def sendable(spec: WorldSpec) -> bytes:
    """A pickle of `spec`, and of what is registered here under its id, which nobody may have registered there.

    Raises:
        ValueError: when one of its options, or the world itself, can't be pickled, or not be read over there.
    """
    registered = gymnasium.registry.get(spec.id)
    entry = registered.entry_point if registered is not None else None
    module = entry.partition(":")[0] if isinstance(entry, str) else getattr(entry, "__module__", None)
    if module == "__main__":
        raise ValueError(
            f"{spec.id} is defined in a script or a notebook, which other processes can't import: put it in a module, "
            "or use the backend thread."
        )
    try:
        return pickle.dumps((spec, registered))
    except Exception as error:
        raise ValueError(
            f"{spec.id} or one of its options can't be sent to another process ({error}); use the backend thread."
        ) from error


def built(sent: bytes) -> gymnasium.Env[str, str]:
    """The world of which `sendable` made a pickle. Raises what reading it and `WorldSpec.build` raise."""
    spec, registered = pickle.loads(sent)
    if registered is not None:
        gymnasium.registry.setdefault(registered.id, registered)
    return spec.build()


def packed(result: Result) -> bytes:
    """A pickle of `result` as a plain tuple; where it can't be made, of one whose error says so."""
    if result.error is not None:
        error = _portable(result.error)
        where = "".join(traceback.format_tb(result.error.__traceback__))  # which a pickle leaves out
        error.add_note(f"In process {os.getpid()}:\n{where}")
        result = result._replace(error=error)
    try:
        return pickle.dumps(tuple(result))
    except Exception as error:  # noqa: BLE001 - pickling runs what the world's own classes do
        what = type(result.value).__name__ if result.value is not None else "what the world returned"
        problem = TypeError(f"{what} can't be sent to another process ({error}); ask a world in a thread for it.")
        return pickle.dumps(tuple(Result(result.slot, error=problem)))


def _portable(error: Exception) -> Exception:
    """`error` as another process can read it: of the nearest class that survives, with the same arguments."""
    kinds = type(error).__mro__
    for kind in kinds[: kinds.index(Exception)]:
        with contextlib.suppress(Exception):
            candidate = error if kind is type(error) else kind(*error.args)
            copy: Any = pickle.loads(pickle.dumps(candidate))
            if type(copy) is kind and isinstance(candidate, Exception) and str(copy) == str(candidate):
                return candidate
    return RuntimeError(f"{type(error).__name__}: {error}")


def unpacked(number: int, packed: bytes) -> Result:
    """The result for slot `number`; where it can't be read, one whose error says so."""
    try:
        fields: tuple[Any, ...] = pickle.loads(packed)
    except Exception as error:  # noqa: BLE001 - it reaches the caller in the result
        return Result(number, error=TypeError(f"The answer can't be read in this process: {error}"))
    return Result(number, *fields[1:])
