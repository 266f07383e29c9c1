"""What a user may say of an endpoint. Nothing heavy is imported here, for `--help`."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Annotated, Any

import tyro

from agentgym_eval.policies.budget import Budget
from agentgym_eval.util.errors import UsageError

OPENAI = "https://api.openai.com/v1"
_OURS = (
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
    """An OpenAI-compatible endpoint, for --policy openai:MODEL. Its key is OPENAI_API_KEY in the environment."""

    base_url: Annotated[str | None, tyro.conf.arg(metavar="URL")] = None
    """Its address, such as http://127.0.0.1:8000/v1; OPENAI_BASE_URL or OpenAI's own when not given."""
    body: tuple[str, ...] = ()
    """Further fields of each request, as KEY=VALUE with JSON values: reasoning_effort=low top_p=0.9."""
    native_tools: bool = True
    """Whether functions are shown as the endpoint's tools. Switch it off for one without: words describe them then."""
    rate: Annotated[float | None, tyro.conf.arg(metavar="FLOAT")] = None
    """Most requests a minute. As many as --slots are under way at once."""
    price: tuple[float, ...] = ()
    """Prices of a million prompt tokens, a million completion tokens and, where it differs, a million cached prompt
    tokens."""
    budget: tuple[str, ...] = ()
    """Stop when so much is used in all sittings together: requests=1000, tokens=2e6 or cost=5 (in the unit of --price),
    or several of them. Each policy has its own."""

    def __post_init__(self) -> None:
        if self.rate is not None and self.rate <= 0:
            raise UsageError(f"--rate is above 0, not {self.rate:g}.")
        if len(self.price) not in (0, 2, 3) or min(self.price, default=0) < 0:
            raise UsageError(
                "--price takes two or three numbers, none below 0: for prompt, completion and cached prompt tokens."
            )
        self.fields()
        self.limits()

    def limits(self) -> Budget:
        """The budget.

        Raises:
            UsageError: see `Budget.parse`.
        """
        return Budget.parse(self.budget, self.price)

    def fields(self) -> dict[str, Any]:
        """The further fields; a value that is no JSON is text.

        Raises:
            UsageError: for a pair without a key or `=`, and for a field that other settings decide.
        """
        found: dict[str, Any] = {}
        for pair in self.body:
            key, equals, value = pair.partition("=")
            if not (key and equals):
                raise UsageError(f"--body {pair!r} is not of the form KEY=VALUE, such as reasoning_effort=low.")
            if key in _OURS:
                raise UsageError(f"{key} in --body is what other flags and the world decide; leave it out.")
            try:
                found[key] = json.loads(value)
            except ValueError:
                found[key] = value
        return found
