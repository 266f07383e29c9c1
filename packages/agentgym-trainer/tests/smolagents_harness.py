"""A harness as users of smolagents write it: an agent of the package, with the environment as its tool."""

from __future__ import annotations

from typing import Any

from agentgym_envs import make, text_env
from agentgym_trainer.gateway.harness import HarnessTask, Outcome
from smolagents import OpenAIModel, ToolCallingAgent, tool


def play(task: HarnessTask, base_url: str, api_key: str) -> Outcome:
    """Play an episode of any text environment."""
    env = make(task.env, **task.options)
    observation, info = env.reset(seed=task.seed, options={"task": task.id})
    last: list[dict[str, Any]] = [info]

    @tool
    def act(action: str) -> str:
        """Take an action in the environment, and return what happens.

        Args:
            action: The action.
        """
        observation, _, _, _, info = env.step(action)
        last.append(info)
        return observation

    model = OpenAIModel("any", api_base=base_url, api_key=api_key)
    agent = ToolCallingAgent([act], model, max_steps=60, verbosity_level=-1)
    agent.run(f"{text_env(env).instructions}\n\n{observation}")
    env.close()
    return Outcome(last[-1]["score"], last[-1]["success"])
