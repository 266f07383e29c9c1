"""RL algorithms: frozen dataclasses whose fields are the hyperparameters, with pure functions on tensors.

No module here imports torch: they only call methods of the tensors they are given, so the command line can list the
hyperparameters without loading torch. Presets (`PPO`, `GRPO`, ...) are instances, not classes; derive variants with
`dataclasses.replace`.
"""

from agentgym_trainer.algorithms.advantages.base import AdvantageEstimator
from agentgym_trainer.algorithms.advantages.gae import GAE
from agentgym_trainer.algorithms.advantages.gigpo import StepGroups
from agentgym_trainer.algorithms.advantages.graphgpo import GoalDistance
from agentgym_trainer.algorithms.advantages.group_relative import GroupRelative
from agentgym_trainer.algorithms.advantages.hgpo import NestedStepGroups
from agentgym_trainer.algorithms.advantages.reinforce_pp import TokenReturns
from agentgym_trainer.algorithms.advantages.returns import AdvantageEstimate, turn_rewards
from agentgym_trainer.algorithms.advantages.sft import Imitation
from agentgym_trainer.algorithms.algorithm import ADVANTAGES, Algorithm
from agentgym_trainer.algorithms.group_filter import GroupFilter
from agentgym_trainer.algorithms.loss.aggregation import Aggregation
from agentgym_trainer.algorithms.loss.clip import Clip
from agentgym_trainer.algorithms.loss.correction import Correction
from agentgym_trainer.algorithms.loss.critic import Critic
from agentgym_trainer.algorithms.loss.kl import KL
from agentgym_trainer.algorithms.presets import (
    CISPO,
    DAPO,
    GRPO,
    GSPO,
    HGPO,
    PPO,
    PRESETS,
    RLOO,
    DrGRPO,
    GiGPO,
    GraphGPO,
    ReinforcePP,
    ReinforcePPBaseline,
)
from agentgym_trainer.algorithms.types import AdvantageOutput, MicroBatch, ModelOutputs, TokenBatch

__all__ = [
    "ADVANTAGES",
    "CISPO",
    "DAPO",
    "GAE",
    "GRPO",
    "GSPO",
    "HGPO",
    "KL",
    "PPO",
    "PRESETS",
    "RLOO",
    "AdvantageEstimate",
    "AdvantageEstimator",
    "AdvantageOutput",
    "Aggregation",
    "Algorithm",
    "Clip",
    "Correction",
    "Critic",
    "DrGRPO",
    "GiGPO",
    "GoalDistance",
    "GraphGPO",
    "GroupFilter",
    "GroupRelative",
    "Imitation",
    "MicroBatch",
    "ModelOutputs",
    "NestedStepGroups",
    "ReinforcePP",
    "ReinforcePPBaseline",
    "StepGroups",
    "TokenBatch",
    "TokenReturns",
    "turn_rewards",
]
