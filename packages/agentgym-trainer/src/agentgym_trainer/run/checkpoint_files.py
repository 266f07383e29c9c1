"""The files of a checkpoint: what each process writes of a learner's state, and how it is read.

Small files are written at once. Weights and the optimizer's state are a `LearnerState`, which may be copied to host
memory first and written by another thread. Names and formats are accelerate's, whose `load_state` reads them, and
Hugging Face's for the model, which other programs load.
"""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from accelerate.checkpointing import save_accelerator_state
from accelerate.utils.constants import FSDP_MODEL_NAME, OPTIMIZER_NAME
from peft import PeftModel, set_peft_model_state_dict
from peft.utils import SAFETENSORS_WEIGHTS_NAME
from safetensors.torch import load_file, save_file
from torch import Tensor
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.filesystem import FileSystemWriter
from torch.distributed.checkpoint.staging import DefaultStager, StagingOptions
from torch.distributed.checkpoint.state_dict import get_model_state_dict, get_optimizer_state_dict
from torch.distributed.checkpoint.state_dict_saver import save
from torch.distributed.tensor import DTensor

from agentgym_trainer.curriculum.state import TrainingState
from agentgym_trainer.distributed import thread_group
from agentgym_trainer.learner.learner import Learner
from agentgym_trainer.learner.optimizer import compute_dtype

PROGRESS = "progress.json"
METRICS = "metrics.jsonl"
"""A copy of the run's metrics up to the checkpoint, sealed with it."""
CRITIC = "critic.safetensors"


def write_small_files(
    folder: Path, learner: Learner, tokenizer: Any, progress: TrainingState, metrics: Path | None
) -> None:
    """Write schedule, scaler and random states, tokenizer, training state and metrics. Every process must call this."""
    accelerator: Any = learner.accelerator
    save_accelerator_state(
        str(folder), [], [], accelerator._schedulers, [], accelerator.process_index, accelerator.step,
        accelerator.scaler,
    )  # fmt: skip
    if accelerator.is_main_process:
        tokenizer.save_pretrained(folder)
        (folder / PROGRESS).write_text(json.dumps(progress.to_json(), indent=1) + "\n", encoding="utf-8")
        copy_metrics(metrics, folder)


def copy_metrics(metrics: Path | None, folder: Path) -> None:
    """Copy the metrics into a checkpoint, if there are any."""
    if metrics is not None and metrics.exists():
        shutil.copyfile(metrics, folder / METRICS)


@dataclass(frozen=True)
class LearnerState:
    """Weights and the optimizer's state, as far as this process writes them."""

    policy: Any
    """The Hugging Face model, or peft model of one, whose configuration is saved with its weights."""
    whole: dict[str, Any]
    """Whole tensors, which only the main process writes: `weights` by name, and `optimizer` if it isn't sharded."""
    shards: dict[str, Any]
    """State of which each process writes its shards, by the name of the folder; empty if nothing is sharded."""
    group: Any
    """The process group for writing shards."""

    @classmethod
    def of(cls, learner: Learner) -> LearnerState:
        """Return the learner's state, which shares memory with the learner. Every process must call this."""
        accelerator, whole, shards, group = learner.accelerator, dict[str, Any](), dict[str, Any](), None
        policy: Any = accelerator.unwrap_model(learner.actor).policy
        weights = _whole_weights(learner)
        if accelerator.is_main_process:
            whole["weights"] = weights
        if accelerator.is_fsdp2:
            # Beside the model for other programs, the shards hold all weights in full precision.
            optimizer = _optimizer_state(learner)
            shards[f"{FSDP_MODEL_NAME}_0"] = {"model": get_model_state_dict(learner.actor)}
            shards[f"{OPTIMIZER_NAME}_0"] = {"optimizer": optimizer}
            group = thread_group("checkpoints")
        elif accelerator.is_main_process:
            whole["optimizer"] = learner.optimizer.state_dict()
        return cls(policy, whole, shards, group)

    def write(self, folder: Path) -> None:
        """Write the state. Every process must call this; the main one returns once all have written their shards.

        Raises:
            OSError: It can't be written.
        """
        for name, state in self.shards.items():
            _write_shards(folder / name, state, self.group)
        if "optimizer" in self.whole:
            torch.save(self.whole["optimizer"], folder / f"{OPTIMIZER_NAME}.bin")
        if "weights" in self.whole:
            # With "auto", peft would ask the hub for the base model's configuration.
            options: Any = {"save_embedding_layers": False} if isinstance(self.policy, PeftModel) else {}
            self.policy.save_pretrained(str(folder), state_dict=_part(self.whole["weights"], "policy."), **options)
            if critic := _part(self.whole["weights"], "critic."):
                save_file({name: tensor.contiguous() for name, tensor in critic.items()}, folder / CRITIC)


