"""Players that are paid by the token."""

from __future__ import annotations

from abc import ABC

from agentgym_envs import Player

from agentgym_eval.metrics.usage import Usage
from agentgym_eval.policies.budget import Budget
from agentgym_eval.storage.journal import Journal


class Metered(Player, ABC):
    """A player that is paid by the token: it counts what it uses, and keeps each reply as it comes."""

    usage: Usage = Usage()
    """In the runs that it plays, in all sittings. Whoever seats it says what was used before."""
    journal: Journal | None = None
    """Of the run at hand: where replies are kept, and found again. None keeps nothing."""
    budget: Budget = Budget()
    """What it may use in these runs."""
