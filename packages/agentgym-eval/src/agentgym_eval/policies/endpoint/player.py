"""A language model behind an endpoint, as a policy."""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from agentgym_envs import EnvFault, Reply, TurnContext

from agentgym_eval.metrics.usage import Usage
from agentgym_eval.policies.endpoint.client import Client, Refused, Unanswered
from agentgym_eval.policies.endpoint.messages import reply
from agentgym_eval.policies.metered import Metered
from agentgym_eval.storage.journal import Journal, Place
from agentgym_eval.util.errors import RunStopped, UsageError, did_you_mean
from agentgym_eval.util.tool_calls import native, plain

_TOO_LONG = ("context_length", "context length", "context window", "maximum context", "too long")
_FILTERED = ("content_filter", "content_policy", "content management policy", "moderation", "flagged")
_ON_PICTURES = ("image", "multimodal", "multi-modal", "vision")
_CUT = "content_filter"
_SHOWN = 10  # models in a message
_THEIR_FAULT = (400, 413, 422)  # statuses of requests at which other requests may be no better or worse
_NOT_PASSED_ON = ("n", "stream", "stream_options", "max_completion_tokens")


@dataclass(frozen=True, slots=True)
class Attempt:
    """An attempt at a sample of a task, by which replies are recorded and replayed."""

    key: int
    """Unique to the attempt; see `TurnContext.key`."""
    task: str
    sample: int


