"""Stand-ins for AgentGym's clients: they send and read the same fields and check the same statuses.

AgentGym's clients take complete replies of a model. Those of BabyAI, TextCraft and SciWorld extract the action and send
only that; those of SearchQA and WebArena send the reply.
"""

from __future__ import annotations

import re
from typing import Any, ClassVar, NamedTuple


class Turn(NamedTuple):
    state: str
    reward: float
    done: bool


class Client:
    """The client of BabyAI, and the base of the others."""

    id_field: ClassVar[str] = "id"
    create_fields: ClassVar[Any] = None

    def __init__(self, http: Any, base: str) -> None:
        """Create an environment with a client of httpx or Starlette, at the base path of the server's protocol."""
        self.http = http
        self.base = base
        url = f"{base}/create"
        response = http.post(url, json=self.create_fields) if self.create_fields else http.post(url)
        if response.status_code != 200:
            raise RuntimeError(f"Failed to create environment: {response.text}")
        self.env_id = self.read_id(response.json())

    def read_id(self, fields: Any) -> int:
        return fields["id"]

    def post(self, path: str, **fields: Any) -> Any:
        response = self.http.post(f"{self.base}/{path}", json={**fields, self.id_field: self.env_id})
        assert response.status_code == 200, response.text
        return response.json()

    def get(self, path: str) -> Any:
        response = self.http.get(f"{self.base}/{path}?{self.id_field}={self.env_id}")
        assert response.status_code == 200, response.text
        return response.json()

    def reset(self, index: int) -> Any:
        fields = self.post("reset", data_idx=index)
        assert fields["done"] is False and fields["reward"] == fields["score"] == 0
        self.state = fields["observation"]
        return fields

    def observe(self) -> str:
        return self.state

    def extract_action(self, reply: str) -> str:
        (action,) = re.findall(r"Action:\s*(.*?)(?=\n|$)", reply, re.DOTALL)
        return " ".join(re.sub(r"[^A-Za-z0-9, ]+", "", action).split())

    def step(self, reply: str) -> Turn:
        fields = self.post("step", action=self.extract_action(reply))
        assert fields["reward"] <= fields["score"]
        self.state = fields["observation"]
        return Turn(self.state, fields["score"], fields["done"])

    def reply(self, action: str) -> str:
        """Return a model's reply with that action."""
        return f"Thought:\nI see.\n\nAction:\n{action}"

    def close(self) -> Any:
        return self.post("close")


class TextCraftClient(Client):
    create_fields = {"minecraft_dir": "agentenv_textcraft/", "commands": None, "goal": None}  # noqa: RUF012

    def read_id(self, fields: Any) -> int:
        self.state = fields["observation"]
        return fields["id"]

    def reset(self, index: int) -> Any:
        fields = self.post("reset", data_idx=index)
        assert fields["id"] == self.env_id and fields["done"] is False and fields["reward"] == 0
        self.state = fields["observation"]
        return fields

    def step(self, reply: str) -> Turn:
        fields = self.post("step", action=self.extract_action(reply))
        self.state = fields["observation"]
        return Turn(self.state, fields["reward"], fields["done"])


class SciWorldClient(Client):
    def reset(self, index: int) -> Any:
        fields = super().reset(index)
        self.state = fields["task_description"] + "\n" + fields["observation"]
        return fields

    def extract_action(self, reply: str) -> str:
        return reply.rsplit("Action:", 1)[1].strip()


class SearchQAClient(Client):
    id_field = "env_idx"
    create_fields = {"id": 0}  # noqa: RUF012

    def read_id(self, fields: Any) -> int:
        assert type(fields) is int
        return fields

    def reset(self, index: int) -> Any:
        return self.post("reset", id=index)

    def observe(self) -> str:
        return self.get("observation")

    def step(self, reply: str) -> Turn:
        fields = self.post("step", action=reply)
        return Turn(fields["observation"], fields["reward"], fields["done"])

    def reply(self, action: str) -> str:
        return f"<think>I see.</think>\n{action}"


class WebArenaClient(Client):
    id_field = "env_idx"

    def read_id(self, fields: Any) -> int:
        return fields["env_idx"]

    def reset(self, index: int) -> Any:
        return self.post("reset", seed=0, idx=index)

    def observe(self) -> str:
        return self.get("observation")

    def step(self, reply: str) -> Turn:
        fields = self.post("step", action=reply)
        assert set(fields) == {"observation", "reward", "terminated", "truncated", "info"}
        return Turn(fields["observation"], fields["reward"], fields["terminated"])

    def reply(self, action: str) -> str:
        return f"In summary, the next action I will perform is ```{action}```"


CLIENTS: dict[str, type[Client]] = {
    "babyai": Client,
    "textcraft": TextCraftClient,
    "sciworld": SciWorldClient,
    "searchqa": SearchQAClient,
    "webarena": WebArenaClient,
}
