"""The environments that a server offers, and the options that clients may set.

Clients can't supply code: they choose among the registered environments and those that the server was started with.
"""

from __future__ import annotations

import asyncio
import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gymnasium.error import DependencyNotInstalled

from agentgym_envs.core.registration import WORLDS, full_id
from agentgym_envs.core.registry import find_spec, read_resolved, world_class
from agentgym_envs.pool import WorldSpec
from agentgym_envs.server.errors import Refusal
from agentgym_envs.server.models import EnvironmentInfo
from agentgym_envs.util.redaction import redacted_option

_ALWAYS = frozenset({"max_episode_steps", "render_mode"})


@dataclass(frozen=True, slots=True)
class _Offer:
    """The options and render modes that a client may set."""

    options: frozenset[str]
    render_modes: tuple[str, ...]


class Catalog:
    """The environments by id. A further environment `MODULE:ID` is available under that name and as `ID`."""

    def __init__(self, further: Sequence[str] = (), options: Sequence[str] = ()) -> None:
        """Collect the registered environments and the `further` ones.

        Args:
            further: Environments as `MODULE:ID`.
            options: Options as `WORLD:KEY=VALUE`. They are checked by creating the environment.

        Raises:
            ValueError: If an environment or option does not exist.
            gymnasium.error.DependencyNotInstalled: If the extra of an environment with options is missing.
        """
        self._specs = {world.id: world.id for world in WORLDS} | {find_spec(world).id: world for world in further}
        self._ids = {spec: world for world, spec in self._specs.items()} | {world: world for world in self._specs}
        self._ids |= {world.short_name: world.id for world in WORLDS}
        self._defaults = self._read(options)
        self._offers: dict[str, _Offer] = {}
        self._missing: dict[str, str | None] = {}

    async def spec(self, world: str, options: Mapping[str, Any], own: Mapping[str, Any]) -> WorldSpec:
        """Return the spec of an environment. Later options override earlier ones.

        Args:
            world: Id or short name of the environment.
            options: Options of the client, which override the server's options for all sessions.
            own: Options of the server for this session.

        Raises:
            Refusal: If the environment does not exist, or clients may not set one of the options.
        """
        known = self._ids.get(world)
        if known is None:
            near = difflib.get_close_matches(world, self._specs, n=1, cutoff=0.4)
            hint = f" Did you mean {near[0]}?" if near else ""
            raise Refusal(
                404,
                "unknown_world",
                f"There is no environment {world!r} on this server.{hint} There are: {', '.join(self._specs)}.",
            )
        try:
            if known not in self._offers:  # imports the environment's module, which may take seconds
                self._offers[known] = await asyncio.to_thread(_offer, self._specs[known])
        except (DependencyNotInstalled, ImportError) as error:
            raise Refusal(404, "unknown_world", f"{known} isn't installed on this server: {error}") from error
        _check(known, self._offers[known], options)
        return WorldSpec(self._specs[known], {**self._defaults.get(known, {}), **options, **own})

    async def list_environments(self) -> list[EnvironmentInfo]:
        """Return the environments, with what is missing for those that aren't installed."""
        for world, spec in self._specs.items():
            if world not in self._missing:
                self._missing[world] = await asyncio.to_thread(_missing, spec)
        return [
            {
                "id": world,
                "max_episode_steps": find_spec(spec).max_episode_steps,
                "installed": self._missing[world] is None,
                "missing": self._missing[world],
            }
            for world, spec in self._specs.items()
        ]

    def _read(self, options: Sequence[str]) -> dict[str, dict[str, Any]]:
        """Parse the server's options and return them by environment."""
        read: dict[str, dict[str, Any]] = {}
        for option in options:
            # Names of worlds may have colons and equals signs, as in `gymnasium:Blackjack-v1` and `mcp:COMMAND`.
            beginnings = [name for name in self._ids if option.startswith(f"{name}:")]
            world = max(beginnings, key=len) if beginnings else option.partition(":")[0]
            known, pair = self._ids.get(world) or self._ids.get(full_id(world)), option.removeprefix(f"{world}:")
            if known is None or pair == option:
                raise ValueError(
                    f"--option {redacted_option(option)} is not of the form WORLD:KEY=VALUE, where WORLD is one of the "
                    f"served environments: {', '.join(self._specs)}."
                )
            name, value = read_resolved(pair)
            read.setdefault(known, {})[name] = value
        for world, chosen in read.items():
            WorldSpec(self._specs[world], chosen).build().close()
        return read


def _offer(world: str) -> _Offer:
    made = world_class(world)
    if made is None:
        return _Offer(frozenset(), ("ansi",))
    return _Offer(made.client_options, tuple(made.metadata["render_modes"]))


def _missing(world: str) -> str | None:
    try:
        WorldSpec(world).build().close()
    except (DependencyNotInstalled, ImportError) as error:
        return str(error)
    except Exception:  # noqa: BLE001 - it is installed; creating a session reports the error
        return None
    return None


def _check(world: str, offer: _Offer, options: Mapping[str, Any]) -> None:
    allowed = offer.options | _ALWAYS
    if wrong := sorted(options.keys() - allowed):
        raise Refusal(
            422,
            "invalid",
            f"Clients of {world} can't set {', '.join(wrong)}; they may set {', '.join(sorted(allowed))}.",
        )
    mode, turns = options.get("render_mode"), options.get("max_episode_steps")
    if mode is not None and mode not in offer.render_modes:
        raise Refusal(
            422, "invalid", f"{world} has no render_mode {mode!r}; it has {', '.join(offer.render_modes)}, or null."
        )
    if turns is not None and (isinstance(turns, bool) or not isinstance(turns, int) or turns < 1):
        raise Refusal(422, "invalid", f"max_episode_steps must be a positive integer, not {turns!r}.")
