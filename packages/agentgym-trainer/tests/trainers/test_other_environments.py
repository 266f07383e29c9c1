"""Environments of other libraries, each played, imitated, trained in and evaluated by the ordinary commands."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from agentgym_envs import read_episodes
from agentgym_eval.cli.main import collect, evaluate
from agentgym_trainer.run.folder import RunFolder
from dev_packages import require_packages
from toy_learner import train_cli
from uvicorn_threads import served

require_packages("openenv", "skyrl_gym")
from openenv.core.env_server import Action, Environment, Observation, State, create_fastapi_app

pytestmark = pytest.mark.long

STEPS = 4


@dataclass(frozen=True)
class Door:
    """An environment, with the ways of playing it that a model imitates before it is trained."""

    env: str
    options: tuple[str, ...]
    policies: tuple[str, ...]


def scripts(folder: Path, *actions: str) -> tuple[str, ...]:
    """Write a script for each action, and return policies that repeat it."""
    for number, action in enumerate(actions):
        (folder / f"{number}.txt").write_text(action, encoding="utf-8")
    return tuple(f"scripted:{folder / f'{number}.txt'}" for number in range(len(actions)))


def written(file: Path, rows: list[dict[str, object]]) -> Path:
    file.write_text("".join(f"{json.dumps(row)}\n" for row in rows), encoding="utf-8")
    return file


class Guess(Action):
    message: str


class Answer(Observation):
    message: str


class Parity(Environment[Guess, Answer, State]):
    """Pays 1 for the right word on the parity of a number, which is all that there is to do."""

    SUPPORTS_CONCURRENT_SESSIONS = True

    def reset(self, seed: int | None = None, episode_id: str | None = None, **_: Any) -> Answer:
        self.word = ("even", "odd")[(seed or 0) % 2]
        return Answer(message=f"Is {(seed or 0) % 10} even or odd?")

    def step(self, action: Guess, timeout_s: float | None = None, **_: Any) -> Answer:
        right = action.message.strip() == self.word
        return Answer(message="Right." if right else f"No, {self.word}.", done=True, reward=float(right))

    @property
    def state(self) -> State:
        return State()


@contextmanager
def blackjack(_: Path) -> Iterator[Door]:
    yield Door("gymnasium:Blackjack-v1", ("actions=('stick', 'hit')", "low=-1"), ("random",))


@contextmanager
def parity(folder: Path) -> Iterator[Door]:
    with served(create_fastapi_app(Parity, Guess, Answer, max_concurrent_envs=64)) as url:
        yield Door(f"openenv:{url}", ("train=400", "test=8"), scripts(folder, "even", "odd"))


@contextmanager
def sums(folder: Path) -> Iterator[Door]:
    rows: list[dict[str, object]] = [
        {"prompt": [{"role": "user", "content": f"{i} + 1 = ?"}], "reward_spec": {"ground_truth": str(i + 1)}}
        for i in (0, 1) * 20
    ]
    file = written(folder / "sums.jsonl", rows)
    yield Door("skyrl:gsm8k_multi_turn", (f"rows={file}", "max_turns=2"), scripts(folder, "#### 1", "#### 2"))


def small(door: Door, out: Path, recipe: str, **settings: str) -> list[str]:
    """Return the arguments of a run of a minute or so."""
    common = {
        "world.env": door.env, "world.agent": "bare", "horizon.turns": "3", "generation.max-tokens": "64",
        "generation.max-context": "1000", "evaluation.tasks": "4", "evaluation.test-tasks": "4",
        "evaluation.samples": "2", "evaluation.every": "100", "out": str(out),
    }  # fmt: skip
    flags = [word for name, value in (common | settings).items() for word in (f"--{name}", value)]
    more = ["--world.options", *door.options, "--world.no-instructions", "--evaluation.ks", "1"]
    return [recipe, *flags, *more]


def demonstrations(door: Door, folder: Path) -> list[str]:
    """Collect episodes of the door's policies on its training tasks."""
    files = list[str]()
    for number, policy in enumerate(door.policies):
        file = folder / f"demonstrations-{number}.jsonl"
        flags = ["--env", door.env, "--policy", policy, "--agent", "bare", "--split", "train", "--tasks", "32"]
        assert collect([*flags, "--no-instructions", "--options", *door.options, "--out", str(file)]) == 0
        files.append(str(file))
    return files


@pytest.fixture(params=[blackjack, parity, sums])
def door(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Door]:
    opened: Callable[[Path], AbstractContextManager[Door]] = request.param
    with opened(tmp_path) as found:
        yield found


def test_a_model_is_trained_in_it_and_evaluated(door: Door, tmp_path: Path) -> None:
    files = demonstrations(door, tmp_path)
    imitated, trained = tmp_path / "imitated", tmp_path / "trained"
    scratch = {"scratch.vocab": "300", "scratch.hidden": "32", "scratch.layers": "1", "scratch.heads": "2"}
    imitation = {"optimizer.lr": "1e-2", "optimizer.warmup": "0", "epochs": "12", "batch": "8"}
    sft = small(door, imitated, "sft-textcraft", **scratch, **imitation, **{"data.keep": "all", "save-every": "100"})
    assert train_cli([*sft, "--data.files", *files]) == 0
    update = {"steps": str(STEPS), "tasks-per-step": "4", "group-size": "4", "optimizer.lr": "1e-3"}
    rl = {"model": str(imitated / "model"), "warm-start.episodes": "0", "device": "cpu", "precision": "no"}
    assert train_cli(small(door, trained, "textcraft-grpo", **rl, **update)) == 0
    folder = RunFolder.open(trained)[0]
    steps = list(folder.read_metrics())
    assert [step["step"] for step in steps] == list(range(1, STEPS + 1))
    assert all(step["failed"] == 0 and step["env_steps"] > 0 for step in steps)
    assert sum(step["trained"] for step in steps) > 0
    assert any(step["return_std"] > 0 and step["grad_norm"] > 0 for step in steps)
    report = tmp_path / "report"
    flags = ["--env", door.env, "--policy", f"hf:{folder.model}", "--agent", "bare", "--split", "test", "--tasks", "4"]
    flags += ["--samples", "2", "--max-tokens", "64", "--no-instructions", "--horizon", "3", "--out", str(report)]
    assert evaluate([*flags, "--options", *door.options]) == 0
    episodes = list(read_episodes(report / "episodes.jsonl"))
    assert [(episode.env, episode.split) for episode in episodes] == [(door.env, "test")] * 8
    assert {episode.stop for episode in episodes} <= {"terminated", "truncated"}
