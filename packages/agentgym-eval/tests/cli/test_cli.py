from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from agentgym_envs import read_episodes
from agentgym_eval.cli.convert import ConvertSettings
from agentgym_eval.cli.examples import EXAMPLES, SYNONYMS
from agentgym_eval.cli.flags import flag_names, read_flags, unknown_flags
from agentgym_eval.cli.main import collect, evaluate
from agentgym_eval.cli.view import ViewSettings
from agentgym_eval.runs.settings import CollectSettings, CompareSettings, EvaluateSettings
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
    written = json.loads((tmp_path / "report.json").read_text())
    assert written["schema"] == "agentgym.report/3"
    assert written.keys() == {
        "schema", "intervals", "faults", "overall", "by_world", "by_category", "by_difficulty", "by_turns", "task_set",
        "settings", "versions",
    }  # fmt: skip
    overall = written["overall"]
    assert (overall["tasks"], overall["episodes"], overall["failed"]) == (10, 40, 0)
    for figure in (overall["success"], overall["score"], overall["turns"], overall["pass_at"]["4"]):
        assert figure["low"] <= figure["mean"] <= figure["high"]
        assert figure["tasks"] == 10
    assert overall["pass_at"]["1"]["mean"] == pytest.approx(overall["success"]["mean"])
    assert written["settings"]["k"] == [1, 4]
    assert written["settings"]["env"] == ENV
    assert list(written["by_category"]) == ["few", "many"]


def test_the_oracle_succeeds_everywhere(tmp_path: Path) -> None:
    assert evaluate(flags("--out", str(tmp_path))) == 0
    overall = json.loads((tmp_path / "report.json").read_text())["overall"]
    ends = {"low": pytest.approx(0.722, abs=0.001), "high": 1.0, "bootstrap": [1.0, 1.0]}
    assert overall["success"] == {"mean": 1.0, "tasks": 10, **ends}


def test_without_out_the_folder_is_named_after_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert evaluate(flags("--tasks", "2", policy="oracle:0.5")) == 0
    assert (tmp_path / "runs/evaluate/count-oracle-0.5-test/report.json").exists()
    assert "episodes are in runs/evaluate/count-oracle-0.5-test" in capsys.readouterr().out


