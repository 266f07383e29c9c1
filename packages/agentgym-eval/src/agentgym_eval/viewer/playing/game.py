"""A game: one attempt at one task in which each reply comes from a human or a policy.

The game records the conversation like any other episode, so a policy that takes over sees the same conversation as if
it had played from the start. Everything runs on the caller's thread.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from typing import Any

import gymnasium
from agentgym_envs import (
    EnvFault,
    Episode,
    EpisodeSpec,
    LocalSlot,
    OpenEpisode,
    Policy,
    Reply,
    ReplyWrapper,
    StopReason,
    Task,
    TurnContext,
    text_env,
)
from agentgym_envs.episodes.episode import Kind
from agentgym_envs.episodes.play import run_without_loop
from agentgym_envs.episodes.policy import estimate_tokens

from agentgym_eval.runs.environments import choose_tasks, open_world
from agentgym_eval.runs.settings import PlaySettings
from agentgym_eval.util.errors import UsageError
from agentgym_eval.viewer.index.runs import HUMAN


@dataclass(frozen=True, slots=True)
class GameState:
    """A snapshot of a game."""

    episode: Episode
    """The episode so far; while the game is in progress, as if it were truncated here."""
    replied_by: tuple[str, ...]
    """The author of each turn's reply: `human` or the name of a policy."""
    over: bool
    reply_kind: Kind
    """The kind of the next reply."""
    prompt: str
    """The message that the next reply answers: the observation, or a question of the agent's scaffold."""
    allows_thought: bool
    """Whether the reply format has a place for a thought in addition to the action."""
    available_actions: tuple[str, ...]
    """The actions available now; empty if the environment can't list them."""
    scene: dict[str, Any] | None
    """The state of the environment as a drawing, see `TextEnv.scene`."""


class Game:
    """One attempt at one task. It ends through the environment, a limit or `leave`, and then closes its environment."""

    def __init__(self, settings: PlaySettings) -> None:
        """Build the environment and begin the task.

        Args:
            settings: Environment, task (its id, or its index in the split) and agent. Without a task, a random one is
                drawn.

        Raises:
            UsageError: if the environment, task or agent doesn't exist, or a dependency isn't installed.
            EnvFault: if the environment fails to start.
        """
        self._env = open_world(settings)
        try:
            self._task = _task(self._env, settings)
            spec = EpisodeSpec(self._task.id, 0, settings.seed, self._task.split)
            self._open = OpenEpisode(LocalSlot(self._env), spec, with_env=True)
            run_without_loop(self._open.begin())
            self._request = self._next_request()
        except BaseException as error:
            self._env.close()
            if isinstance(error, ValueError | OSError | gymnasium.error.Error):
                raise UsageError(str(error)) from error
            raise
        self._replied_by: list[str] = []
        self._scene = text_env(self._env).scene()
        self._end: tuple[StopReason, str | None] | None = None

    @property
    def key(self) -> int:
        """The key that identifies this episode in all its requests to a policy."""
        return self._open.recorder.key

    @property
    def over(self) -> bool:
        """Whether the game has ended."""
        return self._end is not None

    def state(self) -> GameState:
        """Return the current state."""
        stop, error = self._end or ("truncated", None)
        policy = "+".join(dict.fromkeys(self._replied_by)) or HUMAN
        episode = self._open.recorder.episode(self._task, policy, stop, error)
        return GameState(
            episode=episode,
            replied_by=tuple(self._replied_by[: len(episode.turns)]),
            over=self.over,
            reply_kind=self._request.kind,
            prompt=self._request.conversation[-1].content,
            allows_thought=self._env.thinks,
            available_actions=tuple(self._request.info["available_actions"] or ()),
            scene=self._scene,
        )

    def reply(self, text: str, thought: str = "") -> None:
        """Play the human's reply: an action with an optional thought or, for other kinds of turns, free text."""
        self._check_in_progress()
        formatted = self._env.format(text, thought) if self._request.kind == "act" else text
        self._send(Reply(formatted), HUMAN)

    async def reply_with(self, policy: Policy) -> None:
        """Play one reply of a policy. If the policy raises, the game is unchanged.

        Raises:
            Exception: any exception of the policy.
        """
        self._check_in_progress()
        self._send(await policy.reply(self._request), policy.name)

    def leave(self) -> None:
        """End the game as truncated."""
        if self._end is None:
            self._finish("truncated")

    def _check_in_progress(self) -> None:
        if self.over:
            raise UsageError("This game is over; start another one.")

    def _send(self, reply: Reply, author: str) -> None:
        self._replied_by.append(author)
        try:
            stop = run_without_loop(self._open.submit(reply))
        except EnvFault as fault:
            self._finish("failed", f"{type(fault).__name__}: {fault}")
            return
        self._scene = text_env(self._env).scene()
        if stop is None:
            self._request = self._next_request()
        else:
            self._finish(stop)

    def _next_request(self) -> TurnContext:
        self._open.recorder.limit_context(estimate_tokens)
        return self._open.context

    def _finish(self, stop: StopReason, error: str | None = None) -> None:
        self._end = (stop, error)
        self._env.close()


def _task(env: ReplyWrapper, settings: PlaySettings) -> Task:
    requested = next(iter(settings.task), "")
    if requested and not requested.isdecimal():
        return choose_tasks(env, settings)[0]
    tasks = text_env(env).tasks.split(settings.split)
    if not tasks:
        raise UsageError(f"{settings.env} has no {settings.split} tasks with these options; choose another split.")
    index = int(requested) if requested else secrets.randbelow(len(tasks))
    if index >= len(tasks):
        raise UsageError(
            f"{settings.env} has {len(tasks)} {settings.split} tasks, numbered from 0; there is no task {index}."
        )
    return tasks[index]
