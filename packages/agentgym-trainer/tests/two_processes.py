"""One update with warm-up by all processes together; started by torchrun, or as a function for one process.

`even`: both have as much to do; `uneven`: the first has most of it; `idle`: the second has nothing that trains.
"""

from __future__ import annotations

import sys

import torch
from accelerate import Accelerator
from agentgym_trainer.algorithms import GRPO
from agentgym_trainer.batch import make_batch
from agentgym_trainer.config import Optimizer
from agentgym_trainer.learner import Learner
from agentgym_trainer.scratch import Scratch, build_model
from miniature import some_trajectories

SHARE = {"even": 4, "uneven": 7, "idle": 4}


def train(case: str, rank: int, accelerator: Accelerator) -> tuple[dict[str, float], torch.Tensor]:
    """Metrics and weights after two updates on this process's share."""
    made = some_trajectories(21, 8)
    whole = make_batch(made, pad_id=0)
    algorithm = GRPO(aggregation="sequence", kl=0.1)
    credit = algorithm.credit(whole.rewards_EK, whole.played_EK, whole.group_E)
    trains_E = credit.trains_E.clone()
    if case == "idle":
        trains_E[SHARE[case] :] = False
    alone = accelerator.num_processes == 1
    own = slice(None) if alone else (slice(0, SHARE[case]), slice(SHARE[case], None))[rank]
    size = Scratch(vocab=320, hidden=32, layers=2, heads=2)
    model = build_model(size, vocab=320, end_id=2, pad_id=0, seed=5)
    learner = Learner(model, accelerator, Optimizer(lr=1e-2, micro_tokens=32, warmup=8), reference=True)
    for _ in range(2):
        metrics = learner.update(
            make_batch(made[own], pad_id=0),
            algorithm,
            advantage_EK=credit.advantage_EK[own],
            trains_E=trains_E[own],
        )
    return metrics, torch.cat([parameter.detach().flatten() for parameter in learner.model.parameters()])


def main() -> None:
    """Under torchrun."""
    torch.set_num_threads(1)
    accelerator = Accelerator(cpu=True)
    updates = {case: train(case, accelerator.process_index, accelerator) for case in SHARE}
    if accelerator.is_main_process:
        torch.save({"processes": accelerator.num_processes, **updates}, sys.argv[1])
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
