"""The request and response formats of AgentGym's servers.

They differ in the fields for environment and task numbers, in how to extract the action from a client's text, and in
the payloads. Rewards and scores are those of agentgym-envs, in AgentGym's unit.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from agentgym_envs.core.text_env import Malformed
from agentgym_envs.pool import Result
from agentgym_envs.server.agentgym.environments import Environment, Numbering

_FENCE = "```"


class Protocol:
    """The common protocol, used by BabyAI."""

    name: ClassVar[str] = "babyai"
    environment: ClassVar[str] = "id"
    """Name of the field with the environment number."""
    task: ClassVar[str] = "data_idx"
    """Name of the field with the task number."""
    closed: ClassVar[object] = True
    """Response of `close`."""
    create_starts_episode: ClassVar[bool] = False
    """Whether `create` starts an episode and returns the first observation."""
    unit: ClassVar[float] = 1.0
    """AgentGym's value of a score of 1."""

    def options(self, numbering: Numbering, task: str | None) -> Mapping[str, Any]:
        """Return the environment's options. AgentGym's BabyAI discounts the success reward by time, like Minigrid."""
        return {"time_discount": True}

    def action(self, sent: str) -> str:
        """Extract the action from a client's text. Most clients send just the action."""
        return sent

    def created(self, environment: Environment) -> object:
        """Return the response of `create`."""
        return {self.environment: environment.number}

    def began(self, environment: Environment, first: Result) -> object:
        """Return the response of `reset`."""
        return {**self._outcome(first), "deleted": False}

    def stepped(self, result: Result) -> object:
        """Return the response of `step`."""
        return self._outcome(result)

    def observed(self, environment: Environment, last: Result) -> object:
        """Return the response of `observation`."""
        return self._outcome(last)

    def _outcome(self, result: Result) -> dict[str, Any]:
        return {
            "observation": result.observation,
            "reward": self.unit * result.reward,
            "score": self.unit * result.info["score"],
            "done": result.over,
        }


class TextCraft(Protocol):
    """TextCraft's protocol: responses have no score, and `create` starts an episode."""

    name = "textcraft"
    create_starts_episode = True

    def options(self, numbering: Numbering, task: str | None) -> Mapping[str, Any]:
        """Return no options."""
        return {}

    def created(self, environment: Environment) -> object:
        """Return the environment number and the first observation of the split's first task."""
        assert environment.first is not None, "`create` starts an episode"
        return self.began(environment, environment.first)

    def began(self, environment: Environment, first: Result) -> object:
        """Return the environment number and the first observation."""
        return {"id": environment.number, **self._outcome(first)}

    def observed(self, environment: Environment, last: Result) -> object:
        """Return the observation text."""
        return last.observation

    def _outcome(self, result: Result) -> dict[str, Any]:
        return {"observation": result.observation, "reward": result.reward, "done": result.over}


class SciWorld(Protocol):
    """SciWorld's protocol: scores go up to 100, and `reset` returns the task description separately."""

    name = "sciworld"
    unit = 100.0

    def options(self, numbering: Numbering, task: str | None) -> Mapping[str, Any]:
        """Return no options; AgentGym uses no simplifications either."""
        return {}

    def began(self, environment: Environment, first: Result) -> object:
        """Return the first line as task description, which the client puts before the rest again."""
        _, _, name, variation = first.info["task_id"].split("/")
        description, _, room = first.observation.partition("\n")
        return {
            **self._outcome(first),
            "task_name": name,
            "var_num": int(variation),
            "task_description": description,
            "observation": room,
            "deleted": False,
        }

    def observed(self, environment: Environment, last: Result) -> object:
        """Return the observation text."""
        return last.observation


class SearchQA(Protocol):
    """SearchQA's protocol: some responses are bare values, and clients send complete replies."""

    name = "searchqa"
    environment = "env_idx"
    task = "id"

    def options(self, numbering: Numbering, task: str | None) -> Mapping[str, Any]:
        """Return the published data set of the question; without a task, none, which selects the almanac."""
        return {} if task is None else {"dataset": task.split("/")[2]}

    def action(self, sent: str) -> str:
        """Extract the first `<search>` or `<answer>` element."""
        spans: list[tuple[int, int]] = []
        for tag in ("search", "answer"):
            begin = sent.find(f"<{tag}>")
            end = sent.find(closing := f"</{tag}>", begin)
            if 0 <= begin < end:
                spans.append((begin, end + len(closing)))
        return sent[slice(*min(spans))] if spans else sent

    def created(self, environment: Environment) -> object:
        """Return the environment number."""
        return environment.number

    def began(self, environment: Environment, first: Result) -> object:
        """Return the instructions and the question."""
        return f"{environment.session.instructions}\n\n{first.observation}"

    def stepped(self, result: Result) -> object:
        """Return the response of `step`, which has no score and no info."""
        return {"observation": result.observation, "reward": result.reward, "done": result.over, "info": None}

    def observed(self, environment: Environment, last: Result) -> object:
        """Return the instructions and the question, even in the middle of an episode."""
        return self.began(environment, environment.first or last)


class WebArena(Protocol):
    """WebArena's protocol: `terminated` and `truncated` are separate, and clients send complete replies."""

    name = "webarena"
    environment = "env_idx"
    task = "idx"
    closed: ClassVar[object] = {"closed": "closed"}

    def options(self, numbering: Numbering, task: str | None) -> Mapping[str, Any]:
        """Return the task set: WebArena's real sites for AgentGym's numbers, else the embedded sites."""
        return {"task_set": "webarena"} if numbering is None else {}

    def action(self, sent: str) -> str:
        """Extract the text between the first two code fences."""
        action, closed, _ = sent.partition(_FENCE)[2].partition(_FENCE)
        if not closed:
            return Malformed(sent, f"There was no action in your answer. Write one between {_FENCE} and {_FENCE}.")
        return action.strip()

    def began(self, environment: Environment, first: Result) -> object:
        """Return the page. Clients then request the observation, which is the same."""
        return {"observation": first.observation}

    def stepped(self, result: Result) -> object:
        """Return the response of `step`, with `terminated` and `truncated`."""
        return {
            "observation": result.observation,
            "reward": result.reward,
            "terminated": result.terminated,
            "truncated": result.truncated,
            "info": result.info["raw"],
        }

    def observed(self, environment: Environment, last: Result) -> object:
        """Return the observation text."""
        return last.observation


PROTOCOLS: tuple[Protocol, ...] = (Protocol(), TextCraft(), SciWorld(), SearchQA(), WebArena())
"""One protocol for each environment that AgentGym and agentgym-envs share."""
