"""End-to-end tests of the commands, each in its own process: from expert episodes to a trained model that is evaluated
on held-out tasks."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import pytest
from agentgym_envs import WORLDS, make, read_episodes, text_env
from dev_packages import require_packages

COMMANDS = Path(sys.executable).parent
SLOW = {world.id for world in WORLDS} - {"agentgym/TextCraft-v0"}
"""Environments whose tests are slow: a command takes seconds, and more with a JVM or a browser."""
every_world = pytest.mark.parametrize(
    "world", [pytest.param(world.id, marks=[pytest.mark.long] * (world.id in SLOW)) for world in WORLDS]
)


def run(line: str, folder: Path, *, code: int = 0) -> subprocess.CompletedProcess[str]:
    """Run a command given without `uv run`."""
    command, *arguments = shlex.split(line)
    call = [str(COMMANDS / command), *arguments]
    result = subprocess.run(call, cwd=folder, capture_output=True, text=True, check=False)
    assert result.returncode == code, f"{line}: {result.returncode}\n{result.stdout}\n{result.stderr}"
    assert "Traceback" not in result.stderr
    return result


def overall(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "report.json").read_text(encoding="utf-8"))["overall"]


@pytest.mark.usefixtures("playable")
@every_world
def test_the_expert_succeeds_and_nonsense_fails(world: str, tmp_path: Path) -> None:
    env = make(world)
    task = text_env(env).tasks.test.ids[0]
    env.close()
    (tmp_path / "nonsense.txt").write_text("xyzzy\n", encoding="utf-8")
    tasks = f"--env {world} --task {task} --samples 2 --k 1 2"
    run(f"evaluate {tasks} --policy oracle scripted:nonsense.txt --out run", tmp_path)
    (expert,) = map(overall, (tmp_path / "run").glob("*-oracle-test"))
    (nonsense,) = map(overall, (tmp_path / "run").glob("*-scripted*-test"))
    assert (expert["tasks"], expert["episodes"], expert["failed"]) == (1, 2, 0)
    assert expert["pass_at"]["1"]["mean"] == expert["success"]["mean"] == 1.0
    assert nonsense["success"]["mean"] == 0.0
    for episode in read_episodes(next((tmp_path / "run").glob("*-oracle-test")) / "episodes.jsonl"):
        assert (episode.env, episode.task_id, episode.success) == (world, task, True)


@pytest.mark.long
def test_a_trained_model_is_evaluated_by_the_suggested_command(tmp_path: Path) -> None:
    result = run("train quickstart --tiny --out run", tmp_path)
    folder = tmp_path / "run"
    assert len((folder / "metrics.jsonl").read_text().splitlines()) == 2
    assert (folder / "curve.png").read_bytes().startswith(b"\x89PNG")
    summary = json.loads((folder / "summary.json").read_text())
    assert summary["steps"] == 2
    for split in ("dev", "test"):
        assert set(summary["evaluations"][split]["sampled"]) == {"0", "2"}

    evaluate, next_recipe = (
        line.strip() for line in result.stdout.splitlines() if "uv run " in line and "view" not in line
    )
    assert evaluate.startswith("uv run evaluate --env agentgym/")
    assert next_recipe == "uv run train smollm2-textcraft"
    command = f"{evaluate.removeprefix('uv run ')} --tasks 2 --samples 2 --out played"
    run(command, tmp_path)
    settings = json.loads((tmp_path / "played/report.json").read_text())["settings"]
    world = json.loads((folder / "run.json").read_text())["config"]["world"]
    assert settings["policy"] == "hf:run/model"
    # These options affect how training runs the environment, not the environment itself.
    world = {name: value for name, value in world.items() if name not in ("weight", "backend", "deadline")}
    assert world.pop("prompt") == ""
    assert {name: settings[name] for name in world} == world
    assert overall(tmp_path / "played")["episodes"] == 4
    assert all(turn.reply.sample for e in read_episodes(tmp_path / "played/episodes.jsonl") for turn in e.turns)


def test_custom_environments_are_found_in_the_working_folder(tmp_path: Path) -> None:
    module = "import agentgym_envs, gymnasium\n"
    module += (
        "gymnasium.register('mine/Craft-v0', 'agentgym_envs.worlds.textcraft.env:TextCraft', max_episode_steps=9)\n"
    )
    (tmp_path / "my_worlds.py").write_text(module, encoding="utf-8")
    run("evaluate --env my_worlds:mine/Craft-v0 --policy oracle --task textcraft/test/oak_button --out mine", tmp_path)
    assert overall(tmp_path / "mine")["success"]["mean"] == 1.0


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("train quikstart", "Did you mean 'quickstart'?"),
        ("train --step 3", "--steps"),
        ("train --resume nowhere", "nowhere holds no training run"),
        ("evaluate --env textcraf --policy oracle", "agentgym/TextCraft-v0"),
        ("evaluate --env textcraft --policy orakle", "Did you mean oracle?"),
        ("evaluate --env textcraft --policy random --task textcraft/test/stik", "Did you mean"),
        ("evaluate --env searchqa --policy random --tasks 2", "lists no available actions"),
        (
            "evaluate --env searchqa --policy oracle --options dataset=nq data=nowhere",
            "a set is a folder with train.jsonl",
        ),
        ("evaluate --env searchqa --policy oracle --options retriever=bm26", "there are bm25, bm25:CORPUS"),
        ("evaluate --env sciworld --policy oracle --options tasks=boyl", "Did you mean boil"),
        (
            "evaluate --env webarena --policy oracle --options task_set=webarena sites=shopping=http://127.0.0.1:1",
            "skip_judged=True",
        ),
        ("collect --env babyai --policy oracle --options levels='GoTwo' --out x.jsonl", "Did you mean"),
    ],
)
def test_usage_errors_name_valid_choices(
    line: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Run a command in this process: a dozen separate processes would take half a minute."""
    if "task_set=webarena" in line:
        require_packages("webarena_verified")
    arguments = shlex.split(line)
    (command,) = entry_points(group="console_scripts", name=arguments[0])
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", arguments)
    with pytest.raises(SystemExit) as end:
        sys.exit(command.load()())
    assert end.value.code == 2
    err = capfd.readouterr().err
    assert message in " ".join(err.split()) and "Traceback" not in err
    assert not (tmp_path / "x.jsonl").exists()


def test_collect_fails_if_no_episode_matches(tmp_path: Path) -> None:
    (tmp_path / "actions.txt").write_text("inventory\n")
    flags = "--policy scripted:actions.txt --tasks 2 --horizon 2 --keep success --out none.jsonl"
    assert "None of the 2 episodes" in run(f"collect --env textcraft {flags}", tmp_path, code=1).stderr
