"""A language model behind an endpoint, as a player."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from agentgym_envs import EnvFault, Reply, Seat

from agentgym_eval.endpoint.client import Client, Refused
from agentgym_eval.endpoint.messages import reply, usage
from agentgym_eval.errors import RunStopped, UsageError, did_you_mean
from agentgym_eval.tool_calls import native, plain
from agentgym_eval.usage import Metered

_TOO_LONG = ("context_length", "context length", "context window", "maximum context", "too long")
_FILTERED = ("content_filter", "content_policy", "content management policy", "moderation", "flagged")
_SHOWN = 10  # models in a message


class Endpoint(Metered):
    """Asks the model for each reply, as many at once as there are episodes under way."""

    def __init__(
        self,
        client: Client,
        model: str,
        *,
        temperature: float,
        max_tokens: int,
        body: Mapping[str, Any] | None = None,
        native_tools: bool = True,
    ) -> None:
        """Seat it.

        Args:
            client: Asks.
            model: As the endpoint calls it.
            temperature: Of sampling.
            max_tokens: Of a reply.
            body: Further fields of each request.
            native_tools: Whether functions are shown as tools, else described in words.
        """
        self.name = f"openai:{model}"
        self._client, self._model = client, model
        self._body = {"temperature": temperature, **(body or {})}
        self._max_tokens, self._limit = max_tokens, "max_tokens"
        self._native = native_tools

    async def reply(self, seat: Seat) -> Reply:
        """What the model says. A reply that the budget cut, or a conversation that doesn't fit, ends the episode.

        Raises:
            EnvFault: when the endpoint refuses this conversation, or its filter cuts the reply.
            RunStopped: when it refuses all, or can't be reached.
            UsageError: when it has no such model.
        """
        try:
            answer = await self._ask(seat)
            choice = answer["choices"][0]
            said, used, filtered = reply(choice), usage(answer), choice.get("finish_reason") == "content_filter"
        except Refused as refused:
            return await self._refused(refused)
        except (LookupError, TypeError, ValueError, AttributeError, OverflowError) as error:
            raise RunStopped(
                f"{self._client.shown} answers otherwise than OpenAI's protocol says: {error!r}."
            ) from error
        self.usage += used
        if filtered:
            raise EnvFault(f"{self._client.shown} cut the reply with its content filter")
        return said

    async def close(self) -> None:
        """Close the connections."""
        await self._client.close()

    async def _ask(self, seat: Seat) -> dict[str, Any]:
        limit = self._limit
        try:
            return await self._client.ask(self._request(seat))
        except Refused as refused:
            if limit != "max_tokens" or "max_completion_tokens" not in refused.message:
                raise
            self._limit = "max_completion_tokens"  # what models that think before they speak call it
            return await self._client.ask(self._request(seat))

    def _request(self, seat: Seat) -> dict[str, Any]:
        request = {"model": self._model, self._limit: self._max_tokens, **self._body}
        if not (seat.tools and self._native):
            return request | {"messages": plain(seat.conversation, seat.tools)}
        choice = {} if seat.kind == "act" else {"tool_choice": "none"}
        return request | {"messages": native(seat.conversation, write=json.dumps), "tools": list(seat.tools), **choice}

    async def _refused(self, refused: Refused) -> Reply:
        about, where = f"{refused.code} {refused.message}".lower(), self._client.shown
        filtered = any(words in about for words in _FILTERED)
        if refused.status == 401 or (refused.status == 403 and not filtered):
            raise RunStopped(f"{where} refuses the key ({refused}). Set OPENAI_API_KEY to one that it takes.")
        if refused.status in (402, 429):
            raise RunStopped(f"{where} wants to be paid ({refused}).")
        if refused.status == 404:
            raise UsageError(await self._missing(refused))
        if any(words in about for words in _TOO_LONG):
            return Reply("", "length")
        if self.usage.requests or filtered:
            raise EnvFault(f"{where} refuses the conversation ({refused})")
        hint = " Where an endpoint has no tools, --no-native-tools describes the functions." if "tool" in about else ""
        raise RunStopped(f"{where} refuses the first request ({refused}).{hint}")

    async def _missing(self, refused: Refused) -> str:
        models = await self._client.models()
        there = f" Its models: {', '.join(models[:_SHOWN])}." if models else " Is the address right, up to /v1?"
        hint = did_you_mean(self._model, models)
        return f"{self._client.shown} has no model {self._model!r} ({refused}).{hint}{there}"
