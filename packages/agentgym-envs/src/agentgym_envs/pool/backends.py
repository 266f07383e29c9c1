"""Choose the environment and the backend of each slot: as requested, or from the cost of the environment's steps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack, closing
from importlib import import_module
from typing import Any, Literal, get_args

from gymnasium.envs.registration import load_env_creator

from agentgym_envs.core.registration import full_id
from agentgym_envs.core.registry import find_spec
from agentgym_envs.core.text_env import TextEnv
from agentgym_envs.pool.calls import WorldSpec
from agentgym_envs.pool.slots import InlineSlot, Slot, ThreadSlot

Backend = Literal["inline", "thread", "process"]
_INLINE_STEP_SECONDS = 1e-3  # a step through a process takes a good part of this


def slot_specs(
    spec: str | WorldSpec | Sequence[str | WorldSpec],
    slots: int | None,
    options: Mapping[str, Any] | Sequence[Mapping[str, Any]],
) -> tuple[WorldSpec, ...]:
    """Return one spec per slot, with its options. See `EnvPool`."""
    one = isinstance(spec, str | WorldSpec)
    many = len(spec) if not one else slots
    if many is None or many < 1 or (slots is not None and slots != many):
        raise ValueError(
            f"slots={slots} does not match {1 if one else many} environment(s): give slots=N, or one spec per slot."
        )
    each = [spec] * many if one else list(spec)
    more = [options] * many if isinstance(options, Mapping) else list(options) or [{}] * many
    if len(more) != many:
        raise ValueError(
            f"There are options for {len(more)} slots, but {many} slots; give one mapping per slot, or one for all."
        )
    made = [WorldSpec(world) if isinstance(world, str) else world for world in each]
    return tuple(
        WorldSpec(full_id(world.id), {**world.options, **extra}) for world, extra in zip(made, more, strict=True)
    )


def open_slots(specs: Sequence[WorldSpec], backend: str | None) -> tuple[list[Slot], ExitStack]:
    """Open a slot per spec, and return with them the resources to close after them. See `EnvPool` for `backend`."""
    if backend is not None and "://" in backend:
        remote = import_module("agentgym_envs.remote.slots")  # by name, since it depends on this package
        with ExitStack() as shared:
            servers = shared.enter_context(closing(remote.Servers(backend)))
            return [remote.RemoteSlot(number, spec, servers) for number, spec in enumerate(specs)], shared.pop_all()
    if backend is not None and backend not in get_args(Backend):
        names = ", ".join(get_args(Backend))
        raise ValueError(
            f"There is no backend {backend!r}; choose one of {names}, or the URL of a server (http://...)."
        )
    for spec in specs:
        find_spec(spec.id)
    return [open_slot(number, spec, backend or default_backend(spec)) for number, spec in enumerate(specs)], ExitStack()


def open_slot(number: int, spec: WorldSpec, backend: str) -> Slot:
    """Open a slot of a local backend."""
    match backend:
        case "inline":
            return InlineSlot(number, spec)
        case "thread":
            return ThreadSlot(number, spec)
        case _:
            from agentgym_envs.pool.process import ProcessSlot

            return ProcessSlot(number, spec)


def default_backend(spec: WorldSpec) -> Backend:
    """Choose a backend: `inline` for environments whose steps take at most a millisecond, `process` for slower ones,
    `thread` for those that wait, are created by a function, or can't be imported in another process.
    """
    entry = find_spec(spec.id).entry_point
    world = load_env_creator(entry) if isinstance(entry, str) else entry
    if not (isinstance(world, type) and issubclass(world, TextEnv)) or world.step_waits:
        return "thread"
    if world.step_seconds <= _INLINE_STEP_SECONDS:
        return "inline"
    return "thread" if world.__module__ == "__main__" else "process"
