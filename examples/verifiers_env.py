r"""A world as a taskset and environment of verifiers (0.4), for `vf-eval` and prime-rl.

verifiers can't be installed beside the extra `webarena-verified`, so it wants an environment of its own:
    uv pip install "agentgym-envs[textcraft]" verifiers
Then, in the folder of this file, 20 test tasks, played by a model behind an endpoint that speaks OpenAI's protocol:
    PYTHONPATH=. vf-eval verifiers_env --env.taskset.world textcraft -n 20 --no-push \
        --env.player.harness.id null --env.player.runtime.type subprocess \
        --model MODEL --client.base-url http://127.0.0.1:8000/v1 --client.api-key-var OPENAI_API_KEY
"""

from collections.abc import Iterator
from typing import Any, Literal

import verifiers.v1 as vf
from agentgym_envs import ReAct, make, text_env
from agentgym_envs.core.registry import full_id
from pydantic import Field


class AgentGymConfig(vf.TasksetConfig):
    """`--env.taskset.world` and so on."""

    world: str = "textcraft"
    split: Literal["train", "dev", "test"] = "test"
    options: dict[str, Any] = Field(default_factory=dict)


class AgentGymData(vf.TaskData):
    """What the environment plays a task by."""

    info: dict[str, Any]


class AgentGymTask(vf.Task[AgentGymData, vf.State, vf.TaskConfig]):
    """A task of a world."""


class AgentGymEnvConfig(vf.EnvConfig):
    """One seat, at the world."""

    player: vf.AgentConfig = vf.AgentConfig()


class AgentGymEnv(vf.Env[AgentGymEnvConfig]):
    """The world speaks as the user; the score of the episode is its reward."""

    async def run(self, task: AgentGymTask, agents: vf.Agents) -> None:
        """One episode. An `EnvFault` passes: verifiers then counts the rollout as failed."""
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
    """The tasks of a split, in the set's order."""

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
