from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from agentgym_eval.viewer.runs import Run, discover, slug_of
from hypothesis import given
from hypothesis import strategies as st
from viewer_material import episode, evaluate, train, write


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
    assert not any("tokens" in name for name in parts)


def test_the_folder_that_is_viewed_may_be_a_run_or_one_file(tmp_path: Path) -> None:
    folder = evaluate(tmp_path / "eval", [episode()])
    assert list(named(folder)) == ["eval"]
    assert [run.kind for run in discover(folder / "episodes.jsonl")] == ["episodes"]


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
    troubles = {run.path.parent.name if run.kind == "episodes" else run.name: run.trouble for run in discover(tmp_path)}
    assert whole.name in troubles
    assert {name for name, trouble in troubles.items() if trouble} == {"half"}
    assert troubles["half"].startswith("run.json can't be read")
