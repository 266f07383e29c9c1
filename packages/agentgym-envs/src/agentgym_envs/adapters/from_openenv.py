"""Environments on OpenEnv servers as text environments: `openenv:URL`.

An action is the text of the only field that the server's action has, or else JSON for all of its fields.
"""

from __future__ import annotations

import json
from collections.abc import Coroutine
from functools import cached_property
from typing import Any, ClassVar, TypeVar

from agentgym_envs.adapters.external import ExternalEnv, plain
from agentgym_envs.core.feedback import EnvFault, Feedback, writable
from agentgym_envs.core.json_actions import read_json
from agentgym_envs.core.loop_thread import LoopThread
from agentgym_envs.core.tasks import Task
from agentgym_envs.util.extras import brought_by

with brought_by("openenv"):
    import httpx
    from openenv.core.generic_client import GenericEnvClient

T = TypeVar("T")
_TEXTS = ("text", "message", "prompt", "observation", "content", "output")
"""Fields of an observation that are shown alone if they hold a text; the first of them that is there."""
_REFUSED = "(code: VALIDATION_ERROR)"
"""How the client's error ends if the server refuses the fields of a message. It has no type of its own."""
_OWN = ("metadata",)
"""Fields of every action and observation, which agents don't need."""


class _Refused(EnvFault):
    """The server refused the fields of a message."""


class OpenEnvEnv(ExternalEnv):
    """An environment on a server. Each episode has a session of its own."""

    scheme: ClassVar[str] = "openenv"
    step_waits: ClassVar[bool] = True
    step_seconds: ClassVar[float] = 0.05

    def __init__(self, source: str, *, observation: str = "", timeout: float = 60.0, **options: Any) -> None:
        """Create the environment without reaching the server.

        Args:
            source: The server's URL.
            observation: Field of the observations that is shown. Empty: the first of text, message, prompt,
                observation, content and output that holds a text, or else all fields as JSON.
            timeout: Seconds for each call, after which the episode has failed.
            options: See `ExternalEnv`.

        Raises:
            ValueError: if the source is no URL, or options are out of range.
        """
        super().__init__(source, **options)
        if not source.startswith(("http://", "https://")):
            raise ValueError(f"{self.name} must have the URL of a server, such as openenv:http://127.0.0.1:8000.")
        if not timeout > 0:
            raise ValueError(f"timeout must be above 0 seconds, not {timeout:g}.")
        self._field, self._timeout = observation, timeout
        self._thread: LoopThread | None = None
        self._client: GenericEnvClient | None = None

    def close(self) -> None:
        """End the session. May be called twice."""
        client, thread, self._client, self._thread = self._client, self._thread, None, None
        if thread is not None:
            if client is not None and thread.alive:
                thread.run(client.close(), self._timeout)
            thread.stop()

    @cached_property
    def _about(self) -> dict[str, Any]:
        """The server's description of itself."""
        return self._get("metadata")

    @cached_property
    def _properties(self) -> dict[str, Any]:
        """The JSON schemas of the fields of an action."""
        schema = self._get("schema").get("action", {})
        return {name: each for name, each in schema.get("properties", {}).items() if name not in _OWN}

    @property
    def _text_field(self) -> str:
        """The only field of an action, if it is a text; otherwise empty."""
        fields = [name for name, schema in self._properties.items() if schema.get("type") == "string"]
        return fields[0] if len(self._properties) == len(fields) == 1 else ""

    def _get(self, path: str) -> dict[str, Any]:
        try:
            response = httpx.get(f"{self.source.rstrip('/')}/{path}", timeout=self._timeout)
            return dict(response.raise_for_status().json())
        except (httpx.HTTPError, ValueError, TypeError) as error:
            raise EnvFault(f"{self.name} doesn't answer like an OpenEnv server at /{path}: {error!r}") from error

    def _described(self) -> str:
        about = (str(self._about.get(name) or "") for name in ("name", "description"))
        return "\n\n".join(filter(None, [*about, self._form()]))

    def _form(self) -> str:
        if self._text_field:
            about = self._properties[self._text_field].get("description", "")
            return f"Your action is a text. {about}".strip()
        return f"Your action is a JSON object with these fields: {json.dumps(self._properties, ensure_ascii=False)}"

    def _begin(self, task: Task) -> str:
        self.close()
        self._thread = LoopThread(f"The OpenEnv server {self.source}")
        self._client = GenericEnvClient(
            self.source, connect_timeout_s=self._timeout, message_timeout_s=self._timeout, mode="simulation"
        )
        result = self._run(self._client.reset(seed=task.payload["seed"]))
        return self._shown(result.observation)

    def _take(self, action: str) -> Feedback:
        fields = {self._text_field: action} if self._text_field else _fields(action)
        if self._client is None:
            raise EnvFault(f"{self.name} has no session.")
        try:
            result = None if fields is None else self._run(self._client.step(fields))
        except _Refused:
            result = None
        if result is None:
            return Feedback(f"{action[:100]!r} is not an action here. {self._form()}", valid=False)
        solved, valid = (result.observation.get(name) for name in ("success", "valid"))
        self._earn(float(result.reward or 0.0), solved=solved)
        truncated = bool(result.done) and bool(result.observation.get("truncated"))
        return Feedback(
            self._shown(result.observation),
            valid=valid is not False,
            terminated=bool(result.done) and not truncated,
            truncated=truncated,
        )

    def _run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine of the client. Raises `EnvFault` for whatever it raises, `_Refused` for a refused message."""
        if self._thread is None:
            coroutine.close()
            raise EnvFault(f"{self.name} has no session.")
        try:
            return self._thread.run(coroutine, self._timeout)
        except EnvFault:
            raise
        except Exception as error:
            fault = _Refused if str(error).endswith(_REFUSED) else EnvFault
            raise fault(f"{self.name} failed: {error}") from error

    def _shown(self, observation: dict[str, Any]) -> str:
        found = [name for name in _TEXTS if isinstance(observation.get(name), str)]
        field = self._field or (found[0] if found else "")
        if self._field and self._field not in observation:
            raise EnvFault(
                f"The observations of {self.name} have no field {self._field}, but {', '.join(observation)}."
            )
        value = observation[field] if field else {name: v for name, v in observation.items() if name not in _OWN}
        return writable(value) if isinstance(value, str) else json.dumps(plain(value), ensure_ascii=False)


def _fields(action: str) -> dict[str, Any] | None:
    try:
        record = read_json(action)
    except ValueError:
        return None
    return record if isinstance(record, dict) else None
