"""Updates by two processes, or by one alone.

Distributions of the episodes: `even`; `uneven`, most of them in the first process; `idle`, all in the first one.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import replace
from importlib.resources import files
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import torch
from accelerate import Accelerator, ParallelismConfig, PartialState
from accelerate.commands.launch import _validate_launch_command, launch_command_parser
from accelerate.utils import DistributedType, FullyShardedDataParallelPlugin
from accelerate.utils.launch import prepare_multi_gpu_env
from agentgym_trainer.algorithms import GRPO as GRPO_PRESET
from agentgym_trainer.algorithms import GSPO, KL, PPO, Algorithm, Imitation, ReinforcePP
from agentgym_trainer.config import Lora, Optimizer, RLConfig
from agentgym_trainer.config.scratch import Scratch
from agentgym_trainer.curriculum.horizon import Stage
from agentgym_trainer.curriculum.state import TrainingState
from agentgym_trainer.learner.learner import Learner
from agentgym_trainer.learner.loss_term import LossTerm
from agentgym_trainer.models.load import load_chat, with_lora
from agentgym_trainer.models.policy import PolicyModel, ValueHead
from agentgym_trainer.models.scratch import build_model
from agentgym_trainer.run.checkpoint import Checkpoints
from agentgym_trainer.tokens.batch import make_batch
from agentgym_trainer.trainers.model_setup import load_policy
from agentgym_trainer.trainers.setup import configure_sharding
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor
from toy_learner import auxiliary_loss, limit_file_size, make_learner, make_trajectories, update_on

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
    "grpo with a teacher": ("idle", GRPO, None),
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
    teacher = build_model(Scratch(vocab=320, hidden=48, layers=3, heads=3), vocab=320, end_id=2, pad_id=0, seed=6)
    student = make_learner(
        model, critic=critic, accelerator=accelerator, lr=1e-3, micro_tokens=32, warmup=8,
        reference=algorithm.needs_reference, critic_lr=1e-3,
        teacher=PolicyModel(teacher.requires_grad_(False).eval()) if "teacher" in case else None,
    )  # fmt: skip
    auxiliary: list[LossTerm] = []
    if "imitation" in case and algorithm is GRPO:
        demonstrations, places = make_trajectories(22, 5), [(number, 0) for number in range(5)]
        own_demonstrations = slice(None) if alone else slice(rank, None, 2)
        auxiliary = [auxiliary_loss(student, demonstrations[own_demonstrations], places=places[own_demonstrations])]
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
    """Make accelerate use FSDP2 from here on, as fsdp2.yaml configures it. On CPUs it would ignore the setting."""
    path = files("agentgym_trainer").joinpath("accelerate_configs", "fsdp2.yaml")
    arguments, *_ = _validate_launch_command(launch_command_parser().parse_args(["--config_file", str(path), "train"]))
    variables = {name: value for name, value in prepare_multi_gpu_env(arguments).items() if name.startswith("FSDP_")}
    with pytest.MonkeyPatch.context() as environment:
        for name, value in variables.items():
            environment.setenv(name, value)
        plugin = FullyShardedDataParallelPlugin()
    if accelerator.mixed_precision != "no":
        plugin.set_mixed_precision(accelerator.mixed_precision)
    accelerator.state.fsdp_plugin = plugin
    # Each access to the accelerator's state copies the process state back into it.
    for state in (accelerator.state, PartialState()):
        state.distributed_type = DistributedType.FSDP
    assert accelerator.is_fsdp2


def update_hybrid(out: Path) -> None:
    """As one of four processes, update with the weights sharded over two and replicated twice; write the result."""
    accelerator = Accelerator(cpu=True)
    shard(accelerator)
    # On GPUs, accelerate takes it from the environment; on CPUs it would refuse it.
    accelerator.state.parallelism_config = ParallelismConfig(dp_replicate_size=2, dp_shard_size=2)
    accelerator.state.device_mesh = accelerator.state.parallelism_config.get_device_mesh("cpu")
    configure_sharding(accelerator)
    metrics, weights = update_quarter(accelerator)
    if accelerator.is_main_process:
        torch.save({"metrics": metrics, "weights": weights}, out)
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()


def update_quarter(accelerator: Accelerator) -> tuple[dict[str, float], dict[str, torch.Tensor]]:
    """Return metrics and weights after an update in which each of four processes has one of four groups."""
    trajectories = sorted(make_trajectories(21, 8, groups=4), key=lambda trajectory: trajectory.group)
    own = slice(2 * accelerator.process_index, 2 * accelerator.process_index + 2)
    model = build_model(Scratch(vocab=320, hidden=32, layers=2, heads=2), vocab=320, end_id=2, pad_id=0, seed=5)
    student = make_learner(model, accelerator=accelerator, lr=1e-3, micro_tokens=32, reference=True)
    metrics = update_on(student, trajectories if accelerator.num_processes == 1 else trajectories[own], GRPO)
    return metrics, accelerator.get_state_dict(student.actor)


def score_and_update(folder: Path, teacher_folder: Path, out: Path, lora_rank: int) -> None:
    """As one of two processes, load the model in `folder` sharded in bfloat16, score a batch, and update on it.

    The model in `teacher_folder` is loaded likewise, as a teacher. Writes log-probabilities, metrics and the updated
    weights to `out`, and a checkpoint to the folder `checkpoints` beside it.
    """
    accelerator = Accelerator(cpu=True, mixed_precision="bf16")
    shard(accelerator)
    configure_sharding(accelerator)
    lora = Lora(rank=lora_rank)
    config = RLConfig(model=str(folder), precision="bf16", device="cpu", gradient_checkpointing="on", lora=lora)
    model, chat = load_policy(config, str(folder), accelerator)
    # Only the main process reads the weights.
    assert all(weight.is_meta is (accelerator.process_index == 1) for weight in model.parameters())

    def frozen(path: Path) -> PolicyModel:
        loaded, _ = load_policy(config, str(path), accelerator, dtype=torch.bfloat16)
        assert all(weight.is_meta is (accelerator.process_index == 1) for weight in loaded.parameters())
        return PolicyModel(loaded.requires_grad_(False).eval())

    model = with_lora(model, lora, seed=0) if lora_rank else model
    student = Learner(
        PolicyModel(model, critic=ValueHead(model.config.hidden_size)),
        accelerator, Optimizer(lr=1e-3, micro_tokens=64), teacher=frozen(teacher_folder),
        reference=None if lora_rank else frozen(folder),
    )  # fmt: skip
    for kept in (student.teacher, student.reference):
        if kept is not None:
            _assert_sharded_in_half_precision(kept)
    batch = make_batch(make_trajectories(21, 4))
    scores = {"policy": student.logprobs(batch), "entropies": student.entropies(batch)}
    scores["teacher"] = student.teacher_logprobs(batch)
    # As if sampled by this very policy: the ratio of the update is then 1.
    batch = replace(batch, tokens=replace(batch.tokens, rollout_logprobs_N=scores["policy"]))
    tokens = student.compute_logprobs(batch, GRPO)
    scores["reference"] = tokens.ref_logprobs_N
    metrics = student.update(batch, tokens, GRPO.compute_advantages(tokens, student.total), GRPO)
    dtypes = {str(weight.dtype) for weight in student.actor.parameters() if weight.requires_grad}
    weights = accelerator.get_state_dict(student.actor)
    Checkpoints(out.with_name("checkpoints"), keep=1, say=print).save(
        student, chat.tokenizer, TrainingState(Stage(3), 1)
    )
    if accelerator.is_main_process:
        torch.save({**scores, "metrics": metrics, "dtypes": dtypes, "weights": weights}, out)
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()


def _assert_sharded_in_half_precision(model: Any) -> None:
    """Check that this process has about half of a frozen model's weights, in bfloat16."""
    weights = list(model.parameters())
    assert all(isinstance(weight, DTensor) and weight.dtype == torch.bfloat16 for weight in weights)
    assert not any(weight.requires_grad for weight in weights)
    local, whole = sum(weight.to_local().numel() for weight in weights), sum(weight.numel() for weight in weights)
    assert 0.45 * whole < local < 0.55 * whole