def test_too_many_failed_episodes_are_exit_code_1(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
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
def test_a_wrong_name_is_one_sentence_and_exit_code_2(
    command: object, arguments: list[str], sentence: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert callable(command)
    assert command([*arguments, "--out", str(tmp_path / "new")]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert sentence in err
    assert "Traceback" not in err
    assert list(tmp_path.iterdir()) == []


def test_help_reads_right_of_what_can_be_switched_off(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        evaluate(["--help"])
    shown = " ".join(capsys.readouterr().out.replace("│", " ").split())
    switches = re.findall(r"--([\w-]+), --no-\1 (\w+)", shown)
    assert {name for name, _ in switches} == {"instructions", "native-tools"}
    assert {first for _, first in switches} == {"Whether"}
    assert len(re.findall("--no-", shown)) == len(switches)


NOUNS = {
    "evaluate": EvaluateSettings,
    "collect": CollectSettings,
    "compare": CompareSettings,
    "view": ViewSettings,
    "convert": ConvertSettings,
}


@pytest.mark.parametrize("command", NOUNS)
def test_help_has_examples_that_work_and_synonyms_of_flags_that_exist(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs" / "mine").mkdir(parents=True)
    known = {"examples": EXAMPLES[command], "synonyms": SYNONYMS[command]}
    for example in EXAMPLES[command]:
        program, *arguments = shlex.split(example)
        assert program == command
        read_flags(command, NOUNS[command], arguments, **known)
    with pytest.raises(SystemExit):
        read_flags(command, NOUNS[command], ["--help"], **known)
    shown = capsys.readouterr().out
    assert all(example.split(" --")[0] in shown for example in EXAMPLES[command])
    assert "{None}|" not in shown
    there_are = {*flag_names(NOUNS[command]), "no-open"}
    for synonym, here in SYNONYMS[command].items():
        assert synonym not in there_are
        assert set(re.findall(r"--([\w-]+)", here)) <= there_are


@pytest.mark.parametrize(
    ("arguments", "meant"),
    [
        (["--env", ENV, "--polcy", "oracle"], "There is no --polcy. Did you mean --policy?"),
        (["--world", ENV, "--policy", "oracle"], "There is no --world. Here that is --env."),
        (flags("--max_turns=3"), "There is no --max_turns. Here that is --horizon."),
        (flags("--smaples", "3"), "There is no --smaples. Did you mean --samples?"),
        (flags("--quux"), "There is no --quux.\n"),
    ],
)
def test_a_flag_that_does_not_exist_is_answered_with_the_one_that_was_meant(
    arguments: list[str], meant: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="2"):
        evaluate(arguments)
    assert f"evaluate: {meant}" in capsys.readouterr().err


def test_flags_that_exist_are_not_taken_for_others(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        evaluate(flags("--no-instructions", "--no_native_tools", "--max-tokens=x", "--base-url", "http://a"))
    assert "There is no" not in capsys.readouterr().err


@pytest.mark.parametrize("command", ["evaluate", "compare"])
def test_who_has_seen_enough_of_the_help_may_go(command: str) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    call = [Path(sys.executable).with_name(command), "--help"]
    done = subprocess.run(call, stdout=writing, stderr=subprocess.PIPE, text=True, check=False)
    os.close(writing)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize(
    ("more", "sentence"),
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
def test_a_wrong_flag_is_exit_code_2(more: list[str], sentence: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exit_:
        evaluate(flags(*more))
    assert exit_.value.code == 2
    assert sentence in " ".join(capsys.readouterr().err.replace("│", " ").split())


def test_collect_keeps_the_asked_kind_in_the_order_of_the_tasks(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "data" / "episodes.jsonl"
    noisy = flags("--samples", "5", "--options", "broken=(0,)", "--max-failed", "1", "--out", policy="oracle:0.3")
    assert collect([*noisy, str(out)]) == 0
    episodes = list(read_episodes(out))
    assert [(e.sample, int(e.task_id.rpartition("/")[2])) for e in episodes] == [
        (sample, goal) for sample in range(5) for goal in range(1, 12)
    ]
    assert {e.split for e in episodes} == {"train"}
    assert f"Wrote 55 of 60 episodes to {out}; 5 failed episodes left out" in capsys.readouterr().out
    assert collect([*noisy, str(tmp_path / "good.jsonl"), "--keep", "success"]) == 0
    kept = [(e.task_id, e.sample) for e in read_episodes(tmp_path / "good.jsonl")]
    assert kept == [(e.task_id, e.sample) for e in episodes if e.success]
    left = ["data", "good.card.json", "good.card.md", "good.jsonl"]
    assert sorted(path.name for path in tmp_path.iterdir()) == left


def test_collect_does_not_write_over_a_file_unasked(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "episodes.jsonl"
    assert collect(flags("--tasks", "2", "--out", str(out))) == 0
    assert collect(flags("--tasks", "1", "--out", str(out))) == 2
    assert "exists already" in capsys.readouterr().err
    assert len(list(read_episodes(out))) == 2
    assert collect(flags("--tasks", "1", "--out", str(out), "--overwrite")) == 0
    assert len(list(read_episodes(out))) == 1


def test_collect_with_nothing_to_keep_is_exit_code_1(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    script = tmp_path / "script.txt"
    script.write_text("wait\n")
    out = str(tmp_path / "none.jsonl")
    arguments = flags("--horizon", "2", "--out", out, "--keep", "success", policy=f"scripted:{script}")
    assert collect(arguments) == 1
    assert "None of the 12 episodes" in capsys.readouterr().err


def test_a_synonym_counts_only_where_the_flag_is() -> None:
    synonyms = {"beta": "--algorithm.kl.weight, the weight of the KL term", "turns": "--horizon fixed"}
    known = ["items", "horizon", "steps", "out"]
    told = [*unknown_flags(["--beta", "--turns", "--temp", "--stepz"], known, synonyms)]
    assert told == [
        "There is no --beta.",
        "There is no --turns. Here that is --horizon fixed.",
        "There is no --temp.",
        "There is no --stepz. Did you mean --steps?",
    ]
