from __future__ import annotations

import json
import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from agentgym_eval.viewer.index.runs import Run, discover, slug_of
from hypothesis import given
from hypothesis import strategies as st
from viewer_runs import episode, evaluate, train, write


def named(root: Path) -> dict[str, Run]:
    return {run.name: run for run in discover(root)}


def test_runs_are_told_by_what_their_files_say(tmp_path: Path) -> None:
    evaluate(tmp_path / "deep" / "down" / "eval", [episode()])
    train(tmp_path / "rl")
    evaluate(tmp_path / "rl" / "iteration-0001" / "eval", [episode()])
    write(tmp_path / "plain.jsonl", [episode()])
    write(tmp_path / "kept.jsonl", [episode()])
    (tmp_path / "kept.card.json").write_text('{"schema": "agentgym.card/1"}')
    write(tmp_path / "set" / "textcraft" / "train.jsonl", [episode()])
    (tmp_path / "set" / "card.json").write_text('{"schema": "agentgym.card/1"}')
    (tmp_path / "other.jsonl").write_text('{"messages": []}\n')
    runs = named(tmp_path)
    assert {name: run.kind for name, run in runs.items()} == {
        "deep/down/eval": "evaluate",
        "rl": "train",
        "rl/iteration-0001/eval": "evaluate",
        "plain.jsonl": "episodes",
        "kept.jsonl": "collect",
        "set": "collect",
    }
    assert runs["rl"].recipe == "quickstart"
    assert runs["rl"].policy == "scratch"
    assert runs["deep/down/eval"].policy == "oracle"


def test_a_training_run_knows_what_each_file_holds(tmp_path: Path) -> None:
    run = named(train(tmp_path / "rl").parent)["rl"]
    parts = {file.name: (file.part, file.step, file.manner) for file in run.files}
    assert parts["rollouts/step-000003"] == ("rollouts", 3, "")
    assert parts["evaluations/step-000000-sampled"] == ("evaluation", 0, "sampled")
    splits = {file.name: file.split for file in run.files}
    assert splits["evaluations/step-000000-sampled"] == "test"  # as it was before there was a choice
    assert splits["rollouts/step-000003"] == ""
    assert not any("tokens" in name for name in parts)


def test_evaluations_say_which_split_they_played(tmp_path: Path) -> None:
    run = named(train(tmp_path / "rl", split="dev", tested=True).parent)["rl"]
    found = {(file.name, file.step, file.split) for file in run.files if file.part == "evaluation"}
    assert found == {
        (f"evaluations/{kind}-{step:06d}-sampled", step, split)
        for kind, split in (("step", "dev"), ("test", "test"))
        for step in (0, 4)
    }
    (tmp_path / "rl" / "run.json").write_text('{"schema": "agentgym.train/4", "config": {"evaluation": 7}}')
    assert named(tmp_path)["rl"].split == "test"


def test_the_folder_that_is_viewed_may_be_a_run_or_one_file(tmp_path: Path) -> None:
    folder = evaluate(tmp_path / "eval", [episode()])
    assert list(named(folder)) == ["eval"]
    assert [run.kind for run in discover(folder / "episodes.jsonl")] == ["episodes"]


def several(root: Path, *played: int, ago: Sequence[float] = (), began: float = 1000) -> dict[str, str]:
    """The states of runs of one command, which began in this order, by how many episodes they have."""
    now = time.time()
    for number, episodes in enumerate(played):
        folder = evaluate(
            root / f"world-{number}", [episode(f"t/{n}") for n in range(episodes)], done=False, command=["evaluate"]
        )
        os.utime(folder / "run.json", (now - began + number,) * 2)
        written = now - (ago[number] if ago else 900)
        os.utime(folder / "episodes.jsonl", (written, written))
    return {name: run.state for name, run in named(root).items()}


def test_worlds_of_one_command_are_played_one_after_the_other(tmp_path: Path) -> None:
    states = several(tmp_path, 2, 1, 0, 0, ago=(400, 5, 900, 900))
    assert list(states.values()) == ["done", "running", "waiting", "waiting"]


def test_before_its_first_episode_the_first_world_is_running(tmp_path: Path) -> None:
    assert list(several(tmp_path, 0, 0, began=9).values()) == ["running", "waiting"]


def test_a_world_that_was_left_out_does_not_wait(tmp_path: Path) -> None:
    assert list(several(tmp_path, 0, 1, 0, ago=(400, 5, 400)).values()) == ["stopped", "running", "waiting"]


