"""A game: one attempt at one task, in which each reply is given by whoever is asked, a person or a policy.

It keeps the conversation as any episode does, so that a policy goes on from there as if it had played from the start.
All of it happens on the caller's thread; knows neither pages nor threads.
"""

from __future__ import annotations

import secrets
from collections.abc import Generator
from dataclasses import dataclass
from typing import Any

import gymnasium
from agentgym_envs import (
    EnvFault,
    Episode,
    EpisodeSpec,
    Player,
    Policy,
    Reply,
    ReplyWrapper,
    StopReason,
    Task,
    WorldSeat,
    text_env,
)
from agentgym_envs.episodes.episode import Kind
from agentgym_envs.episodes.play import seats
from agentgym_envs.episodes.recorder import EpisodeRecorder

from agentgym_eval.runs.environments import choose_tasks, open_world
from agentgym_eval.runs.settings import PlaySettings
from agentgym_eval.util.errors import UsageError
from agentgym_eval.viewer.index.runs import HUMAN


@dataclass(frozen=True, slots=True)
class Standing:
    """Where a game stands."""

    episode: Episode
    """What was played so far; while the game goes on, as if it were left here."""
    by: tuple[str, ...]
    """Who gave the reply of each turn."""
    over: bool
    wants: Kind
    """What the next reply is for."""
    asked: str
    """The message that the next reply answers: what the world shows, and what else the agent is asked."""
    thinks: bool
    """Whether there is room for a thought beside an action."""
    actions: tuple[str, ...]
    """Those that make sense now; none where the world can't list them."""
    scene: dict[str, Any] | None
    """What the world looks like, see `TextEnv.scene`."""


class Game:
    """Begins when it is made, ends by the world, a limit or `leave`, and then holds no world any more."""

    def __init__(self, settings: PlaySettings) -> None:
        """Build the world and begin the task.

        Args:
            settings: World, task (its id or its number in the split, from 0) and agent. Without a task one is drawn.

        Raises:
            UsageError: when there is no such world, task or agent, or what the world needs isn't installed.
            EnvFault: when the world can't be brought up.
        """
        self._env = open_world(settings)
        try:
            self._task = _task(self._env, settings)
            job = EpisodeSpec(self._task.id, 0, settings.seed, self._task.split)
            self._attempt = EpisodeRecorder(job, None, self._env.agent, turns=self._env.turns_told())
            self._moves: Generator[WorldSeat, Reply | EnvFault, StopReason] = seats(self._env, job, self._attempt)
            self._seat = next(self._moves)
        except BaseException as error:
            self._env.close()
            if isinstance(error, ValueError | OSError | gymnasium.error.Error):
                raise UsageError(str(error)) from error
            raise
        self._by: list[str] = []
        self._scene = text_env(self._env).scene()
        self._end: tuple[StopReason, str | None] | None = None

    @property
    def key(self) -> int:
        """The key of all its seats."""
        return self._attempt.key

    @property
    def over(self) -> bool:
        """Whether it has ended."""
        return self._end is not None

    def standing(self) -> Standing:
        """Where it stands now."""
        stop, error = self._end or ("truncated", None)
        who = "+".join(dict.fromkeys(self._by)) or HUMAN
        episode = self._attempt.episode(self._task, who, stop, error)
        return Standing(
            episode=episode,
            by=tuple(self._by[: len(episode.turns)]),
            over=self.over,
            wants=self._seat.kind,
            asked=self._seat.conversation[-1].content,
            thinks=self._env.thinks,
            actions=tuple(self._seat.info["available_actions"] or ()),
            scene=self._scene,
        )

    def say(self, text: str, thought: str = "") -> None:
        """The person's turn: an action with a thought or, where something else is asked for, the answer."""
        self._check()
        said = self._env.format(text, thought) if self._seat.kind == "act" else text
        self._send(Reply(said), HUMAN)

    async def ask(self, player: Policy | Player) -> None:
        """The turn of a policy.

        Raises:
            EnvFault: when it broke; the game stands where it stood.
            Exception: whatever else it raises; the same.
        """
        self._check()
        reply = await player.reply(self._seat) if isinstance(player, Player) else player.reply([self._seat])[0]
        if isinstance(reply, EnvFault):
            raise reply
        self._send(reply, player.name)

    def leave(self) -> None:
        """End it here: a limit ended it, the person's patience."""
        if self._end is None:
            self._moves.close()
            self._ended("truncated")

    def _check(self) -> None:
        if self.over:
            raise UsageError("This game is over; begin another one.")

    def _send(self, reply: Reply, who: str) -> None:
        self._by.append(who)
        try:
            self._seat = self._moves.send(reply)
            self._scene = text_env(self._env).scene()
        except StopIteration as end:
            self._scene = text_env(self._env).scene()
            self._ended(end.value)
        except EnvFault as fault:
            self._ended("failed", f"{type(fault).__name__}: {fault}")

    def _ended(self, stop: StopReason, error: str | None = None) -> None:
        self._end = (stop, error)
        self._env.close()


def _task(env: ReplyWrapper, settings: PlaySettings) -> Task:
    asked = next(iter(settings.task), "")
    if asked and not asked.isdecimal():
        return choose_tasks(env, settings)[0]
    tasks = text_env(env).tasks.split(settings.split)
    if not tasks:
        raise UsageError(f"{settings.env} has no {settings.split} tasks under these options; choose another split.")
    number = int(asked) if asked else secrets.randbelow(len(tasks))
    if number >= len(tasks):
        raise UsageError(f"{settings.env} has {len(tasks)} {settings.split} tasks, from 0; there is no {number}.")
    return tasks[number]
