"""Policies that are billed per token."""

from __future__ import annotations

from abc import ABC

from agentgym_envs import Policy

from agentgym_eval.metrics.usage import Usage
from agentgym_eval.policies.budget import Budget
from agentgym_eval.storage.journal import Journal


class Metered(Policy, ABC):
    """A policy that is billed per token: it counts its usage and records each reply on arrival."""

    usage: Usage = Usage()
    """Usage in the policy's runs, including earlier processes of these runs."""
    journal: Journal | None = None
    """The journal of the current run, which records and replays replies; with None, nothing is recorded."""
    budget: Budget = Budget()
    """Limits on the usage in these runs."""