def test_nothing_waits_for_a_command_that_has_stopped(tmp_path: Path) -> None:
    assert set(several(tmp_path, 1, 0, 0).values()) == {"stopped"}


def test_runs_of_different_commands_do_not_wait_for_each_other(tmp_path: Path) -> None:
    several(tmp_path, 0)
    other = evaluate(tmp_path / "other", [episode()], done=False, command=["evaluate", "--seed", "1"])
    assert {name: run.state for name, run in named(tmp_path).items()} == {"world-0": "stopped", other.name: "running"}


def test_replies_of_a_long_episode_show_that_a_run_goes_on(tmp_path: Path) -> None:
    several(tmp_path, 0)
    assert named(tmp_path)["world-0"].state == "stopped"
    (tmp_path / "world-0" / "replies.jsonl").write_text("{}\n")
    assert named(tmp_path)["world-0"].state == "running"


@pytest.mark.parametrize(
    ("about", "expected"),
    [
        ({"settings": {"samples": 4, "tasks": 6, "task": []}}, 24),
        ({"settings": {"samples": 4, "tasks": None, "task": ["a", "b"]}}, 8),
        ({"settings": {"samples": 2, "tasks": None, "task": []}, "resolved": {"tasks": 50}}, 100),
        ({"settings": {"samples": 2, "tasks": None, "task": []}, "resolved": 3}, None),
        ({"settings": {"tasks": 5}}, None),
        ({"settings": {"tasks": "5", "samples": 1}}, None),
        ({}, None),
    ],
)
def test_how_many_episodes_a_run_is_to_have(tmp_path: Path, about: dict[str, Any], expected: int | None) -> None:
    evaluate(tmp_path / "eval", [episode()], **about)
    assert named(tmp_path)["eval"].expected == expected
    config = {"schema": "agentgym.train/2", "config": {"samples": 4, "tasks": 6}}
    (train(tmp_path / "rl", 1) / "run.json").write_text(json.dumps(config))
    assert named(tmp_path)["rl"].expected is None


def test_checkpoints_and_hidden_folders_are_passed_over(tmp_path: Path) -> None:
    write(tmp_path / "checkpoints" / "episodes.jsonl", [episode()])
    write(tmp_path / ".hidden" / "episodes.jsonl", [episode()])
    assert discover(tmp_path) == []


def test_a_damaged_run_json_makes_no_run_and_no_error(tmp_path: Path) -> None:
    evaluate(tmp_path / "eval", [episode()])
    (tmp_path / "eval" / "run.json").write_text('{"schema": "agentgym.run/1", "sett')
    assert [run.kind for run in discover(tmp_path)] == ["episodes"]
    (tmp_path / "eval" / "run.json").write_text('{"schema": "agentgym.run/1", "settings": []}')
    assert dict(named(tmp_path)["eval"].settings) == {}


def test_a_run_without_its_end_runs_while_it_writes(tmp_path: Path) -> None:
    folder = evaluate(tmp_path / "eval", [episode()], done=False)
    assert named(tmp_path)["eval"].state == "running"
    for file in folder.iterdir():
        os.utime(file, (1, 1))
    assert named(tmp_path)["eval"].state == "stopped"
    (folder / "report.json").write_text(json.dumps({}))
    assert named(tmp_path)["eval"].state == "done"


@given(st.text(min_size=1))
def test_slugs_are_plain_names(name: str) -> None:
    slug = slug_of(name)
    assert slug
    assert set(slug) <= set("abcdefghijklmnopqrstuvwxyz0123456789._-")
    assert not slug.startswith(".")


@pytest.mark.parametrize(
    ("one", "other"), [("a/b", "a-b"), ("A", "a"), ("a b", "a-b"), ("ä", "ö"), ("x" * 90, "x" * 91)]
)
def test_different_names_have_different_slugs(one: str, other: str) -> None:
    assert slug_of(one) != slug_of(other)
    assert slug_of("a-b_c.1") == "a-b_c.1"


def test_a_run_whose_record_is_damaged_says_so(tmp_path: Path) -> None:
    whole, half, other = (evaluate(tmp_path / name, [episode()]) for name in ("whole", "half", "other"))
    (half / "run.json").write_text('{"schema": "agentgym.run/1", "sett')
    (other / "run.json").write_text('{"of": "somebody else"}')
    errors = {
        run.path.parent.name if run.kind == "episodes" else run.name: run.read_error for run in discover(tmp_path)
    }
    assert whole.name in errors
    assert {name for name, error in errors.items() if error} == {"half"}
    assert errors["half"].startswith("run.json can't be read")
