"""What a player that is paid by the token has used. Knows no endpoint."""

from __future__ import annotations

import json
from abc import ABC
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from agentgym_envs import Player

from agentgym_eval.errors import UsageError

_MILLION = 1_000_000


@dataclass(frozen=True, slots=True)
class Usage:
    """Requests that were answered, and their tokens as the endpoint counts them."""

    requests: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    """Those of the prompt tokens that came from the endpoint's cache."""
    completion_tokens: int = 0
    """Said, thought included where it is charged."""

    def __add__(self, other: Usage) -> Usage:
        return Usage(*(getattr(self, field.name) + getattr(other, field.name) for field in fields(Usage)))

    def __sub__(self, other: Usage) -> Usage:
        return Usage(*(getattr(self, field.name) - getattr(other, field.name) for field in fields(Usage)))

    def cost(self, price: Sequence[float]) -> float | None:
        """What that costs, in the unit of `price`.

        Args:
            price: Of a million tokens of prompt, of a million said and, where it differs, of a million of prompt from
                the cache. None given: nobody knows.
        """
        if not price:
            return None
        cached = price[2] if len(price) > 2 else price[0]
        fresh = self.prompt_tokens - self.cached_tokens
        return (fresh * price[0] + self.completion_tokens * price[1] + self.cached_tokens * cached) / _MILLION

    def sentence(self, price: Sequence[float]) -> str:
        """For the end of a run: `12 requests, 3,400 tokens of prompt (1,200 cached) and 560 said, cost 0.0123`."""
        cost = self.cost(price)
        return (
            f"{self.requests:,} requests, {self.prompt_tokens:,} tokens of prompt ({self.cached_tokens:,} cached) and "
            f"{self.completion_tokens:,} said" + ("" if cost is None else f", cost {cost:.4f}")
        )

    def to_dict(self, price: Sequence[float]) -> dict[str, Any]:
        """As JSON values, with the cost where the price is known."""
        return {**asdict(self), "cost": self.cost(price)}


class Metered(Player, ABC):
    """A player that counts what it uses."""

    usage: Usage = Usage()
    """Since it was made."""


def read_usage(path: Path) -> Usage:
    """What was written as `asdict(usage)`; nothing where there is no such file.

    Raises:
        UsageError: when the file is damaged.
    """
    if not path.exists():
        return Usage()
    try:
        return Usage(**json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError) as error:
        raise UsageError(f"{path} can't be read ({error}); delete it to count what is used from here on.") from error
