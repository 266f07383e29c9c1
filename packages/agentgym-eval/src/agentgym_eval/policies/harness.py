"""Harnesses: agents of other programs that play whole episodes with the model of a policy.

The gateway that they call comes with agentgym-trainer, through an entry point. Light imports only: these are flags.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.metadata import entry_points
from typing import TYPE_CHECKING, Any

from agentgym_eval.util.errors import UsageError

if TYPE_CHECKING:
    from agentgym_envs import Episode, EpisodeSpec, ReplyWrapper, WorldSpec

GROUP = "agentgym.episode_players"
"""Entry points of packages that play whole episodes. `harness` is called with `HarnessSettings`, and returns a
`PlayerFactory`."""
_WITHOUT_MODEL = ("oracle", "random", "scripted")


class EpisodePlayer(ABC):
    """Plays whole episodes by itself, with the model of a policy. All coroutines run in one event loop."""

    @abstractmethod
    async def play(self, env: ReplyWrapper, made: WorldSpec, spec: EpisodeSpec, horizon: int | None) -> Episode:
        """Play an episode.

        Args:
            env: A local instance of the environment, which has the tasks.
            made: The environment's id and options.
            spec: What is played; it names its task.
            horizon: Maximum number of replies; None leaves it to the harness.

        Raises:
            Exception: any exception ends everything that is being played.
        """

    @abstractmethod
    async def close(self) -> None:
        """Free all resources but the policy. May be called twice."""


PlayerFactory = Callable[..., EpisodePlayer]
"""Builds an `EpisodePlayer`: `factory(policy, temperature=..., max_tokens=...)`."""


@dataclass(frozen=True, kw_only=True)
class HarnessSettings:
    """An agent of another program that plays the episodes, instead of the environment's agent."""

    harness: str = ""
    """Function that plays the episodes, as MODULE:NAME or an entry point of the group `agentgym.harnesses`, instead of
    the environment's agent: it gets a task and the address of an OpenAI-compatible endpoint for the policy's model, and
    returns a reward. It needs agentgym-trainer."""
    harness_command: str = ""
    """Command that does the same in a process of its own, with OPENAI_BASE_URL and OPENAI_API_KEY in its environment
    and the task as JSON on its standard input. The last line that it prints is the reward."""
    harness_timeout: float = 600.0
    """Seconds after which an episode of a harness has failed."""

    def __post_init__(self) -> None:
        if self.harness and self.harness_command:
            raise UsageError("A run has one harness: give --harness or --harness-command, not both.")
        if not 0 < self.harness_timeout < math.inf:
            raise UsageError(f"--harness-timeout must be finite and above 0, not {self.harness_timeout:g}.")

    @property
    def name(self) -> str:
        """The harness or its command; empty without one."""
        return self.harness or self.harness_command

    def identity(self) -> dict[str, Any]:
        """Return the settings that determine the episodes; empty without a harness."""
        given = {"harness": self.harness, "harness_command": self.harness_command}
        return {name: value for name, value in given.items() if value}

    def check(self, policy: str, of_agent: Sequence[str]) -> None:
        """Check settings that a harness excludes.

        Args:
            policy: Name of the policy.
            of_agent: The given flags of the environment's own agent.

        Raises:
            UsageError: for a policy without a model, and for settings of the environment's own agent.
        """
        if not self.name:
            return
        if policy.partition(":")[0] in _WITHOUT_MODEL:
            raise UsageError(
                f"The policy {policy} has no model that the harness {self.name} could call. Give --policy hf:PATH, "
                "vllm:PATH or openai:MODEL."
            )
        if of_agent:
            raise UsageError(
                f"The harness {self.name} is an agent of its own, so these don't apply; leave them out: "
                f"{', '.join(of_agent)}."
            )


def find_player(settings: HarnessSettings) -> PlayerFactory | None:
    """Return the factory of what plays the episodes with the harness; None if there is none.

    Raises:
        UsageError: if agentgym-trainer isn't installed, or there is no such harness.
    """
    if not settings.name:
        return None
    for entry in entry_points(group=GROUP, name="harness"):
        return entry.load()(settings)
    from agentgym_envs.util.installation import install

    raise UsageError(
        f"The gateway for the harness {settings.name} comes with agentgym-trainer, which is not installed here: "
        f"{install('agentgym-trainer')}"
    )
