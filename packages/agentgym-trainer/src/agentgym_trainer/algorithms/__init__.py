"""Algorithms: frozen dataclasses whose fields are the knobs, pure functions from tensors to tensors.

None of them imports torch: they need only the methods of the tensors they are given, and the command line can list
their knobs at once.
"""

from agentgym_trainer.algorithms.grpo import GRPO, Credit
from agentgym_trainer.algorithms.imitation import Imitation

Algorithm = GRPO
"""What `algorithm` in a configuration may be; a union as more of them come."""

__all__ = ["GRPO", "Algorithm", "Credit", "Imitation"]
