"""Token usage of a paid endpoint, and its cost."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any

from agentgym_envs import TokenUsage

_MILLION = 1_000_000


@dataclass(frozen=True, slots=True)
class Usage:
    """The number of answered requests, and their tokens as counted by the endpoint."""

    requests: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    """Prompt tokens served from the endpoint's cache, as far as it reports them."""
    completion_tokens: int = 0
    """Includes reasoning tokens if the endpoint charges for them."""
    uncounted: int = 0
    """Requests whose tokens the endpoint didn't report; the token counts don't include them."""

    @classmethod
    def of(cls, tokens: TokenUsage | None) -> Usage:
        """Return the usage of one request; `tokens` is None if they are unknown."""
        if tokens is None:
            return cls(requests=1, uncounted=1)
        return cls(1, tokens.prompt_tokens, tokens.cached_tokens or 0, tokens.completion_tokens)

    def __add__(self, other: Usage) -> Usage:
        return Usage(*(getattr(self, field.name) + getattr(other, field.name) for field in fields(Usage)))

    def cost(self, price: Sequence[float]) -> float | None:
        """Return the cost in the unit of `price`; None if it is unknown, without a price or with uncounted requests.

        Args:
            price: Price of a million prompt tokens, of a million completion tokens and, if different, of a million
                cached prompt tokens.
        """
        if not price or self.uncounted:
            return None
        cached = price[2] if len(price) > 2 else price[0]
        fresh = self.prompt_tokens - self.cached_tokens
        return (fresh * price[0] + self.completion_tokens * price[1] + self.cached_tokens * cached) / _MILLION

    def sentence(self, price: Sequence[float]) -> str:
        """Return a summary: `2 requests, 340 prompt tokens (120 cached) and 56 completion tokens, cost 0.0012`."""
        cost = self.cost(price)
        cost_text = "" if not price else ", cost unknown" if cost is None else f", cost {cost:.4f}"
        if self.uncounted == self.requests:
            return f"{self.requests:,} requests, tokens unknown (the endpoint doesn't report them){cost_text}"
        without = f", {self.uncounted:,} of them without reported tokens" if self.uncounted else ""
        prompt = f"{self.prompt_tokens:,} prompt tokens ({self.cached_tokens:,} cached)"
        return (
            f"{self.requests:,} requests{without}, {prompt} and {self.completion_tokens:,} completion tokens{cost_text}"
        )

    def to_dict(self, price: Sequence[float]) -> dict[str, Any]:
        """Return the usage and its cost as JSON values, with None for unknown values."""
        counted = asdict(self)
        if self.requests and self.uncounted == self.requests:
            counted |= dict.fromkeys(("prompt_tokens", "cached_tokens", "completion_tokens"))
        return counted | {"cost": self.cost(price)}