class Endpoint(Metered):
    """Requests each reply from the model, concurrently for all episodes in progress. Pictures are sent as `data:` URLs;
    whether the model sees them, only the endpoint knows.
    """

    sees_pictures = True

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
        """Set up the policy.

        Args:
            client: Sends the requests.
            model: The endpoint's name of the model.
            temperature: Sampling temperature.
            max_tokens: Maximum number of tokens of a reply.
            body: Further fields of each request.
            native_tools: Whether functions are sent as tools; otherwise they are described in the messages.
        """
        self.name = f"openai:{model}"
        self._client, self._model = client, model
        self._body = {"temperature": temperature, **(body or {})}
        self._max_tokens, self._limit = max_tokens, "max_tokens"
        self._native = native_tools
        self._pending = 0
        self._response_arrived = asyncio.Condition()

    async def reply(self, context: TurnContext) -> Reply:
        """Return the model's reply, or the recorded one if the journal has a reply to the same request of this episode.

        A reply cut off by its token limit, or a conversation that exceeds the context window, ends the episode.

        Raises:
            EnvFault: if the endpoint refuses this conversation, can't respond to it, or filters the reply's content.
            RunStopped: if it refuses every request, can't be reached, or the run's budget is spent.
            UsageError: if it has no such model.
        """
        attempt = Attempt(context.key, context.info["task_id"], context.sample)
        try:
            return await self._received(self._request(context), attempt)
        except Refused as refused:
            return await self._refused(refused)

    async def complete(self, body: Mapping[str, Any], attempt: Attempt) -> Reply:
        """Return the reply to a request of another program, or the recorded one, as `reply` does.

        Model, temperature and the fields of this policy replace those of the request, and its limit on tokens applies
        if that of the request isn't lower. A request for several choices gets one.

        Args:
            body: A request of a chat completion.
            attempt: The attempt at a task to which it belongs.

        Raises:
            Refused: if the endpoint refuses this request, for a reason that lies in the request.
            Exception: as `reply`.
        """
        asked = body.get("max_completion_tokens") or body.get("max_tokens") or self._max_tokens
        passed = {name: value for name, value in body.items() if name not in _NOT_PASSED_ON and value is not None}
        own = {"model": self._model, "max_tokens": min(asked, self._max_tokens), **self._body}
        try:
            return await self._received(passed | own, attempt)
        except Refused as refused:
            if refused.status in _THEIR_FAULT and not _too_long(refused):
                raise
            return await self._refused(refused)

    async def _received(self, request: dict[str, Any], attempt: Attempt) -> Reply:
        """Return the reply to a request, or the recorded one."""
        journal = self.journal
        digest = hashlib.sha256(json.dumps(request, sort_keys=True).encode()).hexdigest()
        place = Place(attempt.key, attempt.task, attempt.sample, digest)
        while journal is not None and (recorded := journal.replay(place)) is not None:
            if recorded.finish_reason != _CUT:
                return recorded
        try:
            received = await self._within_budget(request, partial(self._record, place, journal))
        except Unanswered as unanswered:
            raise EnvFault(str(unanswered)) from unanswered
        if received.finish_reason == _CUT:
            raise EnvFault(f"{self._client.shown} cut the reply with its content filter")
        return received

    def forget(self, key: int) -> None:
        """Free the journal's position of this attempt."""
        if self.journal is not None:
            self.journal.leave(key)

    async def close(self) -> None:
        """Close the connections, after recording the responses to requests in progress."""
        await self._client.close()

    def _record(self, place: Place, journal: Journal | None, response: Any, seconds: float) -> Reply:
        """Return the reply in a response, after counting its usage and recording it in the journal."""
        received = reply(response, seconds)
        self.usage += Usage.of(received.usage)
        if journal is not None:
            journal.keep(place, received)
        return received

    async def _within_budget(self, request: dict[str, Any], record: partial[Reply]) -> Reply:
        """Send a request unless the budget is spent; then wait for requests in progress before the run ends."""
        async with self._response_arrived:
            while True:
                try:
                    self.budget.check(self.usage, self._pending)
                    break
                except RunStopped:
                    if not self._pending:
                        raise
                    await self._response_arrived.wait()
            self._pending += 1
        try:
            return await self._send(request, record)
        finally:
            self._pending -= 1
            async with self._response_arrived:
                self._response_arrived.notify_all()

    async def _send(self, request: dict[str, Any], record: partial[Reply]) -> Reply:
        limit, known = self._limit, self.usage.requests > 0
        try:
            return await self._client.ask(self._limited(request), record, known=known)
        except Refused as refused:
            if limit != "max_tokens" or "max_completion_tokens" not in refused.message:
                raise
            self._limit = "max_completion_tokens"  # OpenAI's reasoning models take only this name
            return await self._client.ask(self._limited(request), record, known=known)

    def _limited(self, request: dict[str, Any]) -> dict[str, Any]:
        """Return the request with its token limit under the name that the model accepts."""
        return {self._limit if name == "max_tokens" else name: value for name, value in request.items()}

    def _request(self, context: TurnContext) -> dict[str, Any]:
        request = {"model": self._model, "max_tokens": self._max_tokens, **self._body}
        if not (context.tools and self._native):
            return request | {"messages": plain(context.conversation, context.tools)}
        choice = {} if context.kind == "act" else {"tool_choice": "none"}
        return request | {
            "messages": native(context.conversation, write=json.dumps),
            "tools": list(context.tools),
            **choice,
        }

    async def _refused(self, refused: Refused) -> Reply:
        message, address = f"{refused.code} {refused.message}".lower(), self._client.shown
        filtered = any(phrase in message for phrase in _FILTERED)
        if refused.status == 401 or (refused.status == 403 and not filtered):
            raise RunStopped(f"{address} refuses the key ({refused}). Set OPENAI_API_KEY to a valid key.")
        if refused.status in (402, 429):
            raise RunStopped(f"{address} requires payment or more quota ({refused}).")
        if refused.status == 404:
            raise UsageError(await self._missing(refused))
        if _too_long(refused):
            return Reply("", "length")
        if self.usage.requests or filtered:
            raise EnvFault(f"{address} refuses the conversation ({refused})")
        hint = " If it doesn't support tools, use --no-native-tools." if "tool" in message else ""
        if any(word in message for word in _ON_PICTURES):
            hint += " If the model doesn't see pictures, leave out --pictures."
        raise RunStopped(f"{address} refuses the first request ({refused}).{hint}")

    async def _missing(self, refused: Refused) -> str:
        models = await self._client.models()
        listed = f" Its models: {', '.join(models[:_SHOWN])}." if models else " Is the address right, up to /v1?"
        hint = did_you_mean(self._model, models)
        return f"{self._client.shown} has no model {self._model!r} ({refused}).{hint}{listed}"


def _too_long(refused: Refused) -> bool:
    """Return whether the conversation exceeds the model's context."""
    return any(phrase in f"{refused.code} {refused.message}".lower() for phrase in _TOO_LONG)
