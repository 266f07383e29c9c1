"""Updates by two processes, or by one alone.

Distributions of the episodes: `even`; `uneven`, most of them in the first process; `idle`, all in the first one.
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
from toy_learner import auxiliary_loss, make_learner, make_trajectories, update_on

FIRST_PROCESS_EPISODES = {"even": 4, "uneven": 6, "idle": 8}
"""Number of episodes of the first process, out of eight."""
GRPO = replace(GRPO_PRESET, kl=KL("loss", "k3", 0.1), entropy=0.01)
CASES: dict[str, tuple[str, Algorithm | Imitation, Any]] = {
    "grpo": ("uneven", GRPO, None),
    "reinforce++": ("even", ReinforcePP, None),
    "ppo with a head": ("uneven", PPO, "head"),
    "ppo with a separate critic": ("idle", PPO, "separate"),
    "ppo, some masked": ("uneven", PPO, "head"),
    "gspo": ("idle", GSPO, None),
    "imitation": ("even", Imitation(), "head"),
    "grpo with imitation": ("uneven", GRPO, None),
    "only imitation, in grpo": ("idle", GRPO, None),
    "a reward that is nan": ("uneven", GRPO, None),
}
"""Distribution of the episodes, algorithm, and critic."""


def train(case: str, accelerator: Accelerator) -> tuple[dict[str, float], dict[str, torch.Tensor]]:
    """Return metrics and weights after an update of four optimizer steps on this process's share."""
    distribution, algorithm, critic = CASES[case]
    # All episodes of a group are in the same process.
    trajectories = sorted(make_trajectories(21, 8, groups=4), key=lambda trajectory: trajectory.group)
    rank, alone = accelerator.process_index, accelerator.num_processes == 1
    own = (
        slice(None)
        if alone
        else (slice(0, FIRST_PROCESS_EPISODES[distribution]), slice(FIRST_PROCESS_EPISODES[distribution], None))[rank]
    )
    model = build_model(Scratch(vocab=320, hidden=32, layers=2, heads=2), vocab=320, end_id=2, pad_id=0, seed=5)
    student = make_learner(
        model, critic=critic, accelerator=accelerator, lr=1e-3, micro_tokens=32, warmup=8,
        reference=algorithm.needs_reference, critic_lr=1e-3,
    )  # fmt: skip
    auxiliary = None
    if "imitation" in case and algorithm is GRPO:
        demonstrations, places = make_trajectories(22, 5), [(number, 0) for number in range(5)]
        own_demonstrations = slice(None) if alone else slice(rank, None, 2)
        auxiliary = auxiliary_loss(student, demonstrations[own_demonstrations], places=places[own_demonstrations])
    if "masked" in case:
        trajectories = [replace(trajectory, in_loss=e not in (2, 5, 7)) for e, trajectory in enumerate(trajectories)]
    trajectories = [] if case.startswith("only") else trajectories[own]
    if "nan" in case and (alone or rank == 1):
        trajectories[-1] = replace(trajectories[-1], rewards=(math.nan, *trajectories[-1].rewards[1:]))
    metrics = update_on(student, trajectories, algorithm, epochs=2, minibatches=2, auxiliary=auxiliary)
    assert (metrics["skipped"] > 0) == ("nan" in case)
    assert accelerator.is_fsdp2 == all(isinstance(parameter, DTensor) for parameter in student.actor.parameters())
    assert accelerator.is_fsdp2 == all(isinstance(layer, FSDPModule) for layer in student.policy.model.layers)
    return metrics, accelerator.get_state_dict(student.actor)


def shard(accelerator: Accelerator) -> None:
    """Make accelerate use FSDP2 from here on. On GPUs it does so from the start; on CPUs it ignores the setting."""
    accelerator.state.fsdp_plugin = FullyShardedDataParallelPlugin(
        fsdp_version=2, auto_wrap_policy="transformer_based_wrap"
    )
    # Each access to the accelerator's state copies the process state back into it.
    for state in (accelerator.state, PartialState()):
        state.distributed_type = DistributedType.FSDP
    assert accelerator.is_fsdp2


def main(out: Path, names: Sequence[str]) -> None:
    """Run cases as one of the processes, and write the results to `out`. Cases after "sharded" are sharded."""
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