def resume_sharded(folder: Path, out: Path) -> None:
    """As one of two processes, save sharded weights in the background while they train on, and resume from that.

    Writes the weights after the update during the write, and those of the resumed learner after the same update.
    """
    accelerator = Accelerator(cpu=True)
    shard(accelerator)
    configure_sharding(accelerator)
    trajectories = make_trajectories(21, 8)[accelerator.process_index :: 2]
    algorithm = replace(GRPO, kl=replace(GRPO.kl, where="off"))
    checkpoints, results = Checkpoints(folder, keep=1, say=print, background=True), []

    def learner() -> Learner:
        accelerator.free_memory()
        model = build_model(Scratch(vocab=320, hidden=32, layers=2, heads=2), vocab=320, end_id=2, pad_id=0, seed=5)
        return make_learner(model, critic="head", accelerator=accelerator, lr=1e-3, micro_tokens=32)

    def adam_steps() -> set[float]:
        return {float(state["step"]) for state in student.optimizer.state.values()}

    chat = load_chat(str(folder.with_name("model")))
    student = learner()
    checkpoints.save(student, chat.tokenizer, TrainingState(Stage(3), 0))
    checkpoints.finish()
    assert adam_steps() == {0}
    student = learner()
    assert checkpoints.resume(student) == TrainingState(Stage(3), 0)
    assert adam_steps() == {0}
    for step in (1, 2):
        update_on(student, trajectories, algorithm)
        checkpoints.save(student, chat.tokenizer, TrainingState(Stage(3), step))
    update_on(student, trajectories, algorithm)
    results.append(accelerator.get_state_dict(student.actor))
    checkpoints.finish()
    student = learner()
    assert checkpoints.resume(student) == TrainingState(Stage(3), 2)
    update_on(student, trajectories, algorithm)
    results.append(accelerator.get_state_dict(student.actor))
    if accelerator.is_main_process:
        torch.save(results, out)
    with pytest.raises(OSError, match="step-000004 can't be written") as error, limit_file_size(10_000):
        checkpoints.save(student, chat.tokenizer, TrainingState(Stage(3), 4))
        checkpoints.finish()
    assert "Other checkpoints are untouched (step-000002)" in str(error.value)
    checkpoints.wait()
    denied = patch.object(Path, "mkdir", side_effect=PermissionError("not permitted"))
    with pytest.raises(OSError, match="not permitted"), nullcontext() if accelerator.is_main_process else denied:
        checkpoints.save(student, chat.tokenizer, TrainingState(Stage(3), 5))
        checkpoints.finish()
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()


def main(out: Path, names: Sequence[str]) -> None:
    """Run cases as one of the processes, and write the results to `out`. Cases after "sharded" are sharded."""
    accelerator = Accelerator(cpu=True)
    updates: dict[str, Any] = {}
    for name in names:
        if name == "sharded":
            shard(accelerator)
            configure_sharding(accelerator)
        else:
            updates[f"{name}, sharded" if accelerator.is_fsdp2 else name] = train(name, accelerator)
    if accelerator.is_main_process:
        torch.save({"processes": accelerator.num_processes, **updates}, out)
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()
