"""Texts of the commands' help: example command lines, the flags that most users need, and synonyms, names that other
programs have for their flags.
"""

from __future__ import annotations

EXAMPLES = {
    "evaluate": (
        "evaluate --env textcraft --policy oracle random --tasks 50 --out runs/baselines",
        "evaluate --env babyai --policy openai:gpt-4o-mini --samples 4 --k 1 4 --horizon 20",
        "evaluate --env all --policy hf:runs/mine/model --agent react+plan --split test",
        "evaluate --env all --policy openai:gpt-4o --protocol agentgym-rl --out runs/paper",
        "evaluate --like runs/baselines/textcraft-oracle-test --policy hf:runs/mine/model --out runs/same-settings",
        "evaluate --env my_worlds:mine/World-v0 --policy random --options size=3",
    ),
    "collect": (
        "collect --env textcraft --policy oracle --tasks 500 --out demonstrations.jsonl",
        "collect --env babyai textcraft --policy oracle:0.3 --samples 4 --keep success --out data/noisy",
        "collect --like data/noisy --seed 1 --out data/noisy-1",
    ),
    "compare": (
        "compare runs/before runs/after",
        "compare runs/baselines --k 1 4 --out runs/comparison",
    ),
    "view": (
        "view",
        "view runs/mine --port 8080 --no-open",
        "view runs --export pages",
    ),
    "convert": (
        "convert demonstrations.jsonl --to trl --out sft.jsonl",
        "convert runs/mine --to pairs --out dpo.jsonl",
    ),
}

_PLAYING = {
    "env": "environments: short names such as textcraft, Gymnasium ids, MODULE:ID, or all (required)",
    "policy": "oracle, oracle:NOISE, random, openai:MODEL, hf:PATH, vllm:PATH or MODULE:NAME (required)",
    "split": "split to take the tasks from: train, dev or test",
    "tasks": "number of tasks, spread evenly over the split's categories and difficulties",
    "samples": "number of attempts at each task",
    "agent": "reply format and habits, such as react+plan",
    "prompt": "file or MODULE:NAME of a system message in place of the environment's",
    "horizon": "maximum number of actions per episode",
    "temperature": "sampling temperature of language models",
    "max-tokens": "maximum number of tokens per reply of language models",
    "options": "options of the environment, as KEY=VALUE",
    "slots": "number of environments that run in parallel",
    "seed": "seed of everything that is drawn",
}
_FROM = {
    "config": "JSON or TOML file of settings, by the names of flags",
    "like": "start from the settings of this run",
}
COMMON = {
    "evaluate": _PLAYING
    | {
        "k": "values of k for pass@k and pass^k",
        "protocol": "evaluation settings of a paper, such as agentgym-rl",
        "forensics": "also measure how far from the goal unsuccessful episodes were",
        "price": "prices of a model behind an endpoint, per million tokens",
        "budget": "stop at this usage, such as cost=5",
        "tags": "tags of the runs, for the viewer",
        "out": "folder of the run, or of the runs",
        "overwrite": "discard an existing run in --out",
    }
    | _FROM,
    "collect": _PLAYING
    | {
        "keep": "save all episodes, or only those with success",
        "min-score": "save only episodes with at least this score",
        "out": "FILE.jsonl, or a folder with a file per environment (required)",
        "overwrite": "discard an existing run in --out",
    }
    | _FROM,
    "convert": {
        "to": "output format: episodes, trl, agentgym, items or pairs (required)",
        "out": "output file (required)",
        "score": "score of conversations whose file has none, from 0 to 1",
        "skip": "leave out records of tasks that this package doesn't have",
        "label": "convert only episodes with this label of the viewer",
        "pairs.most": "maximum number of pairs per task, for --to pairs",
        "overwrite": "overwrite the output file if it exists",
    },
}
"""The flags in the short help of commands that have many, with what they are."""

_PLAYED = {
    "world": "--env",
    "environment": "--env",
    "model": "--policy, such as --policy openai:MODEL or hf:PATH",
    "limit": "--tasks",
    "num-tasks": "--tasks",
    "n": "--samples",
    "num-samples": "--samples",
    "max-steps": "--horizon",
    "max-turns": "--horizon",
    "max-episode-steps": "--horizon",
    "max-new-tokens": "--max-tokens",
    "batch-size": "--slots, the number of parallel environments",
    "num-envs": "--slots",
    "concurrency": "--slots",
    "workers": "--slots",
    "env-options": "--options",
    "output": "--out",
    "output-dir": "--out",
    "resume": "the same command again, which resumes the run",
    "system-prompt": "--prompt",
    "prompt-template": "--prompt",
    "api-base": "--base-url",
    "url": "--base-url",
}
_WRITTEN = {"output": "--out", "output-dir": "--out"}
SYNONYMS = {
    "evaluate": _PLAYED,
    "collect": _PLAYED,
    "compare": _WRITTEN,
    "view": {"output": "--export", "out": "--export", "browser": "--open or --no-open"},
    "convert": _WRITTEN | {"format": "--to"},
}
