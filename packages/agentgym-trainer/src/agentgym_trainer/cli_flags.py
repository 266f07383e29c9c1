"""What `train` shows in its help beside its flags, and what it answers to flags that don't exist."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from agentgym_eval.cli.flags import flag_names, unknown_flags

EXAMPLES = (
    "train",
    "train quickstart --world.env my_worlds:mine/World-v0 --out runs/mine",
    "train textcraft-grpo --tiny",
    "train babyai-grpo --model Qwen/Qwen2.5-1.5B-Instruct --algorithm ppo --optimizer.lr 2e-6",
    "train --resume runs/mine",
)
_BATCH = "--tasks-per-step times --group-size, the episodes of each task"
SYNONYMS = {
    "learning-rate": "--optimizer.lr",
    "batch-size": _BATCH,
    "train-batch-size": _BATCH,
    "micro-batch-size": "--optimizer.micro-tokens, which counts tokens",
    "per-device-train-batch-size": "--optimizer.micro-tokens, which counts tokens",
    "num-generations": "--group-size",
    "samples": "--group-size",
    "tasks": "--tasks-per-step",
    "num-train-epochs": "--epochs",
    "max-steps": "--steps",
    "num-steps": "--steps",
    "total-steps": "--steps",
    "max-turns": "--horizon fixed --horizon.turns",
    "turns": "--horizon fixed --horizon.turns",
    "max-grad-norm": "--optimizer.clip-norm",
    "lr-scheduler-type": "--optimizer.schedule",
    "warmup-steps": "--optimizer.warmup",
    "max-new-tokens": "--generation.max-tokens",
    "max-length": "--generation.max-context",
    "beta": "--algorithm.kl.weight",
    "kl-coef": "--algorithm.kl.weight",
    "entropy-coef": "--algorithm.entropy",
    "env": "--world.env",
    "options": "--world.options",
    "agent": "--world.agent",
    "num-envs": "--slots",
    "model-name": "--model",
    "model-name-or-path": "--model",
    "lora-rank": "--lora.rank",
    "lora-r": "--lora.rank",
    "eval-every": "--evaluation.every",
    "eval-steps": "--evaluation.every",
    "save-steps": "--save-every",
    "save-total-limit": "--keep-checkpoints",
    "output": "--out",
    "output-dir": "--out",
    "report-to": "--track",
    "bf16": "--precision bf16",
    "fp16": "--precision fp16",
}
"""Names that flags have in other programs, and what they are called here."""


def meant(flags: Sequence[str], command: Any, choices: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    """A sentence for each flag that there isn't.

    Args:
        flags: Of the command line.
        command: What the recipe asks for: an instance of the dataclass that the flags are made of.
        choices: By the flag that chooses one of them, settings by name, such as `{"horizon": {"fixed": ...}}`.
    """

    def elsewhere(asked: str) -> str:
        chooser = asked.partition(".")[0]
        of = [name for name, value in choices.get(chooser, {}).items() if asked in flag_names(value, f"{chooser}.")]
        return f" It is a flag of --{chooser} {' and '.join(of)}: add that to the command." if of else ""

    # A name that chooses within another setting has a dot, which the name of a field can't have.
    known = [name if (dotted := name.replace("-", ".")) not in choices else dotted for name in flag_names(command)]
    yield from unknown_flags(flags, known, SYNONYMS, elsewhere)
