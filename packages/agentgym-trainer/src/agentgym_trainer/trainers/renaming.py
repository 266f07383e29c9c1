"""Data augmentation: rename what an episode is about, so that a model must copy names instead of memorizing them.

A small model that sees few goals learns their names by heart and can't act on others. Renaming permutes the names that
an environment declares as interchangeable, in the same way in all texts of an episode and differently in each episode.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache

import numpy as np
from agentgym_envs import Episode, Turn, text_env
from agentgym_eval.util.errors import UsageError

from agentgym_trainer.rollout.environments import OpenEnvironment

_WORD = re.compile(r"\w+")
_RENAMING = 6  # distinguishes the seeds of renaming from those of other uses

Names = tuple[tuple[str, ...], ...]
"""Groups of names that can be exchanged within a group; see `TextEnv.interchangeable_names`."""


def rename_share(
    episodes: Sequence[Episode], worlds: Sequence[OpenEnvironment], share: float, seed: int
) -> list[Episode]:
    """Rename each episode with probability `share`, by a permutation that depends on the seed and its position.

    Raises:
        UsageError: when an environment declares no interchangeable names.
    """
    if not share:
        return list(episodes)
    names = names_by_world(worlds)
    rngs = (np.random.default_rng([seed, _RENAMING, number]) for number in range(len(episodes)))
    return [
        rename(episode, names.get(episode.env, ()), rng) if rng.random() < share else episode
        for episode, rng in zip(episodes, rngs, strict=True)
    ]


def names_by_world(worlds: Sequence[OpenEnvironment]) -> dict[str, Names]:
    """Return the interchangeable names of each environment.

    Raises:
        UsageError: when an environment declares none.
    """
    names = {world.name: text_env(world.wrapped).interchangeable_names() for world in worlds}
    if without := [name for name, groups in names.items() if not groups]:
        raise UsageError(
            f"Episodes of {', '.join(without)} can't be renamed: the environment declares no interchangeable names. "
            "Leave `rename` at 0."
        )
    return names


def rename(episode: Episode, names: Names, rng: np.random.Generator) -> Episode:
    """Return the episode with the names of each group permuted in all texts but the schemas of `tools`; sampled ids
    are dropped.

    Names are matched as whole words, the longest first. A new name begins with a capital, or is in capitals, if the old
    one is.
    """
    if not any(names):
        return episode
    pattern, places = _pattern(names), _places(names)
    orders = [rng.permutation(len(group)) for group in names]

    def new_name(found: re.Match[str]) -> str:
        old = found[0]
        if (place := places.get(old.lower())) is None:
            return old
        group, position = place
        return _like(old, names[group][orders[group][position]])

    def text(before: str) -> str:
        return pattern.sub(new_name, before)

    def optional(before: str | None) -> str | None:
        return None if before is None else text(before)

    def turn(before: Turn) -> Turn:
        reply = before.reply
        renamed = replace(
            reply, text=text(reply.text), reasoning=optional(reply.reasoning), label=optional(reply.label), sample=None
        )
        return replace(before, observation=text(before.observation), reply=renamed, action=optional(before.action))

    return replace(
        episode,
        instructions=text(episode.instructions),
        turns=tuple(map(turn, episode.turns)),
        final_observation=text(episode.final_observation),
    )


@lru_cache(maxsize=16)
def _pattern(names: Names) -> re.Pattern[str]:
    """Return a pattern of names and of other words. Names that are a word aren't listed: there may be thousands."""
    others = (name for group in names for name in group if not _WORD.fullmatch(name))
    longest_first = map(re.escape, sorted(others, key=len, reverse=True))
    return re.compile(rf"(?<!\w)(?:{'|'.join([*longest_first, _WORD.pattern])})(?!\w)", re.IGNORECASE)


@lru_cache(maxsize=16)
def _places(names: Names) -> dict[str, tuple[int, int]]:
    """Return the group of each name, and its position there."""
    return {name: (number, position) for number, group in enumerate(names) for position, name in enumerate(group)}


def _like(old: str, new: str) -> str:
    """Return the new name with the capitals of the old one."""
    if old.isupper() and len(old) > 1:
        return new.upper()
    return new[0].upper() + new[1:] if old[0].isupper() else new
