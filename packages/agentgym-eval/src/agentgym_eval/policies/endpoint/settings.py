"""Flags for endpoints. This module has light imports only, so that `--help` is fast."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from typing import Annotated, Any

from agentgym_envs.util.flag_markers import arg

from agentgym_eval.policies.budget import Budget
from agentgym_eval.util.errors import UsageError

OPENAI = "https://api.openai.com/v1"
_RESERVED = (
    "model",
    "messages",
    "temperature",
    "max_tokens",
    "max_completion_tokens",
    "tools",
    "tool_choice",
    "stream",
    "n",
)


@dataclass(frozen=True, kw_only=True)
class EndpointSettings:
    """An OpenAI-compatible endpoint, for --policy openai:MODEL. The environment variable OPENAI_API_KEY has its key."""

    base_url: Annotated[str | None, arg(metavar="URL")] = None
    """Address, such as http://127.0.0.1:8000/v1; by default OPENAI_BASE_URL or OpenAI's address."""
    body: tuple[str, ...] = ()
    """Additional fields of each request, as KEY=VALUE with JSON values: reasoning_effort=low top_p=0.9."""
    native_tools: bool = True
    """Whether to send functions as tools of the endpoint. If off, the messages describe them, for endpoints without
    tools."""
    rate: Annotated[float | None, arg(metavar="FLOAT")] = None
    """Maximum number of requests per minute. Up to --slots requests are sent concurrently."""
    price: tuple[float, ...] = ()
    """Prices per million prompt tokens, per million completion tokens and, if it differs, per million cached prompt
    tokens."""
    budget: tuple[str, ...] = ()
    """Stop at this usage, counted over all processes of the run: requests=1000, tokens=2e6, cost=5 (in the unit of
    --price), or several of them. Each policy has its own budget."""

    def __post_init__(self) -> None:
        if self.rate is not None and not self.rate > 0:
            raise UsageError(f"--rate must be above 0, not {self.rate:g}.")
        if len(self.price) not in (0, 2, 3) or not all(0 <= price < math.inf for price in self.price):
            raise UsageError(
                "--price takes two or three numbers of at least 0: for prompt, completion and cached prompt tokens."
            )
        self.fields()
        self.limits()

    def limits(self) -> Budget:
        """Return the budget.

        Raises:
            UsageError: see `Budget.parse`.
        """
        return Budget.parse(self.budget, self.price)

    def fields(self) -> dict[str, Any]:
        """Return the additional fields of requests; a value that isn't JSON is a string.

        Raises:
            UsageError: for a pair without a key or `=`, and for a field that other settings determine.
        """
        found: dict[str, Any] = {}
        for pair in self.body:
            key, equals, value = pair.partition("=")
            if not (key and equals):
                raise UsageError(f"--body {pair!r} is not of the form KEY=VALUE, such as reasoning_effort=low.")
            if key in _RESERVED:
                raise UsageError(f"--body can't set {key}: other flags and the environment determine it. Leave it out.")
            try:
                found[key] = json.loads(value)
            except ValueError:
                found[key] = value
        return found