class HostState:
    """Host memory for copies of a learner's state, which is reused from checkpoint to checkpoint."""

    def __init__(self, device: torch.device) -> None:
        """Allocate nothing yet; memory for copies from a GPU will be pinned."""
        on_gpu = device.type == "cuda"
        self._stager = DefaultStager(
            StagingOptions(
                use_pinned_memory=on_gpu,
                use_shared_memory=False,
                use_async_staging=False,
                use_non_blocking_copy=on_gpu,
            )
        )

    def copied(self, state: LearnerState) -> LearnerState:
        """Return a copy, which is valid until the next one. Returns when it's complete."""
        whole, shards = (self._staged(part) for part in (state.whole, state.shards))
        return LearnerState(state.policy, whole, shards, state.group)

    def _staged(self, state: dict[str, Any]) -> dict[str, Any]:
        staged: Any = self._stager.stage(state)
        return staged


def read_weights(learner: Learner, models: list[Any], folder: str) -> None:
    """Load hook: read the weights; `models` is empty when accelerate has already read its own sharded copies."""
    if not models:
        return
    models.clear()
    actor: Any = learner.accelerator.unwrap_model(learner.actor)
    if actor.has_adapter:
        set_peft_model_state_dict(actor.policy, load_file(Path(folder, SAFETENSORS_WEIGHTS_NAME)))
    else:
        stored = type(actor.policy).from_pretrained(folder, dtype=actor.policy.dtype)
        actor.policy.load_state_dict(stored.state_dict())
    if actor.critic is not None:
        actor.critic.load_state_dict(load_file(Path(folder, CRITIC)))


def _write_shards(folder: Path, state: dict[str, Any], group: Any) -> None:
    """Write this process's shards; return once all processes have written theirs.

    Raises:
        OSError: On all processes, if one of them can't create the folder or write its shards.
    """
    try:
        # Without copying ahead: in a thread beside the main one, torch would wait for the first GPU of the machine,
        # where each process would then take half a GB.
        save(state, storage_writer=FileSystemWriter(folder, per_thread_copy_ahead=0), process_group=group)
    except CheckpointException as error:  # which is no Exception
        first, _ = next(iter(error.failures.values()))
        raise (first if isinstance(first, Exception) else OSError(str(error))) from error


def _optimizer_state(learner: Learner) -> dict[str, Any]:
    """Return the sharded state of the optimizer. Where it has taken no step yet, torch takes one without effect, which
    must not count in AdamW's correction of the bias.
    """
    fresh = not learner.optimizer.state
    optimizer: dict[str, Any] = get_optimizer_state_dict(learner.actor, learner.optimizer)
    if fresh:
        for state in (*learner.optimizer.state.values(), *optimizer["state"].values()):
            state["step"].zero_()
    return optimizer


@torch.no_grad()
def _whole_weights(learner: Learner) -> dict[str, Tensor]:
    """Return the weights for the model's own files. Of a model with an adapter, that is only what trains.

    Shards are gathered in the main process's host memory; other processes get none. Whole models are then in the data
    type of the computation, and what an adapter consists of in float32, since the final model is merged from it.
    """
    accelerator = learner.accelerator
    actor: Any = accelerator.unwrap_model(learner.actor)
    state: dict[str, Tensor] = actor.state_dict()
    if actor.has_adapter:
        state = {name: state[name] for name, weight in actor.named_parameters() if weight.requires_grad}
    if not accelerator.is_fsdp2:
        return state
    gathered, dtype = dict[str, Tensor](), None if actor.has_adapter else compute_dtype(accelerator)
    for name, tensor in state.items():
        cast = tensor if dtype is None else tensor.to(dtype)
        whole = cast.full_tensor() if isinstance(cast, DTensor) else cast
        if accelerator.is_main_process:
            gathered[name] = whole.cpu()
    return gathered


def _part(state: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): tensor for name, tensor in state.items() if name.startswith(prefix)}
