"""What a player that is paid by the token has used, and what that costs. Knows no endpoint."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any

from agentgym_envs import TokenUsage

_MILLION = 1_000_000


@dataclass(frozen=True, slots=True)
class Usage:
    """Requests that were answered, and their tokens as the endpoint counts them."""

    requests: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    """Those of the prompt tokens that came from the endpoint's cache, as far as it reports them."""
    completion_tokens: int = 0
    """Reasoning included where the endpoint charges for it."""
    uncounted: int = 0
    """Requests whose tokens the endpoint didn't report; they are in none of the sums."""

    @classmethod
    def of(cls, tokens: TokenUsage | None) -> Usage:
        """Of one request; None where its tokens are unknown."""
        if tokens is None:
            return cls(requests=1, uncounted=1)
        return cls(1, tokens.prompt_tokens, tokens.cached_tokens or 0, tokens.completion_tokens)

    def __add__(self, other: Usage) -> Usage:
        return Usage(*(getattr(self, field.name) + getattr(other, field.name) for field in fields(Usage)))

    def cost(self, price: Sequence[float]) -> float | None:
        """What that costs, in the unit of `price`; None where it is unknown: no price, or requests without tokens.

        Args:
            price: Of a million prompt tokens, of a million completion tokens and, where it differs, of a million prompt
                tokens from the cache.
        """
        if not price or self.uncounted:
            return None
        cached = price[2] if len(price) > 2 else price[0]
        fresh = self.prompt_tokens - self.cached_tokens
        return (fresh * price[0] + self.completion_tokens * price[1] + self.cached_tokens * cached) / _MILLION

    def sentence(self, price: Sequence[float]) -> str:
        """For the end of a run: `2 requests, 340 prompt tokens (120 cached) and 56 completion tokens, cost 0.0012`."""
        cost = self.cost(price)
        told = "" if not price else ", cost unknown" if cost is None else f", cost {cost:.4f}"
        if self.uncounted == self.requests:
            return f"{self.requests:,} requests, tokens unknown (the endpoint doesn't report them){told}"
        without = f", {self.uncounted:,} of them without reported tokens" if self.uncounted else ""
        prompt = f"{self.prompt_tokens:,} prompt tokens ({self.cached_tokens:,} cached)"
        return f"{self.requests:,} requests{without}, {prompt} and {self.completion_tokens:,} completion tokens{told}"

    def to_dict(self, price: Sequence[float]) -> dict[str, Any]:
        """As JSON values with the cost; None is what is unknown."""
        counted = asdict(self)
        if self.requests and self.uncounted == self.requests:
            counted |= dict.fromkeys(("prompt_tokens", "cached_tokens", "completion_tokens"))
        return counted | {"cost": self.cost(price)}
