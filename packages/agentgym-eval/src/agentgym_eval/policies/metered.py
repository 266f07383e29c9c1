"""Policies that are paid per token."""

from __future__ import annotations

from abc import ABC

from agentgym_envs import Policy

from agentgym_eval.metrics.usage import Usage
from agentgym_eval.policies.budget import Budget
from agentgym_eval.storage.journal import Journal


class Metered(Policy, ABC):
    """A policy that is paid per token: it counts its usage and records each reply on arrival."""

    usage: Usage = Usage()
    """Usage in the runs that it plays, including what earlier processes of these runs used."""
    journal: Journal | None = None
    """The journal of the current run, which records replies and replays them; None records nothing."""
    budget: Budget = Budget()
    """Limits of its usage in these runs."""
