"""Flags of an evaluation in several environments."""

from __future__ import annotations

from counting_world import ENV

WORLDS = ["--env", ENV, "textcraft", "--tasks", "4", "--samples", "2", "--horizon", "15"]
