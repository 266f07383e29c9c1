"""A world as an environment of SkyRL-gym: `init` gives a conversation, `step` takes a reply.

Register it once, where SkyRL trains:
`skyrl_gym.register(id="agentgym", entry_point="agentgym_envs.adapters.skyrl:SkyRLWorld")`.
A row of the dataset then has `env_class: agentgym`, the `world` and its `task`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gymnasium.error import DependencyNotInstalled

from agentgym_envs.agents.agent import Agent
from agentgym_envs.core.action_schema import described
from agentgym_envs.core.registry import full_id
from agentgym_envs.pool.calls import WorldSpec
from agentgym_envs.util.installation import install

try:
    from skyrl_gym.envs.base_text_env import BaseTextEnv, BaseTextEnvStepOutput, ConversationType
except ModuleNotFoundError as missing:
    raise DependencyNotInstalled(f"SkyRL's environments need its package: {install('skyrl-gym')}") from missing


class SkyRLWorld(BaseTextEnv):
    """One episode of one task. An `EnvFault` passes: SkyRL then counts the trajectory as failed.

    Args:
        env_config: What `environment.skyrl_gym.agentgym` holds in SkyRL's configuration; its keys are those of a row.
        extras: The row: `world` (id or short name), and if they are there `task` (else one of `split` is drawn),
            `split`, `seed`, `agent` (form of the replies, without habits: `react` unless the row says otherwise),
            `options` of the world, and SkyRL's `max_turns`. Other columns are SkyRL's own.

    Raises:
        ValueError: for a row without a world, or whose world, options or agent don't exist.
    """

    def __init__(self, env_config: Mapping[str, Any] | None = None, extras: Mapping[str, Any] | None = None) -> None:
        super().__init__()
        row: dict[str, Any] = {**(env_config or {}), **(extras or {})}
        if "world" not in row:
            raise ValueError("A row for SkyRLWorld names its 'world', such as textcraft.")
        options = dict(row.get("options") or {})
        if row.get("max_turns"):
            options["max_episode_steps"] = self.max_turns = int(row["max_turns"])
        agent = Agent.parse(row.get("agent") or "react")
        if str(agent) != agent.reply_format:
            raise ValueError(
                f"SkyRL keeps the conversation itself, so the agent has no habits: {agent.reply_format}, not {agent}."
            )
        self._env = agent.wrap(WorldSpec(full_id(row["world"]), options).build())
        self._reset = {"task": row.get("task"), "split": row.get("split") or "train"}
        self._seed: int | None = row.get("seed")
        self._info: dict[str, Any] = {}

    def init(self, prompt: ConversationType) -> tuple[ConversationType, dict[str, Any]]:
        """Begin the task.

        Returns:
            The conversation so far, and `info`. `prompt` stands at its beginning; without a system message in it, the
            world's instructions with the form of a reply do.

        Raises:
            ValueError, KeyError, EnvFault: as the world's `reset`.
        """
        observation, self._info = self._env.reset(seed=self._seed, options=self._reset)
        told = self._env.instructions
        if self._env.tools:
            told = f"{told}\n\n{described(self._env.tools)}"
        system = [] if any(part["role"] == "system" for part in prompt) else [{"role": "system", "content": told}]
        return [*system, *prompt, {"role": "user", "content": observation}], self._info

    def step(self, action: str) -> BaseTextEnvStepOutput:
        """Play the action in a reply. See `ReplyWrapper.step`.

        Raises:
            EnvFault: when the world broke.
        """
        self.turns += 1
        observation, reward, terminated, truncated, self._info = self._env.step(action)
        over = terminated or truncated
        return BaseTextEnvStepOutput(
            observations=[] if over else [{"role": "user", "content": observation}],
            reward=float(reward),
            done=over,
            metadata=self._info,
            postprocessed_action=None,
        )

    def get_metrics(self) -> dict[str, Any]:
        """Score and success of the episode, and its turns; SkyRL averages them."""
        score, success = self._info.get("score", 0.0), float(self._info.get("success", False))
        return {"score": score, "success": success, "turns": self.turns}

    def close(self) -> None:
        """Close the world. May be called twice."""
        self._env.close()
