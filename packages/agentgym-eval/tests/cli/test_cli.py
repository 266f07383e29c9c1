"""Tests of the commands `evaluate` and `collect` and of their flags and help."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from agentgym_envs import read_episodes
from agentgym_envs.cli.flags import flag_names, read_flags, unknown_flags
from agentgym_eval.cli.convert import ConvertSettings, convert
from agentgym_eval.cli.earlier_settings import defaults
from agentgym_eval.cli.examples import COMMON, EXAMPLES, SYNONYMS
from agentgym_eval.cli.main import collect, evaluate
from agentgym_eval.cli.view import ViewSettings
from agentgym_eval.runs.comparison_settings import CompareSettings
from agentgym_eval.runs.settings import CollectSettings, EvaluateSettings
from counting_world import ENV


def flags(*more: str, policy: str = "oracle") -> list[str]:
    return ["--env", ENV, "--policy", policy, *more]


@pytest.mark.quick
def test_evaluate_writes_a_report_and_prints_a_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert evaluate(flags("--samples", "4", "--k", "4", "1", "--out", str(tmp_path), policy="random")) == 0
    out, err = capsys.readouterr()
    for part in ("few", "many", "difficulty 9", "pass@4", f"episodes are in {tmp_path}"):
        assert part in out
    assert "40 episodes" in err
    assert "\x1b" not in err
    report = json.loads((tmp_path / "report.json").read_text())
    assert report["schema"] == "agentgym.report/3"
    assert report.keys() == {
        "schema", "intervals", "faults", "causes", "overall", "by_world", "by_category", "by_difficulty", "by_turns",
        "pass_by_turns", "task_set", "settings", "versions",
    }  # fmt: skip
    overall = report["overall"]
    assert (overall["tasks"], overall["episodes"], overall["failed"]) == (10, 40, 0)
    for metric in (overall["success"], overall["score"], overall["turns"], overall["pass_at"]["4"]):
        assert metric["low"] <= metric["mean"] <= metric["high"]
        assert metric["tasks"] == 10
    assert overall["pass_at"]["1"]["mean"] == pytest.approx(overall["success"]["mean"])
    assert report["settings"]["k"] == [1, 4]
    assert report["settings"]["env"] == ENV
    assert list(report["by_category"]) == ["few", "many"]


def test_names_like_those_of_pictograms_are_printed_as_they_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("llama:7b").write_text("add\n")
    assert evaluate(flags("--tasks", "2", "--out", "run", policy="scripted:llama:7b")) == 0
    out, err = capsys.readouterr()
    assert f"scripted:llama:7b in {ENV}" in out
    assert f"scripted:llama:7b in {ENV}: 2 episodes" in err


def test_oracle_succeeds_on_all_tasks(tmp_path: Path) -> None:
    assert evaluate(flags("--out", str(tmp_path))) == 0
    overall = json.loads((tmp_path / "report.json").read_text())["overall"]
    interval = {"low": pytest.approx(0.722, abs=0.001), "high": 1.0, "bootstrap": [1.0, 1.0]}
    assert overall["success"] == {"mean": 1.0, "tasks": 10, **interval}


def test_tags_are_recorded_and_replaced_by_those_of_a_later_command(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def tags_after(*given: str) -> tuple[int, list[str] | None]:
        code = evaluate(flags("--tasks", "2", *given, "--out", str(tmp_path)))
        return code, json.loads((tmp_path / "run.json").read_text()).get("tags")

    assert tags_after() == (0, None)
    assert tags_after("--tags", "b", "a, c d") == (0, ["a", "b", "c d"])
    assert tags_after() == (0, ["a", "b", "c d"])
    assert tags_after("--tags", "x", "--overwrite") == (0, ["x"])
    assert tags_after("--tags", "!x") == (2, ["x"])
    assert "A tag begins with a letter" in capsys.readouterr().err
    assert "tags" not in json.loads((tmp_path / "run.json").read_text())["settings"]


def test_default_output_folder_is_named_after_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert evaluate(flags("--tasks", "2", policy="oracle:0.5")) == 0
    assert (tmp_path / "runs/evaluate/count-oracle-0.5-test/report.json").exists()
    assert "episodes are in runs/evaluate/count-oracle-0.5-test" in capsys.readouterr().out


def test_too_many_failed_episodes_give_exit_code_1(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    broken = flags("--options", "broken=(2,5)", "--out", str(tmp_path))
    assert evaluate(broken) == 1
    out, err = capsys.readouterr()
    assert "2 of 10 episodes failed, more than --max-failed 0.05 allows" in err
    assert "EnvFault: the counter [5] jammed" in out
    assert "pass@1 and pass^1 exclude 2 tasks with fewer than 1 attempts that did not fail" in out
    overall = json.loads((tmp_path / "report.json").read_text())["overall"]
    assert (overall["failed"], overall["success"]["mean"], overall["success"]["tasks"]) == (2, 1.0, 8)
    assert evaluate([*broken, "--max-failed", "0.2"]) == 0


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--env", "TextKraft", "--policy", "oracle"], "There is no environment 'TextKraft'. Did you mean"),
        (flags(policy="orcale"), "There is no policy 'orcale'. Did you mean oracle?"),
        (flags(policy="oracle:2"), "The noise in oracle:2 must be a number"),
        (flags(policy="scripted:nowhere"), "scripted:nowhere can't be read"),
        (flags("--task", "count/test/99"), "There is no task 'count/test/99'"),
        (flags("--options", "broken"), "is not of the form KEY=VALUE"),
        (
            ["--env", "textcraft", "--policy", "oracle", "--options", "depht=2"],
            "has no option 'depht'. Did you mean 'depth'",
        ),
        (flags("--rate", "-3"), "--rate must be above 0, not -3"),
    ],
)
@pytest.mark.parametrize("command", [evaluate, collect])
def test_invalid_names_give_a_one_sentence_error_and_exit_code_2(
    command: object, arguments: list[str], sentence: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert callable(command)
    assert command([*arguments, "--out", str(tmp_path / "new")]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert sentence in err
    assert "Traceback" not in err
    assert list(tmp_path.iterdir()) == []


def test_help_of_boolean_flags_starts_with_whether(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        evaluate(["--help-all"])
    shown = " ".join(capsys.readouterr().out.replace("│", " ").split())
    boolean_flags = re.findall(r"--([\w-]+), --no-\1 (\w+)", shown)
    assert {name for name, _ in boolean_flags} == {"instructions", "native-tools"}
    assert {word for _, word in boolean_flags} == {"Whether"}
    assert len(re.findall("--no-", shown)) == len(boolean_flags)


SETTINGS = {
    "evaluate": EvaluateSettings,
    "collect": CollectSettings,
    "compare": CompareSettings,
    "view": ViewSettings,
    "convert": ConvertSettings,
}


@pytest.mark.parametrize("command", SETTINGS)
def test_help_has_valid_examples_and_synonyms(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs" / "mine").mkdir(parents=True)
    help_texts: dict[str, Any] = {"examples": EXAMPLES[command], "synonyms": SYNONYMS[command]}
    run = {"schema": "agentgym.run/1", "settings": {"env": "textcraft", "policy": "oracle"}}
    for folder in ("runs/baselines/textcraft-oracle-test", "data/noisy"):
        (tmp_path / folder).mkdir(parents=True)
        (tmp_path / folder / "run.json").write_text(json.dumps(run))
    (tmp_path / "settings.toml").write_text("env = 'textcraft'")
    for example in EXAMPLES[command]:
        program, *arguments = shlex.split(example)
        assert program == command
        if command in COMMON:
            help_texts["from_files"] = partial(defaults, SETTINGS[command], arguments)
        read_flags(command, SETTINGS[command], arguments, **help_texts)
    with pytest.raises(SystemExit):
        read_flags(command, SETTINGS[command], ["--help"], **help_texts)
    shown = capsys.readouterr().out
    assert all(example.split(" --")[0] in shown for example in EXAMPLES[command])
    assert "{None}|" not in shown
    existing_flags = {*flag_names(SETTINGS[command]), "no-open"}
    for synonym, replacement in SYNONYMS[command].items():
        assert synonym not in existing_flags
        assert set(re.findall(r"--([\w-]+)", replacement)) <= existing_flags


@pytest.mark.parametrize("command", COMMON)
def test_help_is_short_and_help_all_lists_every_flag(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    run = {"evaluate": evaluate, "collect": collect, "convert": convert}[command]
    shown: list[str] = []
    for flag in ("--help", "--help-all"):
        with pytest.raises(SystemExit, match="0"):
            run([flag])
        shown.append(capsys.readouterr().out)
    short, long = shown
    names = {*flag_names(SETTINGS[command]), *(() if command == "convert" else ("config", "like"))}
    assert {*COMMON[command]} <= names
    assert all(f"  --{name} " in short and about in short for name, about in COMMON[command].items())
    assert f"--help-all lists all {len(names)} flags." in short
    assert len(short.splitlines()) < 44 < len(long.splitlines())
    assert all(re.search(rf"--{name}\b", long) for name in names)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--env", ENV, "--polcy", "oracle"], "There is no --polcy. Did you mean --policy?"),
        (["--world", ENV, "--policy", "oracle"], "There is no --world. Here that is --env."),
        (flags("--max_turns=3"), "There is no --max_turns. Here that is --horizon."),
        (flags("--smaples", "3"), "There is no --smaples. Did you mean --samples?"),
        (flags("--quux"), "There is no --quux.\n"),
    ],
)
def test_unknown_flags_are_answered_with_a_suggestion(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="2"):
        evaluate(arguments)
    assert f"evaluate: {message}" in capsys.readouterr().err


def test_existing_flags_are_not_reported_as_unknown(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        evaluate(flags("--no-instructions", "--no_native_tools", "--max-tokens=x", "--base-url", "http://a"))
    assert "There is no" not in capsys.readouterr().err


@pytest.mark.parametrize("command", ["evaluate", "compare"])
def test_help_ends_cleanly_if_its_output_pipe_is_closed(command: str) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    command_line = [Path(sys.executable).with_name(command), "--help"]
    done = subprocess.run(command_line, stdout=writing, stderr=subprocess.PIPE, text=True, check=False)
    os.close(writing)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--smaples", "3"], "--samples"),
        (["--samples", "0"], "--samples must be at least 1, not 0"),
        (["--k", "2"], "--k 2 must be between 1 and --samples"),
        (["--split", "validation"], "invalid choice 'validation'"),
        (["--seed", "-1"], "must be 0 or more"),
        (["--temperature", "nan"], "must be 0 or more"),
        (["--max-failed", "7"], "a share between 0 and 1, not 7"),
        (["--tasks", "2", "--task", "count/test/1"], "give one of the three"),
        (["--tasks", "2", "--items", "ids.json"], "give one of the three"),
    ],
)
def test_invalid_flag_values_give_exit_code_2(
    arguments: list[str], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    try:
        code = evaluate(flags(*arguments))
    except SystemExit as end:  # of the parser
        code = end.code
    assert code == 2
    assert sentence in " ".join(capsys.readouterr().err.replace("│", " ").split())


def test_collect_writes_matching_episodes_in_task_order(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "data" / "episodes.jsonl"
    arguments = flags("--samples", "5", "--options", "broken=(0,)", "--max-failed", "1", "--out", policy="oracle:0.3")
    assert collect([*arguments, str(out)]) == 0
    episodes = list(read_episodes(out))
    assert [(e.sample, int(e.task_id.rpartition("/")[2])) for e in episodes] == [
        (sample, goal) for sample in range(5) for goal in range(1, 12)
    ]
    assert {e.split for e in episodes} == {"train"}
    assert f"Wrote 55 of 60 episodes to {out}; 5 failed episodes left out" in capsys.readouterr().out
    assert collect([*arguments, str(tmp_path / "good.jsonl"), "--keep", "success"]) == 0
    kept = [(e.task_id, e.sample) for e in read_episodes(tmp_path / "good.jsonl")]
    assert kept == [(e.task_id, e.sample) for e in episodes if e.success]
    expected_files = ["data", "good.card.json", "good.card.md", "good.jsonl"]
    assert sorted(path.name for path in tmp_path.iterdir()) == expected_files


def test_collect_does_not_overwrite_a_file_without_the_flag(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "episodes.jsonl"
    assert collect(flags("--tasks", "2", "--out", str(out))) == 0
    assert collect(flags("--tasks", "1", "--out", str(out))) == 2
    assert "exists already" in capsys.readouterr().err
    assert len(list(read_episodes(out))) == 2
    assert collect(flags("--tasks", "1", "--out", str(out), "--overwrite")) == 0
    assert len(list(read_episodes(out))) == 1


def test_collect_without_matching_episodes_gives_exit_code_1(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    script = tmp_path / "script.txt"
    script.write_text("wait\n")
    out = str(tmp_path / "none.jsonl")
    arguments = flags("--horizon", "2", "--out", out, "--keep", "success", policy=f"scripted:{script}")
    assert collect(arguments) == 1
    assert "None of the 12 episodes" in capsys.readouterr().err


def test_synonyms_apply_only_to_existing_flags() -> None:
    synonyms = {"beta": "--algorithm.kl.weight, the weight of the KL term", "turns": "--horizon fixed"}
    known = ["items", "horizon", "steps", "out"]
    messages = [*unknown_flags(["--beta", "--turns", "--temp", "--stepz"], known, synonyms)]
    assert messages == [
        "There is no --beta.",
        "There is no --turns. Here that is --horizon fixed.",
        "There is no --temp.",
        "There is no --stepz. Did you mean --steps?",
    ]
