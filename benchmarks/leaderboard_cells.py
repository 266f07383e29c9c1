"""The cells of the leaderboard: policies in environments, and the commands that measure them."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from agentgym_envs import read_episodes
from agentgym_eval.metrics.summary import Report, report
from agentgym_trainer.recipes import RECIPES
from commands import Training
from outcomes import commits

KS = (1, 2, 4)
BY_PAGE = "MiniWoB++, twelve pages"
"""The task set whose results are told page by page."""


@dataclass(frozen=True, slots=True)
class World:
    """An environment with the settings of all policies."""

    name: str
    turns: int
    """Horizon: that of the paper's last training stage, if the paper has the environment."""
    tasks: int | None
    """Number of test tasks, evenly spread; None means all."""
    samples: int
    """Episodes of each task for stochastic policies."""
    recipes: tuple[str, ...]
    """Recipes that train the small model, in order; without any, there is none."""
    random: str | None
    """Options with which the environment lists available actions; None if it can't."""
    differs: str
    """Differences from the environment of the published results, or for a task set, what it is."""
    options: str = ""
    """Options of all policies."""
    task_set_of: str = ""
    """Name of the environment of which this is a task set or skin; empty for an environment."""

    @property
    def env(self) -> str:
        """Gymnasium id."""
        return f"agentgym/{self.task_set_of or self.name}-v0"


WORLDS = (
    World(
        "WebArena", 15, 60, 2, ("sft-webarena",), "",
        "six embedded sites of this package with 327 test tasks, of which 60 are played, instead of WebArena's Docker "
        "images and 50 of its 812 tasks; every episode has its own state of the sites",
    ),
    World(
        "SearchQA", 10, 100, 4, ("sft-searchqa-one-passage", "sft-searchqa"), None,
        "100 questions of the embedded almanac and its passages, instead of 400 of seven published sets over "
        "Wikipedia; a wrong answer ends the episode, instead of permitting another",
    ),
    World(
        "TextCraft", 30, None, 4, ("sft-textcraft-one-recipe", "sft-textcraft-renamed", "sft-textcraft-all-goals"), "",
        "117 held-out goals of the game's 551, split by a hash of their names, instead of 100 of 544; the order of "
        "recipes and distractors is the same in all episodes",
    ),
    World(
        "BabyAI", 20, 100, 4, ("sft-babyai",), "",
        "94 levels instead of 40, and 100 tasks instead of 90; success counts at any turn, instead of in about the "
        "first half of the moves",
    ),
    World(
        "SciWorld", 30, 60, 2, ("sft-sciworld",), "valid_actions=True",
        "60 variations of all 30 tasks in ScienceWorld's own test split, instead of 200 of 23 tasks, 61 of them also "
        "in training",
    ),
)  # fmt: skip

TASK_SETS = (
    World(
        "WebArena, rough skin", 30, 60, 1, (), "",
        "the same 60 tasks with the [widgets and the length of large web applications](../webarena.md#the-rough-skin)",
        "skin=rough", "WebArena",
    ),
    World(
        "MiniWoB++", 30, 300, 1, (), "",
        "300 test tasks of the [pages](../webarena.md#miniwob) whose text is enough to decide what to do",
        "task_set=miniwob", "WebArena",
    ),
    World(
        BY_PAGE, 4, 120, 4, ("miniwob",), "",
        "ten test tasks of each of [twelve pages](../webarena.md#miniwob), with names in place of ids",
        shlex.join(RECIPES["miniwob"].config.world.options), "WebArena",
    ),
)  # fmt: skip
"""Further task sets of these environments, which have no published results."""

POLICIES = ("oracle", "random", "small model, sampled", "small model, greedy")


@dataclass(frozen=True)
class Cell:
    """A policy in an environment."""

    world: World
    policy: str
    runs: Path

    @property
    def possible(self) -> bool:
        """Whether it can be played: a random policy needs available actions, and a small model recipes."""
        needed = {"oracle": True, "random": self.world.random is not None}
        return needed.get(self.policy, bool(self.world.recipes))

    @property
    def folder(self) -> Path:
        """Folder of the evaluation."""
        return self.runs / f"{self.world.name}-{self.policy}".lower().replace(", ", "-").replace(" ", "-")

    @property
    def trainings(self) -> list[Training]:
        """Training runs of its model."""
        return [Training(recipe, self.runs) for recipe in self.world.recipes] if "model" in self.policy else []

    @property
    def samples(self) -> int:
        """Episodes of each task; expert and greedy model are deterministic."""
        return self.world.samples if self.policy in ("random", "small model, sampled") else 1

    @property
    def command(self) -> str:
        """The command that plays it."""
        flags = [f"--env {self.world.env}", f"--policy {self._policy_flag}", "--split test"]
        flags += [f"--tasks {self.world.tasks}"] if self.world.tasks else []
        flags += [f"--samples {self.samples}", f"--horizon {self.world.turns}"]
        if options := " ".join(
            filter(None, (self.world.options, self.world.random if self.policy == "random" else ""))
        ):
            flags += [f"--options {options}"]
        if self.trainings:
            config = RECIPES[self.trainings[-1].recipe].config
            flags += [f"--agent {config.world.agent}", "" if config.world.instructions else "--no-instructions"]
            greedy = self.policy.endswith("greedy")
            flags += [f"--temperature {0 if greedy else 1} --max-tokens {config.generation.max_tokens}"]
        return " ".join(["uv run evaluate", *filter(None, flags), f"--out {self.folder}"])

    @property
    def _policy_flag(self) -> str:
        return f"hf:{self.trainings[-1].path / 'model'}" if self.trainings else self.policy

    @property
    def played(self) -> bool:
        """Whether its evaluation is finished."""
        return (self.folder / "report.json").exists()

    @cached_property
    def report(self) -> Report:
        """The results."""
        ks = [k for k in KS if k <= self.samples]
        return report(read_episodes(self.folder / "episodes.jsonl"), ks=ks)

    @property
    def record(self) -> dict[str, Any]:
        """The results as JSON values, with the commands and the commit at which the evaluation began."""
        pages = {name: metrics.success.mean for name, metrics in self.report.by_category.items()}
        return {
            "player": self.policy,
            "name": self.world.name,
            "world": self.world.env,
            "commit": commits([self.folder]),
            **({"pages": pages} if self.world.name == BY_PAGE else {}),
            "commands": [*(training.command for training in self.trainings), self.command],
            **self.report.overall.to_dict(),
        }


def cells_of(worlds: Sequence[World], runs: Path) -> list[Cell]:
    """Return all policies in all environments, as far as possible."""
    cells = [Cell(world, policy, runs) for policy in POLICIES for world in worlds]
    return [cell for cell in cells if cell.possible]
