"""Who plays where on the leaderboard, and by which commands."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from agentgym_envs import read_episodes
from agentgym_eval.metrics.summary import Report, report
from agentgym_trainer.recipes import RECIPES
from commands import Training  # the file beside this one

KS = (1, 2, 4)


@dataclass(frozen=True, slots=True)
class World:
    """A world, as everybody plays it."""

    name: str
    turns: int
    """The limit of the paper's last stage of training."""
    tasks: int | None
    """So many test tasks, evenly spread; None is all of them."""
    samples: int
    """Attempts of those who play at random at each task."""
    recipes: tuple[str, ...]
    """What trains the small model; the last one leaves it."""
    random: str | None
    """Options under which the world lists actions to draw from; None where it can't."""
    differs: str
    """From the world of the published figures."""

    @property
    def env(self) -> str:
        """Its Gymnasium id."""
        return f"agentgym/{self.name}-v0"


WORLDS = (
    World(
        "WebArena", 15, 60, 2, ("sft-webarena",), "",
        "six embedded sites of our own with 278 test tasks, of which 60 are played, instead of the Docker images of "
        "WebArena and 50 of its 812 tasks; every episode has the state of the sites to itself",
    ),
    World(
        "SearchQA", 10, 100, 4, ("sft-searchqa",), None,
        "questions and passages of our own almanac, of which 100 are played, instead of 400 of seven published sets "
        "over Wikipedia; a wrong answer ends the episode, where it may be tried again there",
    ),
    World(
        "TextCraft", 30, None, 4, ("sft-textcraft", "evol-textcraft"), "",
        "117 held-out goals of the game's 551, dealt by a hash of their names, instead of 100 of 544; recipes and "
        "distractors stand in the same order wherever they are played",
    ),
    World(
        "BabyAI", 20, 100, 4, ("sft-babyai",), "",
        "94 levels instead of 40, of which 100 tasks are played instead of 90; a success counts whenever it comes, "
        "where it has to come before some half of the moves are used up there",
    ),
    World(
        "SciWorld", 30, 60, 2, ("sft-sciworld",), "valid_actions=True",
        "all 30 tasks in ScienceWorld's own split, of which 60 variations are played, instead of 200 of 23 tasks, 61 "
        "of them also in training",
    ),
)  # fmt: skip

PLAYERS = ("oracle", "random", "small model, sampled", "small model, greedy")


@dataclass(frozen=True)
class Cell:
    """A player in a world."""

    world: World
    player: str
    runs: Path

    @property
    def possible(self) -> bool:
        """Whether there is anything to play: nobody can draw from actions that aren't listed."""
        return self.player != "random" or self.world.random is not None

    @property
    def folder(self) -> Path:
        """Of the evaluation."""
        return self.runs / f"{self.world.name.lower()}-{self.player.replace(', ', '-').replace(' ', '-')}"

    @property
    def trainings(self) -> list[Training]:
        """What has to be trained first."""
        return [Training(recipe, self.runs) for recipe in self.world.recipes] if "model" in self.player else []

    @property
    def samples(self) -> int:
        """Attempts at each task: the expert and a greedy model do the same every time."""
        return self.world.samples if self.player in ("random", "small model, sampled") else 1

    @property
    def command(self) -> str:
        """As anyone would run it."""
        flags = [f"--env {self.world.env}", f"--policy {self._policy}", "--split test"]
        flags += [f"--tasks {self.world.tasks}"] if self.world.tasks else []
        flags += [f"--samples {self.samples}", f"--horizon {self.world.turns}"]
        if self.player == "random" and self.world.random:
            flags += [f'--options "{self.world.random}"']
        if self.trainings:
            config = RECIPES[self.trainings[-1].recipe].config
            flags += [f"--agent {config.world.agent}", "" if config.world.instructions else "--no-instructions"]
            greedy = self.player.endswith("greedy")
            flags += [f"--temperature {0 if greedy else 1} --max-tokens {config.generation.max_tokens}"]
        return " ".join(["uv run evaluate", *filter(None, flags), f"--out {self.folder}"])

    @property
    def _policy(self) -> str:
        return f"hf:{self.trainings[-1].path / 'model'}" if self.trainings else self.player

    @cached_property
    def report(self) -> Report:
        """What came of it.

        Raises:
            SystemExit: when it hasn't been played.
        """
        if not (self.folder / "report.json").exists():
            raise SystemExit(f"{self.folder} isn't played to its end; run what hasn't been run first.")
        ks = [k for k in KS if k <= self.samples]
        return report(read_episodes(self.folder / "episodes.jsonl"), ks=ks)


def cells_of(worlds: Sequence[World], runs: Path) -> list[Cell]:
    """Everybody in every world, as far as that is possible."""
    cells = [Cell(world, player, runs) for player in PLAYERS for world in worlds]
    return [cell for cell in cells if cell.possible]
