"""Tests of discovering runs, their files, states and identifiers."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from agentgym_eval.util.errors import UsageError
from agentgym_eval.viewer.index.discovery import discover
from agentgym_eval.viewer.index.index import Index
from agentgym_eval.viewer.index.runs import Run, slug_of
from hypothesis import given
from hypothesis import strategies as st
from viewer_runs import episode, write_episodes, write_evaluation_run, write_training_run


def runs_by_name(root: Path) -> dict[str, Run]:
    return {run.name: run for run in discover(root)}


def test_kinds_of_runs_are_detected_from_their_files(tmp_path: Path) -> None:
    write_evaluation_run(tmp_path / "deep" / "down" / "eval", [episode()])
    write_training_run(tmp_path / "rl")
    write_evaluation_run(tmp_path / "rl" / "iteration-0001" / "eval", [episode()])
    write_episodes(tmp_path / "plain.jsonl", [episode()])
    write_episodes(tmp_path / "kept.jsonl", [episode()])
    (tmp_path / "kept.card.json").write_text('{"schema": "agentgym.card/1"}')
    write_episodes(tmp_path / "set" / "textcraft" / "train.jsonl", [episode()])
    (tmp_path / "set" / "card.json").write_text('{"schema": "agentgym.card/1"}')
    (tmp_path / "other.jsonl").write_text('{"messages": []}\n')
    runs = runs_by_name(tmp_path)
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


def test_a_run_in_a_harness_names_it_with_the_policy(tmp_path: Path) -> None:
    settings = {"policy": "hf:mine", "harness": "my_agent:play"}
    write_evaluation_run(tmp_path / "function", [episode()], settings=settings)
    settings = {"model": "scratch", "harness": "", "harness_command": "python mine.py"}
    write_evaluation_run(tmp_path / "command", [episode()], settings=settings)
    policies = {name: run.policy for name, run in runs_by_name(tmp_path).items()}
    assert policies == {"function": "hf:mine in my_agent:play", "command": "scratch in python mine.py"}


def test_files_of_a_training_run_have_their_part_and_step(tmp_path: Path) -> None:
    run = runs_by_name(write_training_run(tmp_path / "rl").parent)["rl"]
    parts = {file.name: (file.part, file.step, file.decoding) for file in run.files}
    assert parts["rollouts/step-000003"] == ("rollouts", 3, "")
    assert parts["evaluations/step-000000-sampled"] == ("evaluation", 0, "sampled")
    splits = {file.name: file.split for file in run.files}
    assert splits["evaluations/step-000000-sampled"] == "test"  # the default of runs without a recorded split
    assert splits["rollouts/step-000003"] == ""
    assert not any("tokens" in name for name in parts)


def test_evaluation_files_have_their_split(tmp_path: Path) -> None:
    run = runs_by_name(write_training_run(tmp_path / "rl", split="dev", with_test=True).parent)["rl"]
    evaluations = {(file.name, file.step, file.split) for file in run.files if file.part == "evaluation"}
    assert evaluations == {
        (f"evaluations/{kind}-{step:06d}-sampled", step, split)
        for kind, split in (("step", "dev"), ("test", "test"))
        for step in (0, 4)
    }
    (tmp_path / "rl" / "run.json").write_text('{"schema": "agentgym.train/4", "config": {"evaluation": 7}}')
    assert runs_by_name(tmp_path)["rl"].split == "test"


def test_discover_accepts_a_run_folder_or_a_file(tmp_path: Path) -> None:
    folder = write_evaluation_run(tmp_path / "eval", [episode()])
    assert list(runs_by_name(folder)) == ["eval"]
    assert [run.kind for run in discover(folder / "episodes.jsonl")] == ["episodes"]


def run_states(
    root: Path, *episode_counts: int, written_ago: Sequence[float] = (), started_ago: float = 1000
) -> dict[str, str]:
    """Write runs of one command, started in this order with the given numbers of episodes, and return their states."""
    now = time.time()
    for number, episodes in enumerate(episode_counts):
        folder = write_evaluation_run(
            root / f"world-{number}", [episode(f"t/{n}") for n in range(episodes)], done=False, command=["evaluate"]
        )
        os.utime(folder / "run.json", (now - started_ago + number,) * 2)
        written = now - (written_ago[number] if written_ago else 900)
        os.utime(folder / "episodes.jsonl", (written, written))
    return {name: run.state for name, run in runs_by_name(root).items()}


def test_environments_of_one_command_run_one_after_another(tmp_path: Path) -> None:
    states = run_states(tmp_path, 2, 1, 0, 0, written_ago=(400, 5, 900, 900))
    assert list(states.values()) == ["done", "running", "waiting", "waiting"]


def test_first_environment_is_running_before_its_first_episode(tmp_path: Path) -> None:
    assert list(run_states(tmp_path, 0, 0, started_ago=9).values()) == ["running", "waiting"]


def test_skipped_environment_is_not_waiting(tmp_path: Path) -> None:
    assert list(run_states(tmp_path, 0, 1, 0, written_ago=(400, 5, 400)).values()) == ["stopped", "running", "waiting"]


@pytest.mark.parametrize(
    ("started", "began"),
    [
        ("2026-03-01T12:00:00+00:00", 1772366400),
        ("2026-03-01T12:00:00", 1772366400),
        ("yesterday", 7),
        (7, 7),
        (None, 7),
    ],
)
def test_a_run_began_when_its_record_says(tmp_path: Path, started: Any, began: float) -> None:
    """The file times of a copy, or of a run that was extended, are later."""
    folder = write_evaluation_run(tmp_path / "eval", [episode()], **({} if started is None else {"started": started}))
    os.utime(folder / "run.json", (7, 7))
    assert runs_by_name(tmp_path)["eval"].began == began


def test_runs_of_a_command_that_were_created_within_a_second_are_in_order(tmp_path: Path) -> None:
    run_states(tmp_path, 0, 1, 0, written_ago=(900, 5, 900))
    for number in range(3):
        folder = tmp_path / f"world-{number}"
        record = json.loads((folder / "run.json").read_text()) | {"started": "2026-03-01T12:00:00+00:00"}
        (folder / "run.json").write_text(json.dumps(record))
        os.utime(folder / "run.json", (1000 - number, 1000 - number))
    assert [run.state for run in runs_by_name(tmp_path).values()] == ["waiting", "running", "stopped"]


def test_no_run_of_a_stopped_command_is_waiting(tmp_path: Path) -> None:
    assert set(run_states(tmp_path, 1, 0, 0).values()) == {"stopped"}


def test_runs_of_different_commands_do_not_wait_for_each_other(tmp_path: Path) -> None:
    run_states(tmp_path, 0)
    other = write_evaluation_run(tmp_path / "other", [episode()], done=False, command=["evaluate", "--seed", "1"])
    assert {name: run.state for name, run in runs_by_name(tmp_path).items()} == {
        "world-0": "stopped",
        other.name: "running",
    }


def test_new_replies_of_a_long_episode_mean_running(tmp_path: Path) -> None:
    run_states(tmp_path, 0)
    assert runs_by_name(tmp_path)["world-0"].state == "stopped"
    (tmp_path / "world-0" / "replies.jsonl").write_text("{}\n")
    assert runs_by_name(tmp_path)["world-0"].state == "running"


@pytest.mark.parametrize(
    ("record", "expected"),
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
def test_expected_number_of_episodes_is_derived_from_settings(
    tmp_path: Path, record: dict[str, Any], expected: int | None
) -> None:
    write_evaluation_run(tmp_path / "eval", [episode()], **record)
    assert runs_by_name(tmp_path)["eval"].expected == expected
    config = {"schema": "agentgym.train/2", "config": {"samples": 4, "tasks": 6}}
    (write_training_run(tmp_path / "rl", 1) / "run.json").write_text(json.dumps(config))
    assert runs_by_name(tmp_path)["rl"].expected is None


def test_models_of_training_runs_and_hidden_folders_are_ignored(tmp_path: Path) -> None:
    run = write_training_run(tmp_path / "rl")
    write_training_run(run / "iteration-0001")
    for folder in ("checkpoints/step-000002", "model", "start", "iteration-0001/model"):
        write_evaluation_run(run / folder, [episode()])
    for folder in (".hidden", "node_modules"):
        write_episodes(tmp_path / folder / "episodes.jsonl", [episode()])
    assert list(runs_by_name(tmp_path)) == ["rl", "rl/iteration-0001"]


@pytest.mark.parametrize("name", ["checkpoints", "model", "start"])
def test_evaluation_may_have_the_name_of_a_folder_with_models(tmp_path: Path, name: str) -> None:
    write_evaluation_run(tmp_path / name, [episode()])
    write_evaluation_run(tmp_path / "group" / name / "deep", [episode()])
    write_training_run(tmp_path / "rl")
    assert set(runs_by_name(tmp_path)) == {name, f"group/{name}/deep", "rl"}


def test_damaged_run_json_is_ignored(tmp_path: Path) -> None:
    write_evaluation_run(tmp_path / "eval", [episode()])
    (tmp_path / "eval" / "run.json").write_text('{"schema": "agentgym.run/1", "sett')
    assert [run.kind for run in discover(tmp_path)] == ["episodes"]
    (tmp_path / "eval" / "run.json").write_text('{"schema": "agentgym.run/1", "settings": []}')
    assert dict(runs_by_name(tmp_path)["eval"].settings) == {}


def test_unfinished_run_is_running_while_its_files_are_recent(tmp_path: Path) -> None:
    folder = write_evaluation_run(tmp_path / "eval", [episode()], done=False)
    assert runs_by_name(tmp_path)["eval"].state == "running"
    for file in folder.iterdir():
        os.utime(file, (1, 1))
    assert runs_by_name(tmp_path)["eval"].state == "stopped"
    (folder / "report.json").write_text(json.dumps({}))
    assert runs_by_name(tmp_path)["eval"].state == "done"


@given(st.text(min_size=1))
def test_slugs_contain_only_safe_characters(name: str) -> None:
    slug = slug_of(name)
    assert slug
    assert set(slug) <= set("abcdefghijklmnopqrstuvwxyz0123456789._-")
    assert not slug.startswith(".")


@pytest.mark.parametrize(
    ("first", "second"), [("a/b", "a-b"), ("A", "a"), ("a b", "a-b"), ("ä", "ö"), ("x" * 90, "x" * 91)]
)
def test_different_names_have_different_slugs(first: str, second: str) -> None:
    assert slug_of(first) != slug_of(second)
    assert slug_of("a-b_c.1") == "a-b_c.1"


def test_damaged_run_json_is_reported_as_read_error(tmp_path: Path) -> None:
    intact, damaged, foreign = (
        write_evaluation_run(tmp_path / name, [episode()]) for name in ("whole", "half", "other")
    )
    (damaged / "run.json").write_text('{"schema": "agentgym.run/1", "sett')
    (foreign / "run.json").write_text('{"of": "somebody else"}')
    errors = {
        run.path.parent.name if run.kind == "episodes" else run.name: run.read_error for run in discover(tmp_path)
    }
    assert intact.name in errors
    assert {name for name, error in errors.items() if error} == {"half"}
    assert errors["half"].startswith("run.json can't be read")


def test_links_to_folders_elsewhere_are_followed_once(tmp_path: Path) -> None:
    run = write_evaluation_run(tmp_path / "scratch/run", [episode()])
    root = tmp_path / "runs"
    write_evaluation_run(root / "own", [episode()])
    for name, target in {"a": run, "b": run, "latest": root / "own", "loop": root, "up": tmp_path}.items():
        (root / name).symlink_to(target)
    (run / "back").symlink_to(run.parent)
    assert [found.name for found in discover(root)] == ["a", "own"]


def test_episodes_are_found_whatever_the_order_of_their_keys(tmp_path: Path) -> None:
    record = json.loads(episode().to_json())
    sorted_keys = tmp_path / "sorted.jsonl"
    sorted_keys.write_text(json.dumps(record, sort_keys=True) + "\n")
    late = {"env": "e" * 30, **{key: value for key, value in record.items() if key not in ("env", "schema")}}
    (tmp_path / "late.jsonl").write_text(json.dumps(late | {"schema": record["schema"]}) + "\n")
    quoting = tmp_path / "quoting.jsonl"
    quoting.write_text(json.dumps({"text": json.dumps(record), "episode": record}) + "\n")
    assert [found.path for found in discover(tmp_path)] == [tmp_path / "late.jsonl", sorted_keys]
    with pytest.raises(UsageError, match=r"quoting\.jsonl holds no episodes"):
        Index(quoting, tmp_path / "index.sqlite")
