"""Updates by all processes together, or by one alone.

`even`: both have as much to do; `uneven`: the first has most of it; `idle`: the second has nothing that trains.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator, PartialState
from accelerate.utils import DistributedType, FullyShardedDataParallelPlugin
from agentgym_trainer.algorithms import GRPO as GRPO_PRESET
from agentgym_trainer.algorithms import GSPO, KL, PPO, Algorithm, Imitation, ReinforcePP
from agentgym_trainer.config.scratch import Scratch
from agentgym_trainer.models.scratch import build_model
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor
from toy_learner import beside, learner, some_trajectories, teach

SHARE = {"even": 4, "uneven": 6, "idle": 8}
"""Episodes of the first process; the second has the others of eight."""
GRPO = replace(GRPO_PRESET, kl=KL("loss", "k3", 0.1), entropy=0.01)
CASES: dict[str, tuple[str, Algorithm | Imitation, Any]] = {
    "grpo": ("uneven", GRPO, None),
    "reinforce++": ("even", ReinforcePP, None),
    "ppo with a head": ("uneven", PPO, "head"),
    "ppo with a separate critic": ("idle", PPO, "separate"),
    "ppo, some out of the loss": ("uneven", PPO, "head"),
    "gspo": ("idle", GSPO, None),
    "imitation": ("even", Imitation(), "head"),
    "grpo beside imitation": ("uneven", GRPO, None),
    "nothing but imitation": ("idle", GRPO, None),
    "a reward that is no number": ("uneven", GRPO, None),
}
"""Who has how much, the algorithm, and the critic."""


def train(case: str, accelerator: Accelerator) -> tuple[dict[str, float], dict[str, torch.Tensor]]:
    """Metrics and weights after an update of four optimizer steps on this process's share."""
    how, algorithm, critic = CASES[case]
    # A group is never shared out among processes.
    made = sorted(some_trajectories(21, 8, groups=4), key=lambda trajectory: trajectory.group)
    rank, alone = accelerator.process_index, accelerator.num_processes == 1
    own = slice(None) if alone else (slice(0, SHARE[how]), slice(SHARE[how], None))[rank]
    model = build_model(Scratch(vocab=320, hidden=32, layers=2, heads=2), vocab=320, end_id=2, pad_id=0, seed=5)
    student = learner(
        model, critic=critic, accelerator=accelerator, lr=1e-3, micro_tokens=32, warmup=8,
        reference=algorithm.needs_reference, critic_lr=1e-3,
    )  # fmt: skip
    lesson = None
    if "imitation" in case and algorithm is GRPO:
        shown, places = some_trajectories(22, 5), [(number, 0) for number in range(5)]
        mine = slice(None) if alone else slice(rank, None, 2)
        lesson = beside(student, shown[mine], places=places[mine])
    if "out of the loss" in case:
        made = [replace(trajectory, in_loss=e not in (2, 5, 7)) for e, trajectory in enumerate(made)]
    made = [] if case.startswith("nothing") else made[own]
    if "no number" in case and (alone or rank == 1):
        made[-1] = replace(made[-1], rewards=(math.nan, *made[-1].rewards[1:]))
    metrics = teach(student, made, algorithm, epochs=2, minibatches=2, auxiliary=lesson)
    assert (metrics["skipped"] > 0) == ("no number" in case)
    assert accelerator.is_fsdp2 == all(isinstance(parameter, DTensor) for parameter in student.actor.parameters())
    assert accelerator.is_fsdp2 == all(isinstance(layer, FSDPModule) for layer in student.policy.model.layers)
    return metrics, accelerator.get_state_dict(student.actor)


def shard(accelerator: Accelerator) -> None:
    """Make accelerate use FSDP2 from here on. On GPUs it would do so at its start; on CPUs it ignores the wish."""
    accelerator.state.fsdp_plugin = FullyShardedDataParallelPlugin(
        fsdp_version=2, auto_wrap_policy="transformer_based_wrap"
    )
    # Every look at the accelerator's state brings the process's state back into it.
    for state in (accelerator.state, PartialState()):
        state.distributed_type = DistributedType.FSDP
    assert accelerator.is_fsdp2


def main(out: Path, names: Sequence[str]) -> None:
    """As one of the processes: a file for the results, and the names of cases; "sharded" before those it is for."""
    accelerator = Accelerator(cpu=True)
    updates: dict[str, Any] = {}
    for name in names:
        if name == "sharded":
            shard(accelerator)
        else:
            updates[f"{name}, sharded" if accelerator.is_fsdp2 else name] = train(name, accelerator)
    if accelerator.is_main_process:
        torch.save({"processes": accelerator.num_processes, **updates}, out)
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()
