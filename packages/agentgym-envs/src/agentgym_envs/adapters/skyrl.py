"""A SkyRL-gym environment: `init` returns a conversation, `step` takes a reply.

Register it once in the SkyRL training script:
`skyrl_gym.register(id="agentgym", entry_point="agentgym_envs.adapters.skyrl:SkyRLWorld")`.
A row of the dataset then has `env_class: agentgym`, the `world` and its `task`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gymnasium.error import DependencyNotInstalled

from agentgym_envs.agents.agent import Agent
from agentgym_envs.core.action_schema import described
from agentgym_envs.pool.calls import WorldSpec
from agentgym_envs.util.installation import install

try:
    from skyrl_gym.envs.base_text_env import BaseTextEnv, BaseTextEnvStepOutput, ConversationType
except ModuleNotFoundError as missing:
    raise DependencyNotInstalled(
        f"The SkyRL adapter needs the package skyrl-gym. Install it: {install('skyrl-gym')}"
    ) from missing


class SkyRLWorld(BaseTextEnv):
    """One episode of one task. `EnvFault` propagates, so that SkyRL counts the trajectory as failed.

    Args:
        env_config: The values of `environment.skyrl_gym.agentgym` in SkyRL's configuration, with the keys of a row.
        extras: The row: `world` (id or short name), and optionally `task` (by default drawn from `split`), `split`,
            `seed`, `agent` (a reply format without habits, `react` by default), `options` of the environment, and
            SkyRL's `max_turns`. Other columns belong to SkyRL.

    Raises:
        ValueError: if the row has no `world`, or its environment, options or agent don't exist.
    """

    def __init__(self, env_config: Mapping[str, Any] | None = None, extras: Mapping[str, Any] | None = None) -> None:
        super().__init__()
        row: dict[str, Any] = {**(env_config or {}), **(extras or {})}
        if "world" not in row:
            raise ValueError("A row for SkyRLWorld must have a 'world', such as textcraft.")
        options = dict(row.get("options") or {})
        if row.get("max_turns"):
            options["max_episode_steps"] = self.max_turns = int(row["max_turns"])
        agent = Agent.parse(row.get("agent") or "react")
        if str(agent) != agent.reply_format:
            raise ValueError(
                "SkyRL manages the conversation itself, so the agent can't have habits. "
                f"Use {agent.reply_format}, not {agent}."
            )
        self._env = agent.wrap(WorldSpec(row["world"], options).build())
        self._reset = {"task": row.get("task"), "split": row.get("split") or "train"}
        self._seed: int | None = row.get("seed")
        self._info: dict[str, Any] = {}

    def init(self, prompt: ConversationType) -> tuple[ConversationType, dict[str, Any]]:
        """Start the task.

        Returns:
            The conversation so far, and `info`. The conversation begins with `prompt`, preceded by the instructions of
            environment and reply format unless `prompt` contains a system message.

        Raises:
            ValueError, KeyError, EnvFault: as the environment's `reset`.
        """
        observation, self._info = self._env.reset(seed=self._seed, options=self._reset)
        instructions = self._env.instructions
        if self._env.tools:
            instructions = f"{instructions}\n\n{described(self._env.tools)}"
        has_system = any(message["role"] == "system" for message in prompt)
        system = [] if has_system else [{"role": "system", "content": instructions}]
        return [*system, *prompt, {"role": "user", "content": observation}], self._info

    def step(self, action: str) -> BaseTextEnvStepOutput:
        """Play the action in a reply. See `ReplyWrapper.step`.

        Raises:
            EnvFault: if the environment broke.
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
        """Return score, success and number of turns of the episode, over which SkyRL averages."""
        score, success = self._info.get("score", 0.0), float(self._info.get("success", False))
        return {"score": score, "success": success, "turns": self.turns}

    def close(self) -> None:
        """Close the environment. May be called twice."""
        self._env.close()
