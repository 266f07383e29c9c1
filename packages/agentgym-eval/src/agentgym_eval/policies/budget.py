"""Budgets of policies that are billed per token. This module has light imports only, so that `--help` is fast."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING

from agentgym_eval.util.errors import BudgetSpent, RunStopped, UsageError

if TYPE_CHECKING:
    from agentgym_eval.metrics.usage import Usage


@dataclass(frozen=True, slots=True)
class Budget:
    """Limits on the usage of a run, over all of its processes; infinite if not set."""

    requests: float = math.inf
    tokens: float = math.inf
    """Prompt and completion tokens together."""
    cost: float = math.inf
    """In the unit of `price`."""
    price: tuple[float, ...] = ()
    """See `Usage.cost`."""

    @classmethod
    def parse(cls, pairs: Sequence[str], price: tuple[float, ...]) -> Budget:
        """Parse a budget from `requests=N`, `tokens=N` and `cost=X`.

        Raises:
            UsageError: for an unknown name, a value that isn't a number above 0, and a cost without a price.
        """
        names, limits = [field.name for field in fields(cls) if field.name != "price"], dict[str, float]()
        for pair in pairs:
            name, _, number = pair.partition("=")
            try:
                limits[name] = float(number)
            except ValueError:
                limits[name] = math.nan
            if name not in names or not 0 < limits[name] < math.inf:
                raise UsageError(f"--budget takes {', '.join(names)}, each =NUMBER above 0, not {pair!r}.")
        if "cost" in limits and not price:
            raise UsageError("--budget cost= needs the prices of tokens: give --price as well.")
        return cls(**limits, price=price)

    def check(self, used: Usage, pending: int = 0) -> None:
        """Check that another request may be sent.

        Args:
            used: Usage so far.
            pending: Number of pending requests.

        Raises:
            BudgetSpent: if the budget is spent.
            RunStopped: if tokens or cost are limited, but the endpoint doesn't report tokens.
        """
        tokens, cost = used.prompt_tokens + used.completion_tokens, used.cost(self.price)
        if used.uncounted and min(self.tokens, self.cost) < math.inf:
            raise RunStopped(
                "The endpoint doesn't report tokens, so a --budget of tokens or cost can't be enforced: limit the "
                "requests with --budget requests=N"
            )
        if used.requests + pending >= self.requests:
            raise BudgetSpent(f"The --budget of {self.requests:,.0f} requests is spent")
        if tokens >= self.tokens:
            raise BudgetSpent(f"The --budget of {self.tokens:,.0f} tokens is spent ({tokens:,} were used)")
        if cost is not None and cost >= self.cost:
            raise BudgetSpent(f"The --budget of {self.cost:g} is spent (the cost is {cost:.4f})")
