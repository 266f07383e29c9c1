"""The short help of `train`: recipes, examples, the flags that most runs need, and the groups of all others.

Nothing heavy is imported here, so that `--help` is fast.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from functools import reduce
from typing import Any

from agentgym_envs.cli.flags import flag_names
from agentgym_envs.util.installation import command

from agentgym_trainer.cli_choices import choices
from agentgym_trainer.cli_flags import EXAMPLES

COMMON = {
    "out": "folder of the run, which is created (default: runs/RECIPE-DATE-TIME)",
    "resume": "continue the run in this folder; takes no other flags",
    "model": "name or folder of a model, smollm2, or scratch for a new one",
    "world.env": "environment: a short name such as textcraft, a Gymnasium id, or MODULE:ID",
    "world.options": "options of the environment, as KEY=VALUE",
    "world.agent": "reply format and habits of the agent, such as react+plan",
    "world.prompt": "file or MODULE:NAME of a system message in place of the environment's",
    "algorithm": "",
    "horizon": "",
    "steps": "updates",
    "epochs": "passes over the data, or over the episodes of an update",
    "tasks-per-step": "tasks of an update",
    "group-size": "episodes of each of these tasks",
    "batch": "episodes or pairs of an update",
    "optimizer.lr": "learning rate",
    "lora.rank": "rank of a LoRA adapter; 0 trains all weights",
    "engine.kind": "what samples: transformers, vllm or vllm-server",
    "evaluation.every": "updates between evaluations on dev tasks; 0: only before and after",
    "seed": "seed of everything that is drawn",
    "device": "where to train: auto or cpu",
    "config": "JSON or TOML file of settings",
    "like": "start from the settings of the run in this folder",
    "plan": "print the memory that the run needs on HARDWARE, such as 8xH100, and exit",
    "sweep": "train a run for each value: FLAG=VALUE,VALUE",
    "seeds": "train a run for each seed",
    "tiny": "scale everything down, as a smoke test on a CPU",
    "list": "list the recipes and exit",
}
"""The flags that most runs need, of all kinds of runs. Those without a text are selected by name."""


def short_help(recipe: str, parsed: Any, recipes: str) -> str:
    """Return the short help.

    Args:
        recipe: The recipe whose flags and values are shown.
        parsed: The command line with the recipe's settings as defaults.
        recipes: The list of all recipes.
    """
    selected = choices(parsed.config)
    names = {"config" if name == "config-file" else name for name in flag_names(parsed)} | selected.keys()
    groups = Counter(name.partition(".")[0] for name in names if "." in name)
    examples = "".join(f"\n  {command(example)}" for example in EXAMPLES)
    common = "\n".join(_common(parsed.config, names))
    others = ", ".join(f"--{group}.* ({count})" for group, count in sorted(groups.items()))
    before = "; for those of another algorithm, horizon, sampler or reward, give it before" if selected else ""
    return (
        f"usage: {command('train')} [RECIPE] [--FLAG VALUE ...]\n\nRecipes:\n{recipes}\n\nExamples:{examples}\n\n"
        f"Flags of {recipe} that most runs need, with its values:\n{common}\n\nAll groups of flags: {others}.\n\n"
        f"{command('train')} {recipe} --help-all lists all flags with their values{before}.\n"
    )


def _common(config: Any, names: set[str]) -> Iterator[str]:
    selected = choices(config)
    for name, about in COMMON.items():
        if name in selected:
            yield f"  --{name:<18}{', '.join(selected[name].known)}, or MODULE:NAME"
        elif name in names:
            yield f"  --{name:<18}{about}{_value(config, name)}"


def _value(config: Any, name: str) -> str:
    """Return the value of a setting in brackets; empty for a flag that is no setting of the run, and for no value."""
    value = reduce(lambda at, part: getattr(at, part, None), name.replace("-", "_").split("."), config)
    shown = " ".join(map(str, value)) if isinstance(value, tuple) else value
    return "" if shown in (None, "") else f" [{shown}]"
