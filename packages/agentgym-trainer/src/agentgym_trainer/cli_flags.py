"""Examples in the help of `train`, and suggestions for flags that don't exist."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from agentgym_envs.cli.flags import flag_names, unknown_flags

EXAMPLES = (
    "train",
    "train quickstart --world.env my_worlds:mine/World-v0 --out runs/mine",
    "train textcraft-grpo --tiny",
    "train babyai-grpo --model Qwen/Qwen2.5-1.5B-Instruct --algorithm ppo --optimizer.lr 2e-6",
    "train babyai-grpo --lora.rank 32 --engine.kind vllm --plan H100",
    "train --like runs/mine --optimizer.lr 2e-6 --out runs/mine-2e-6",
    "train textcraft-grpo --config settings.toml --seed 1",
    "train babyai-grpo --sweep optimizer.lr=1e-6,3e-6 algorithm=grpo,rloo --seeds 0 1 2 --out runs/sweep",
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
    "prompt": "--world.prompt",
    "system-prompt": "--world.prompt",
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
"""Names of flags in other programs, with the flags that they are called here."""


def meant(
    flags: Sequence[str], command: Any, choices: Mapping[str, Mapping[str, Any]], others: Mapping[str, Any]
) -> Iterator[str]:
    """Yield a sentence for each unknown flag, with the flag that was probably meant.

    Args:
        flags: The command line.
        command: An instance of the dataclass that the flags are made from, with the recipe's configuration.
        choices: Settings that are selected by name, by flag and name, such as `{"horizon": {"fixed": ...}}`.
        others: The same as `command` for recipes of other kinds, by their names.
    """

    def of_other_choice(flag: str) -> str:
        chooser = flag.partition(".")[0]
        names = [name for name, value in choices.get(chooser, {}).items() if flag in flag_names(value, f"{chooser}.")]
        if names:
            return f" It is a flag of --{chooser} {' or '.join(names)}: add that to the command."
        recipes = [name for name, other in others.items() if flag in flag_names(other)]
        return f" It is a flag of other recipes, such as {', '.join(recipes)}." if recipes else ""

    # The flag of a nested selection has a dot, but the name of its field can't have one.
    # `--config` is the field `config_file`.
    known = [
        "config",
        *(name if (dotted := name.replace("-", ".")) not in choices else dotted for name in flag_names(command)),
    ]
    yield from unknown_flags(flags, known, SYNONYMS, of_other_choice)
