"""Algorithms: frozen dataclasses whose fields are the knobs, pure functions from tensors to tensors.

None of them imports torch: they need only the methods of the tensors they are given, and the command line can list
their knobs at once. Presets (`PPO`, `GRPO`, …) are values, not classes: `dataclasses.replace` makes others of them.
"""

from agentgym_trainer.algorithms.advantages import Advantages
from agentgym_trainer.algorithms.aggregation import Aggregation
from agentgym_trainer.algorithms.algorithm import ADVANTAGES, Algorithm
from agentgym_trainer.algorithms.correction import Correction
from agentgym_trainer.algorithms.critic import Critic
from agentgym_trainer.algorithms.experience import Credit, Experience, Part, Scores
from agentgym_trainer.algorithms.gae import GAE
from agentgym_trainer.algorithms.gigpo import StepGroups
from agentgym_trainer.algorithms.group_relative import GroupRelative
from agentgym_trainer.algorithms.groups import Groups
from agentgym_trainer.algorithms.imitation import Imitation
from agentgym_trainer.algorithms.kl import KL
from agentgym_trainer.algorithms.presets import (
    CISPO,
    DAPO,
    GRPO,
    GSPO,
    PPO,
    PRESETS,
    RLOO,
    DrGRPO,
    GiGPO,
    ReinforcePP,
    ReinforcePPBaseline,
)
from agentgym_trainer.algorithms.reinforce_pp import TokenReturns
from agentgym_trainer.algorithms.returns import Assigned, turn_rewards
from agentgym_trainer.algorithms.surrogate import Clip

__all__ = [
    "ADVANTAGES",
    "CISPO",
    "DAPO",
    "GAE",
    "GRPO",
    "GSPO",
    "KL",
    "PPO",
    "PRESETS",
    "RLOO",
    "Advantages",
    "Aggregation",
    "Algorithm",
    "Assigned",
    "Clip",
    "Correction",
    "Credit",
    "Critic",
    "DrGRPO",
    "Experience",
    "GiGPO",
    "GroupRelative",
    "Groups",
    "Imitation",
    "Part",
    "ReinforcePP",
    "ReinforcePPBaseline",
    "Scores",
    "StepGroups",
    "TokenReturns",
    "turn_rewards",
]
