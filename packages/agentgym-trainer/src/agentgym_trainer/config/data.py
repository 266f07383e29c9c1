"""Configuration of runs that train on existing episodes."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from agentgym_trainer.config.base import BaseConfig, at_least_one
from agentgym_trainer.curriculum.horizon import FixedHorizon


@dataclass(frozen=True)
class DataConfig:
    """The source of episodes and the filter on them."""

    files: tuple[str, ...] = ()
    """Files with episodes, as written by `collect`, or with conversations. Empty: collect episodes from the
    environments' experts."""
    episodes: int = 1000
    """Number of expert episodes on training tasks, if files is empty."""
    tasks: int = 0
    """Number of training tasks that the experts play, drawn once, at least one of each environment; 0: any."""
    noise: float = 0.0
    """Probability that the expert takes a random available action instead of its own."""
    imitate_noise: bool = False
    """Whether the random actions of noisy experts are in the loss, also those in `files`. Otherwise they are context:
    the model learns what the expert does after them. Pairs for DPO always compare all actions."""
    imitate_labels: bool = False
    """Whether a turn that an expert labeled (`Reply.label`) is trained on the label instead of its reply, which becomes
    context. Noisy experts then label their random actions. Each label costs a context. Not for DPO."""
    rename: float = 0.0
    """Probability that an episode is renamed: the interchangeable names of its environment (items in TextCraft, colors
    in BabyAI, words of names in SearchQA's almanac, placeholder words and first names in MiniWoB++) are permuted in all
    of its texts, so that the model has to copy them. Not for DPO."""
    copies: int = 1
    """How often each episode is in the data, each time renamed differently: few demonstrations then have many names."""
    keep: Literal["success", "all"] = "success"
    """Which episodes to keep. Failed episodes are never kept."""
    score: float | None = None
    """Score of conversations whose file contains none."""
    min_score: float = 0.0
    """Minimum score of kept episodes."""

    def __post_init__(self) -> None:
        if self.episodes < 1 or self.tasks < 0 or not 0 <= self.min_score <= 1:
            raise ValueError("data needs episodes of at least 1, tasks from 0, and a min_score from 0 to 1.")
        if not 0 <= self.noise <= 1 or not 0 <= self.rename <= 1:
            raise ValueError("data.noise and data.rename are probabilities, from 0 to 1.")
        if self.imitate_labels and (self.imitate_noise or not (self.files or self.noise)):
            raise ValueError(
                "data.imitate_labels trains on what the expert would do instead of its random actions: set data.noise "
                "or data.files, and not data.imitate_noise."
            )
        if self.copies < 1 or (self.copies > 1 and not self.rename):
            raise ValueError("data.copies is at least 1, and copies differ only by their names: set data.rename, too.")
        if self.score is not None and not 0 <= self.score <= 1:
            raise ValueError(f"data.score is from 0 to 1, not {self.score}.")


def check_tasks(data: DataConfig, environments: int, name: str = "data") -> None:
    """Check that experts play a task of each environment of a run.

    Args:
        data: Settings of the experts' episodes.
        environments: Number of environments of the run.
        name: Name of `data`, for the message.

    Raises:
        ValueError: They would play none of some.
    """
    if not data.files and 0 < data.tasks < environments:
        raise ValueError(
            f"{name}.tasks {data.tasks} leaves some of the run's {environments} environments without a task, and so "
            f"without demonstrations: set it to at least {environments}, or to 0 for any number."
        )


@dataclass(frozen=True)
class OfflineConfig(BaseConfig):
    """Settings of all runs that train on existing episodes."""

    horizon: FixedHorizon = field(default_factory=FixedHorizon)
    data: DataConfig = field(default_factory=DataConfig)
    epochs: int = 1
    """Passes over the data."""
    batch: int = 16
    """Examples per optimizer step, over all processes."""

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least_one(self, "epochs", "batch")
        if self.lora.quantize != "off":
            raise ValueError(
                f"lora.quantize {self.lora.quantize} is for reinforcement learning only: leave it off in SFT, DPO and "
                "AgentEvol, where the frozen weights under an adapter are bfloat16 with precision bf16."
            )
        if self.optimizer.offload:
            raise ValueError(
                "optimizer.offload is for reinforcement learning only: leave it off in SFT, DPO and AgentEvol, whose "
                "optimizer keeps its moments on the GPU."
            )
        check_tasks(self.data, len(self.worlds))


@dataclass(frozen=True)
class SFTConfig(OfflineConfig):
    """Supervised fine-tuning on episodes."""

    packing: bool = False
    """Pack episodes into rows of generation.max_context tokens, without attention between episodes. An example is then
    a row."""
    weighted: bool = False
    """Weight each episode's loss by its score (reward-weighted likelihood, as in arXiv 2406.04151)."""
    completion_only_loss: bool = True
    """Whether only completion tokens are in the loss. Otherwise prompts and observations are, too, as in pretraining.
    Replies that are only context stay out of it."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.packing and self.weighted:
            raise ValueError("Packed rows hold episodes with different scores: set either packing or weighted.")
        if self.data.imitate_labels and not self.completion_only_loss:
            raise ValueError(
                "data.imitate_labels repeats the context of each label, which would be in the loss as often: leave "
                "completion_only_loss on."
            )
