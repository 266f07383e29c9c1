"""Tests of `evaluate` with several environments or policies, and of the folders of runs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from agentgym_envs import read_episodes
from agentgym_eval.cli.main import collect, compare, evaluate
from agentgym_eval.runs import environments
from agentgym_eval.runs.settings import EvaluateSettings
from agentgym_eval.storage.provenance import provenance
from agentgym_eval.util.errors import UsageError
from counting_world import ENV
from gymnasium.error import DependencyNotInstalled
from several_runs import WORLDS

pytestmark = pytest.mark.usefixtures("no_plots")


def keys(folder: Path) -> list[tuple[str, int]]:
    return [(episode.task_id, episode.sample) for episode in read_episodes(folder / "episodes.jsonl")]


def test_every_policy_and_environment_pair_is_a_run(many: Path) -> None:
    runs = sorted(path.name for path in many.iterdir() if path.is_dir())
    expected = [(env, policy) for env in ("count", "textcraft") for policy in ("oracle", "random")]
    assert runs == [f"{env}-{policy}-test" for env, policy in expected]
    for env, policy in expected:
        folder = many / f"{env}-{policy}-test"
        record = json.loads((folder / "run.json").read_text())
        assert (record["settings"]["policy"], len(set(keys(folder)))) == (policy, 8)
        assert {"command", "folder", "started", "versions", "git"} <= record.keys()
        assert json.loads((folder / "report.json").read_text())["overall"]["episodes"] == 8


def test_adding_a_policy_plays_only_its_episodes(many: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = {path: path.read_bytes() for path in many.glob("*/episodes.jsonl")}
    arguments = [*WORLDS, "--policy", "oracle", "random", "oracle:0.5", "--out", str(many)]
    assert evaluate(arguments) == 0
    out, err = capsys.readouterr()
    assert err.count("16 episodes, 16 of them already done") == 2
    assert {path: path.read_bytes() for path in before} == before
    for part in (
        "oracle:0.5 in textcraft",
        "random in all environments vs. oracle in all environments",
        f"uv run view {many}",
    ):
        assert part in out


def test_env_all_means_all_installed_environments(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    build = environments.WorldSpec.build

    def build_or_fail(spec: environments.WorldSpec) -> object:
        if "TextCraft" not in spec.id and "Count" not in spec.id:
            raise DependencyNotInstalled(f"{spec.id} needs more")
        return build(spec)

    monkeypatch.setattr(environments.WorldSpec, "build", build_or_fail)
    installed, missing = environments.installed_worlds()
    assert installed == ("textcraft",)
    assert missing["babyai"] == "agentgym/BabyAI-v0 needs more"
    flags = [
        "--env",
        "all",
        ENV,
        "--policy",
        "oracle",
        "--tasks",
        "1",
        "--horizon",
        "2",
        "--options",
        "count:pause=0.0",
    ]
    assert evaluate([*flags, "--options", "count:pause=0.0", "--out", str(tmp_path / "runs")]) == 0
    assert len(list(tmp_path.glob("runs/*/episodes.jsonl"))) == 2
    assert collect([*flags, "--out", str(tmp_path / "data")]) == 0
    assert sorted(path.parent.name for path in tmp_path.glob("data/*/train.jsonl")) == ["count", "textcraft"]


@pytest.fixture
def missing_program(monkeypatch: pytest.MonkeyPatch) -> str:
    """Make TextCraft lack a required program, and return its error message."""
    message = "There is no Chromium on this machine. Install one: install-browser"

    def check(env: object) -> None:
        raise DependencyNotInstalled(message)

    monkeypatch.setattr("agentgym_envs.worlds.textcraft.env.TextCraft.check_dependencies", check)
    return message


def test_environment_with_a_missing_program_is_skipped(
    missing_program: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert evaluate([*WORLDS, "--policy", "oracle", "random", "--out", str(tmp_path / "runs")]) == 2
    captured = capsys.readouterr()
    assert captured.err.count(f"Skipping textcraft: {missing_program}") == 1
    assert "The report and all episodes are in" in captured.out
    assert (tmp_path / "runs/report.json").is_file()
    assert {path.parent.name for path in tmp_path.glob("runs/*/run.json")} == {"count-oracle-test", "count-random-test"}


def test_missing_program_of_the_only_environment_is_an_error(
    missing_program: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = ["--env", "textcraft", "--tasks", "1", "--out", str(tmp_path / "run")]
    assert evaluate([*flags, "--policy", "oracle"]) == 2
    assert evaluate([*flags, "--policy", "oracle", "random"]) == 2
    assert collect([*flags, "--policy", "oracle"]) == 2
    assert capsys.readouterr().err.count(missing_program) == 3
    assert not (tmp_path / "run").exists()


def test_env_all_excludes_environments_with_missing_programs(missing_program: str) -> None:
    installed, missing = environments.installed_worlds()
    assert "textcraft" not in installed
    assert missing["textcraft"] == missing_program


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"policy": ("oracle", "oracle")}, "--policy names oracle twice"),
        ({"policy": ()}, "--policy names no policy"),
        ({"env": (ENV, "counting/Count-v0")}, "--env names count twice"),
        ({"options": ("babyai:x=1",)}, "is for babyai, which is not among the environments of --env"),
    ],
)
def test_invalid_settings_are_rejected(changes: dict[str, tuple[str, ...]], sentence: str) -> None:
    with pytest.raises(UsageError, match=sentence):
        EvaluateSettings(**({"env": (ENV,), "policy": ("oracle",)} | changes))


def test_run_folder_is_not_used_for_several_runs(many: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = many / "count-oracle-test"
    before = (folder / "report.json").read_bytes()
    assert evaluate([*WORLDS, "--policy", "oracle", "--out", str(folder)]) == 2
    assert "holds a single run" in capsys.readouterr().err
    assert (folder / "report.json").read_bytes() == before


def test_folder_of_runs_is_not_used_for_a_single_run(many: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = (many / "report.json").read_bytes()
    assert evaluate(["--env", ENV, "--policy", "oracle", "--out", str(many)]) == 2
    assert "holds several runs" in capsys.readouterr().err
    assert (many / "report.json").read_bytes() == before
    assert not (many / "episodes.jsonl").exists()


def test_indirect_paths_do_not_bypass_overwrite_protection(many: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = (many / "report.json").read_bytes()
    indirect, missing = many / "nowhere" / "..", many / "nowhere"
    assert evaluate(["--env", ENV, "--policy", "oracle", "--out", str(indirect)]) == 2
    assert "holds several runs" in capsys.readouterr().err
    run = indirect / "count-oracle-test"
    assert compare([str(many), "--out", str(run)]) == 2
    assert "holds a run, whose report would be overwritten" in capsys.readouterr().err
    assert collect(["--env", ENV, "--policy", "oracle", "--tasks", "1", "--out", str(run)]) == 2
    assert "exists already" in capsys.readouterr().err
    assert (many / "report.json").read_bytes() == before
    assert not missing.exists()


@pytest.mark.parametrize("broken", ["policy", "environment"])
def test_overwrite_keeps_the_old_run_until_there_are_new_episodes(
    tmp_path: Path, broken: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = ["--env", ENV, "--policy", "oracle", "--out", str(tmp_path)]
    assert evaluate(flags) == 0
    before = {path: path.read_bytes() for path in tmp_path.iterdir()}
    arguments = [*flags, "--overwrite"]
    if broken == "policy":
        arguments[3] = "scripted:nowhere.txt"
        assert evaluate(arguments) == 2
        assert "can't be read" in capsys.readouterr().err
    else:
        assert evaluate([*arguments, "--options", f"broken={tuple(range(10))}"]) == 1
        err = capsys.readouterr().err
        assert "10 episodes in" in err
        assert "failed one after the other and are not kept" in err
        assert f"Nothing has been replaced yet in {tmp_path}. Resume with: uv run evaluate" in err
        assert "--overwrite" in err
    assert {path: path.read_bytes() for path in tmp_path.iterdir()} == before
    assert evaluate([*flags, "--overwrite", "--tasks", "3"]) == 0
    assert len(keys(tmp_path)) == 3


def test_failures_in_a_row_stop_the_run_and_are_not_kept(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from agentgym_envs import EnvFault, Task
    from counting_world import Count

    start, failures = Count._start, list[str]()

    def failing_start(env: Count, task: Task) -> str:
        if failures or task.id == "count/test/7":
            failures.append(task.id)
            raise EnvFault("no server at http://here")
        return start(env, task)

    monkeypatch.setattr(Count, "_start", failing_start)
    flags = ["--env", ENV, "--policy", "oracle", "--samples", "3", "--slots", "1", "--out", str(tmp_path)]
    assert evaluate(flags) == 1
    err = capsys.readouterr().err
    assert "10 episodes in" in err
    assert "the last one with EnvFault: no server at http://here." in err
    assert "--max-failed 1" in err
    assert len(keys(tmp_path)) == 7
    monkeypatch.setattr(Count, "_start", start)
    assert evaluate(flags) == 0
    assert sorted(keys(tmp_path)) == [(f"count/test/{i}", sample) for i in range(10) for sample in range(3)]


def test_run_of_only_failures_completes_with_max_failed_1(tmp_path: Path) -> None:
    flags = ["--env", ENV, "--policy", "oracle", "--options", f"broken={tuple(range(10))}", "--samples", "2"]
    assert evaluate([*flags, "--max-failed", "1", "--out", str(tmp_path)]) == 0
    report = json.loads((tmp_path / "report.json").read_text())["overall"]
    assert (report["failed"], report["success"]["mean"]) == (20, None)


def test_duplicate_and_unknown_lines_are_reported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    flags = ["--env", ENV, "--policy", "oracle", "--out", str(tmp_path)]
    assert evaluate(flags) == 0
    report = json.loads((tmp_path / "report.json").read_text())["overall"]
    assert "episodes.jsonl, line" not in capsys.readouterr().err
    path = tmp_path / "episodes.jsonl"
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join([*lines, lines[3], lines[5].replace("count/test/5", "count/test/u")]))
    assert evaluate(flags) == 0
    err = capsys.readouterr().err
    assert f"{path}, line 4: count/test/3, sample 0, is in line 11 again, which counts instead.\n" in err
    assert f"{path}, line 12: counting/Count-v0 has no task 'count/test/u'; the line doesn't count.\n" in err
    assert json.loads((tmp_path / "report.json").read_text())["overall"] == report


def test_environment_that_a_policy_cannot_play_is_skipped(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    flags = [*WORLDS, "--policy", "oracle", "random", "--options", "count:listed=False", "--out", str(tmp_path)]
    assert evaluate(flags) == 2
    out, err = capsys.readouterr()
    assert f"Skipping random in {ENV}: counting/Count-v0 lists no available actions here" in err
    runs = json.loads((tmp_path / "report.json").read_text())["runs"]
    assert [(run["policy"], run["world"]) for run in runs] == [
        ("oracle", ENV), ("oracle", "textcraft"), ("random", "textcraft"),
    ]  # fmt: skip
    assert "random in textcraft vs. oracle in textcraft" in out
    assert compare([str(tmp_path)]) == 0
    single = ["--env", ENV, "--policy", "random", "--options", "listed=False", "--out", str(tmp_path / "alone")]
    assert evaluate(single) == 2
    assert "play oracle or scripted:FILE" in capsys.readouterr().err


def test_option_of_one_environment_is_written_with_its_name(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def said(option: str) -> str:
        flags = [*WORLDS, "--policy", "oracle", "--options", option, "--out", str(tmp_path / "new")]
        assert evaluate(flags) == 2
        return capsys.readouterr().err

    assert "no option 'depth'" in (error := said("depth=(1,1)"))
    assert error.endswith(" For one environment only, write textcraft:depth=(1,1).\n")
    assert "no option 'pause'" in (error := said("pause=0.0"))
    assert error.endswith(" For one environment only, write count:pause=0.0.\n")
    for of_none in ("depht=(1,1)", "count:depth=(1,1)"):
        assert "no option" in (error := said(of_none))
        assert "For one environment only" not in error


def test_recorded_command_contains_no_secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    arguments = [
        "evaluate",
        "--options",
        "url=http://me:sesame@there:8000",
        "token=sesame",
        "count:token=sesame",
        "a=//b",
    ]
    monkeypatch.setattr("sys.argv", arguments)
    command = provenance()["command"]
    assert "sesame" not in " ".join(command)
    assert command[2:] == ["url=http://***@there:8000", "token=***", "count:token=***", "a=//b"]


def test_unknown_policy_is_rejected_before_any_episode(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert evaluate(["--env", ENV, "--policy", "oracle", "orcale", "--out", str(tmp_path / "new")]) == 2
    assert "Did you mean oracle?" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []
