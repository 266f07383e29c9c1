"""What each of AgentGym's servers takes and answers: which fields name an environment and a task, where the
action is in what a client sends, and the payloads. Rewards and scores are ours, in AgentGym's unit.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from agentgym_envs.core.text_env import Malformed
from agentgym_envs.pool import Result
from agentgym_envs.server.agentgym.environments import Environment, Numbering

_FENCE = "```"


class Protocol:
    """The common form, which is that of BabyAI."""

    name: ClassVar[str] = "babyai"
    environment: ClassVar[str] = "id"
    """The field that has an environment's number."""
    task: ClassVar[str] = "data_idx"
    """The field that has a task's number."""
    closed: ClassVar[object] = True
    """What `close` answers."""
    begins_at_once: ClassVar[bool] = False
    """Whether `create` answers with a first observation already."""
    unit: ClassVar[float] = 1.0
    """What a score of 1 is there."""

    def options(self, numbering: Numbering, task: str | None) -> Mapping[str, Any]:
        """What our world is made with. There success is paid as Minigrid pays it."""
        return {"time_discount": True}

    def action(self, sent: str) -> str:
        """The action in what a client sends: most find it by themselves in a reply."""
        return sent

    def created(self, environment: Environment) -> object:
        """What `create` answers."""
        return {self.environment: environment.number}

    def began(self, environment: Environment, first: Result) -> object:
        """What `reset` answers."""
        return {**self._outcome(first), "deleted": False}

    def stepped(self, result: Result) -> object:
        """What `step` answers."""
        return self._outcome(result)

    def observed(self, environment: Environment, last: Result) -> object:
        """What `observation` answers."""
        return self._outcome(last)

    def _outcome(self, result: Result) -> dict[str, Any]:
        return {
            "observation": result.observation,
            "reward": self.unit * result.reward,
            "score": self.unit * result.info["score"],
            "done": result.over,
        }


class TextCraft(Protocol):
    """There is no score beside the reward, and an environment is created with a task."""

    name = "textcraft"
    begins_at_once = True

    def options(self, numbering: Numbering, task: str | None) -> Mapping[str, Any]:
        """Nothing."""
        return {}

    def created(self, environment: Environment) -> object:
        """The number, and the first task of the split."""
        assert environment.first is not None, "it begins at once"
        return self.began(environment, environment.first)

    def began(self, environment: Environment, first: Result) -> object:
        """The number once more."""
        return {"id": environment.number, **self._outcome(first)}

    def observed(self, environment: Environment, last: Result) -> object:
        """Text alone."""
        return last.observation

    def _outcome(self, result: Result) -> dict[str, Any]:
        return {"observation": result.observation, "reward": result.reward, "done": result.over}


class SciWorld(Protocol):
    """Scores go to 100, and a task begins with its description apart."""

    name = "sciworld"
    unit = 100.0

    def options(self, numbering: Numbering, task: str | None) -> Mapping[str, Any]:
        """Nothing: no simplifications there either."""
        return {}

    def began(self, environment: Environment, first: Result) -> object:
        """What is to be done is our first line, which the client puts before the rest again."""
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
        """Text alone."""
        return last.observation


class SearchQA(Protocol):
    """Payloads are bare where one value is enough, and a client sends whole replies."""

    name = "searchqa"
    environment = "env_idx"
    task = "id"

    def options(self, numbering: Numbering, task: str | None) -> Mapping[str, Any]:
        """The published set that the question is of; without a question, or for our own, the almanac."""
        return {} if task is None else {"dataset": task.split("/")[2]}

    def action(self, sent: str) -> str:
        """The first search or answer."""
        found: list[tuple[int, int]] = []
        for tag in ("search", "answer"):
            begin = sent.find(f"<{tag}>")
            end = sent.find(closing := f"</{tag}>", begin)
            if 0 <= begin < end:
                found.append((begin, end + len(closing)))
        return sent[slice(*min(found))] if found else sent

    def created(self, environment: Environment) -> object:
        """The number."""
        return environment.number

    def began(self, environment: Environment, first: Result) -> object:
        """How to answer, and the question."""
        return f"{environment.session.instructions}\n\n{first.observation}"

    def stepped(self, result: Result) -> object:
        """There is no score, and never any info."""
        return {"observation": result.observation, "reward": result.reward, "done": result.over, "info": None}

    def observed(self, environment: Environment, last: Result) -> object:
        """How to answer and the question, at any time."""
        return self.began(environment, environment.first or last)


class WebArena(Protocol):
    """The two ends are told apart, and a client sends whole replies."""

    name = "webarena"
    environment = "env_idx"
    task = "idx"
    closed: ClassVar[object] = {"closed": "closed"}

    def options(self, numbering: Numbering, task: str | None) -> Mapping[str, Any]:
        """AgentGym's tasks are WebArena's on the real sites, ours are on those that come along."""
        return {"task_set": "webarena"} if numbering is None else {}

    def action(self, sent: str) -> str:
        """What stands between the first two fences."""
        action, closed, _ = sent.partition(_FENCE)[2].partition(_FENCE)
        if not closed:
            return Malformed(sent, f"There was no action in your answer. Write one between {_FENCE} and {_FENCE}.")
        return action.strip()

    def began(self, environment: Environment, first: Result) -> object:
        """The page; clients then ask for the observation, which is the same."""
        return {"observation": first.observation}

    def stepped(self, result: Result) -> object:
        """Both ends."""
        return {
            "observation": result.observation,
            "reward": result.reward,
            "terminated": result.terminated,
            "truncated": result.truncated,
            "info": result.info["raw"],
        }

    def observed(self, environment: Environment, last: Result) -> object:
        """Text alone."""
        return last.observation


PROTOCOLS: tuple[Protocol, ...] = (Protocol(), TextCraft(), SciWorld(), SearchQA(), WebArena())
"""One for each world that AgentGym and we share."""
