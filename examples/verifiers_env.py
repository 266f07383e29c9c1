r"""An environment as a taskset and environment of verifiers (0.4), for `vf-eval` and prime-rl.

verifiers conflicts with the extra `webarena-verified`, so install it in a separate virtual environment:
    uv pip install "agentgym-envs[textcraft]" verifiers
Then, in the folder of this file, play 20 test tasks with a model behind an OpenAI-compatible endpoint:
    PYTHONPATH=. vf-eval verifiers_env --env.taskset.world textcraft -n 20 --no-push \
        --env.player.harness.id null --env.player.runtime.type subprocess \
        --model MODEL --client.base-url http://127.0.0.1:8000/v1 --client.api-key-var OPENAI_API_KEY
"""

from collections.abc import Iterator
from typing import Any, Literal

import verifiers.v1 as vf
from agentgym_envs import ReAct, make, text_env
from agentgym_envs.core.registration import full_id
from pydantic import Field


class AgentGymConfig(vf.TasksetConfig):
    """`--env.taskset.world` and so on."""

    world: str = "textcraft"
    split: Literal["train", "dev", "test"] = "test"
    options: dict[str, Any] = Field(default_factory=dict)


class AgentGymData(vf.TaskData):
    """The data of a task: environment, options and task id."""

    info: dict[str, Any]


class AgentGymTask(vf.Task[AgentGymData, vf.State, vf.TaskConfig]):
    """A task of an environment."""


class AgentGymEnvConfig(vf.EnvConfig):
    """Settings of the only agent, which plays the task."""

    player: vf.AgentConfig = vf.AgentConfig()


class AgentGymEnv(vf.Env[AgentGymEnvConfig]):
    """Observations are user messages; the score of the episode is its reward."""

    async def run(self, task: AgentGymTask, agents: vf.Agents) -> None:
        """Play one episode. An `EnvFault` propagates: verifiers then counts the rollout as failed."""
        info = task.data.info
        env = ReAct(make(info["world"], **info["options"]))
        try:
            observation, seen = env.reset(options={"task": info["task"]})
            async with agents.player.interaction(task) as interaction:
                segment = await interaction.turn(observation)
                while not segment.terminated:
                    observation, _, terminated, truncated, seen = env.step(segment.last_reply)
                    if terminated or truncated:
                        break
                    segment = await interaction.turn(observation)
            interaction.trace.record_reward("score", seen["score"], 1.0)
        finally:
            env.close()


class AgentGymTaskset(vf.Taskset[AgentGymTask, AgentGymConfig]):
    """The tasks of a split, in the order of the task set."""

    def load(self) -> Iterator[AgentGymTask]:
        """See `vf.Taskset.load`."""
        world, options = full_id(self.config.world), self.config.options
        env = ReAct(make(world, **options))
        for task in text_env(env).tasks.split(self.config.split).ids:
            info = {"world": world, "options": options, "task": task}
            yield AgentGymTask(
                AgentGymData(name=task, prompt=None, system_prompt=env.instructions, info=info), self.config.task
            )


__all__ = ["AgentGymEnv", "AgentGymEnvConfig", "AgentGymTaskset"]
