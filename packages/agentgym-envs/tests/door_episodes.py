"""Episodes of `Door` with habits, and their turns in short."""

from __future__ import annotations

import itertools
from typing import Any

import gymnasium
from agentgym_envs import Episode, EpisodeSpec, play
from agentgym_envs.agents.agent import Agent
from recording_policy import RecordingPolicy


def play_door(
    env: gymnasium.Env[str, str], habits: str, policy: RecordingPolicy, knocks: int = 3, **options: Any
) -> Episode:
    return play(Agent.parse(f"bare{habits}").wrap(env), policy, EpisodeSpec(f"door/train/{knocks}"), **options)


def kinds(episode: Episode) -> str:
    """Return the first letters of the kinds of turns, with a bar between trials."""
    trials = itertools.groupby(episode.turns, lambda turn: turn.trial)
    return "|".join("".join(turn.kind[0] for turn in turns) for _, turns in trials)


def opens_too_early(failures: int) -> RecordingPolicy:
    """Return a policy that knocks once and opens, but opens without knocking in the first `failures` trials."""
    trials = iter([*["open"] * failures, *["knock", "open"] * 9])
    return RecordingPolicy(lambda context: next(trials))
