"""Stand-ins for AgentGym's clients: their calls, the fields they send and read, the status they want.

Theirs take whole replies of a model. Those of BabyAI, TextCraft and SciWorld look for the action by themselves and send
it bare; those of SearchQA and WebArena send the reply.
"""

from __future__ import annotations

import re
from typing import Any, ClassVar, NamedTuple

from starlette.testclient import TestClient


class Turn(NamedTuple):
    state: str
    reward: float
    done: bool


class Client:
    """For BabyAI, which is like most."""

    id_field: ClassVar[str] = "id"
    creation: ClassVar[Any] = None

    def __init__(self, http: TestClient, base: str) -> None:
        self.http = http
        self.base = base
        made = http.post(f"{base}/create", json=self.creation) if self.creation else http.post(f"{base}/create")
        if made.status_code != 200:
            raise RuntimeError(f"Failed to create environment: {made.text}")
        self.env_id = self.made(made.json())

    def made(self, answer: Any) -> int:
        return answer["id"]

    def post(self, path: str, **fields: Any) -> Any:
        answer = self.http.post(f"{self.base}/{path}", json={**fields, self.id_field: self.env_id})
        assert answer.status_code == 200, answer.text
        return answer.json()

    def get(self, path: str) -> Any:
        answer = self.http.get(f"{self.base}/{path}?{self.id_field}={self.env_id}")
        assert answer.status_code == 200, answer.text
        return answer.json()

    def reset(self, place: int) -> Any:
        answer = self.post("reset", data_idx=place)
        assert answer["done"] is False and answer["reward"] == answer["score"] == 0
        self.state = answer["observation"]
        return answer

    def observe(self) -> str:
        return self.state

    def sent(self, reply: str) -> str:
        (found,) = re.findall(r"Action:\s*(.*?)(?=\n|$)", reply, re.DOTALL)
        return " ".join(re.sub(r"[^A-Za-z0-9, ]+", "", found).split())

    def step(self, reply: str) -> Turn:
        answer = self.post("step", action=self.sent(reply))
        assert answer["reward"] <= answer["score"]
        self.state = answer["observation"]
        return Turn(self.state, answer["score"], answer["done"])

    def reply(self, action: str) -> str:
        """What a model would say."""
        return f"Thought:\nI see.\n\nAction:\n{action}"

    def close(self) -> Any:
        return self.post("close")


class TextCraftClient(Client):
    creation = {"minecraft_dir": "agentenv_textcraft/", "commands": None, "goal": None}  # noqa: RUF012

    def made(self, answer: Any) -> int:
        self.state = answer["observation"]
        return answer["id"]

    def reset(self, place: int) -> Any:
        answer = self.post("reset", data_idx=place)
        assert answer["id"] == self.env_id and answer["done"] is False and answer["reward"] == 0
        self.state = answer["observation"]
        return answer

    def step(self, reply: str) -> Turn:
        answer = self.post("step", action=self.sent(reply))
        self.state = answer["observation"]
        return Turn(self.state, answer["reward"], answer["done"])


class SciWorldClient(Client):
    def reset(self, place: int) -> Any:
        answer = super().reset(place)
        self.state = answer["task_description"] + "\n" + answer["observation"]
        return answer

    def sent(self, reply: str) -> str:
        return reply.rsplit("Action:", 1)[1].strip()


class SearchQAClient(Client):
    id_field = "env_idx"
    creation = {"id": 0}  # noqa: RUF012

    def made(self, answer: Any) -> int:
        assert type(answer) is int
        return answer

    def reset(self, place: int) -> Any:
        return self.post("reset", id=place)

    def observe(self) -> str:
        return self.get("observation")

    def step(self, reply: str) -> Turn:
        answer = self.post("step", action=reply)
        return Turn(answer["observation"], answer["reward"], answer["done"])

    def reply(self, action: str) -> str:
        return f"<think>I see.</think>\n{action}"


class WebArenaClient(Client):
    id_field = "env_idx"

    def made(self, answer: Any) -> int:
        return answer["env_idx"]

    def reset(self, place: int) -> Any:
        return self.post("reset", seed=0, idx=place)

    def observe(self) -> str:
        return self.get("observation")

    def step(self, reply: str) -> Turn:
        answer = self.post("step", action=reply)
        assert set(answer) == {"observation", "reward", "terminated", "truncated", "info"}
        return Turn(answer["observation"], answer["reward"], answer["terminated"])

    def reply(self, action: str) -> str:
        return f"In summary, the next action I will perform is ```{action}```"


CLIENTS: dict[str, type[Client]] = {
    "babyai": Client,
    "textcraft": TextCraftClient,
    "sciworld": SciWorldClient,
    "searchqa": SearchQAClient,
    "webarena": WebArenaClient,
}
