"""The worlds that a server offers, and what a client may ask of each. Code never comes from a client: it chooses among
the registered worlds and those that the server was started with.
"""

from __future__ import annotations

import asyncio
import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gymnasium.error import DependencyNotInstalled

from agentgym_envs.core.registry import WORLDS, find_spec, full_id, read_resolved, world_class
from agentgym_envs.pool import WorldSpec
from agentgym_envs.server.errors import Refusal
from agentgym_envs.server.models import WorldSeen
from agentgym_envs.util.redaction import redacted_option

_ALWAYS = frozenset({"max_episode_steps", "render_mode"})


@dataclass(frozen=True, slots=True)
class _Offer:
    """What a client may set."""

    options: frozenset[str]
    render_modes: tuple[str, ...]


class Catalog:
    """The worlds by id. `MODULE:ID` of a further world is known as that and as ID."""

    def __init__(self, further: Sequence[str] = (), options: Sequence[str] = ()) -> None:
        """Know the registered worlds and `further` ones.

        Args:
            further: `MODULE:ID`s.
            options: `WORLD:KEY=VALUE`s; whether a world takes its own is found out by making one.

        Raises:
            ValueError: when there is no such world or option.
            gymnasium.error.DependencyNotInstalled: when the extra of a world with options is missing.
        """
        self._specs = {world.id: world.id for world in WORLDS} | {find_spec(world).id: world for world in further}
        self._ids = {spec: world for world, spec in self._specs.items()} | {world: world for world in self._specs}
        self._defaults = self._read(options)
        self._offers: dict[str, _Offer] = {}
        self._missing: dict[str, str | None] = {}

    async def spec(self, world: str, options: Mapping[str, Any], own: Mapping[str, Any]) -> WorldSpec:
        """What is to be made: with the server's options for all, a client's `options`, and those of its `own` for this.

        Raises:
            Refusal: when there is no such world, or a client may not set one of the options.
        """
        known = self._ids.get(world)
        if known is None:
            near = difflib.get_close_matches(world, self._specs, n=1, cutoff=0.4)
            hint = f" Did you mean {near[0]}?" if near else ""
            raise Refusal(
                404, "unknown_world", f"There is no world {world!r} here.{hint} There are: {', '.join(self._specs)}."
            )
        try:
            if known not in self._offers:  # a world's module is imported, which may take a while
                self._offers[known] = await asyncio.to_thread(_offer, self._specs[known])
        except (DependencyNotInstalled, ImportError) as error:
            raise Refusal(404, "unknown_world", f"{known} isn't installed on this server: {error}") from error
        _check(known, self._offers[known], options)
        return WorldSpec(self._specs[known], {**self._defaults.get(known, {}), **options, **own})

    async def seen(self) -> list[WorldSeen]:
        """The worlds, and what is missing where one can't be made."""
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
        """The options by world."""
        read: dict[str, dict[str, Any]] = {}
        for option in options:
            world, colon, pair = option.partition(":")
            known = self._ids.get(full_id(world))
            if not colon or known is None:
                raise ValueError(
                    f"--option {redacted_option(option)} is not of the form WORLD:KEY=VALUE with one of the worlds "
                    f"that are served: {', '.join(self._specs)}."
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
    except Exception:  # noqa: BLE001 - it is installed; who makes one hears what is wrong with it
        return None
    return None


def _check(world: str, offer: _Offer, options: Mapping[str, Any]) -> None:
    allowed = offer.options | _ALWAYS
    if wrong := sorted(options.keys() - allowed):
        raise Refusal(
            422,
            "invalid",
            f"A client of {world} can't set {', '.join(wrong)}; it may set {', '.join(sorted(allowed))}.",
        )
    mode, turns = options.get("render_mode"), options.get("max_episode_steps")
    if mode is not None and mode not in offer.render_modes:
        raise Refusal(
            422, "invalid", f"{world} has no render_mode {mode!r}; it has {', '.join(offer.render_modes)}, or null."
        )
    if turns is not None and (isinstance(turns, bool) or not isinstance(turns, int) or turns < 1):
        raise Refusal(422, "invalid", f"max_episode_steps is a whole number from 1, not {turns!r}.")
