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
from dev_packages import need

COMMANDS = Path(sys.executable).parent
DEAR = {world.id for world in WORLDS} - {"agentgym/TextCraft-v0"}
"""Environments whose tests are slow: a command takes seconds, and more with a JVM or a browser."""
every_world = pytest.mark.parametrize(
    "world", [pytest.param(world.id, marks=[pytest.mark.long] * (world.id in DEAR)) for world in WORLDS]
)


def run(line: str, where: Path, *, code: int = 0) -> subprocess.CompletedProcess[str]:
    """Run a command given without `uv run`."""
    command, *arguments = shlex.split(line)
    call = [str(COMMANDS / command), *arguments]
    done = subprocess.run(call, cwd=where, capture_output=True, text=True, check=False)
    assert done.returncode == code, f"{line}: {done.returncode}\n{done.stdout}\n{done.stderr}"
    assert "Traceback" not in done.stderr
    return done


def overall(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "report.json").read_text(encoding="utf-8"))["overall"]


@pytest.mark.usefixtures("playable")
@every_world
def test_the_expert_succeeds_where_nonsense_does_not(world: str, tmp_path: Path) -> None:
    env = make(world)
    task = text_env(env).tasks.test.ids[0]
    env.close()
    (tmp_path / "lost.txt").write_text("xyzzy\n", encoding="utf-8")
    tasks = f"--env {world} --task {task} --samples 2 --k 1 2"
    run(f"evaluate {tasks} --policy oracle scripted:lost.txt --out run", tmp_path)
    (expert,) = map(overall, (tmp_path / "run").glob("*-oracle-test"))
    (lost,) = map(overall, (tmp_path / "run").glob("*-scripted*-test"))
    assert (expert["tasks"], expert["episodes"], expert["failed"]) == (1, 2, 0)
    assert expert["pass_at"]["1"]["mean"] == expert["success"]["mean"] == 1.0
    assert lost["success"]["mean"] == 0.0
    for episode in read_episodes(next((tmp_path / "run").glob("*-oracle-test")) / "episodes.jsonl"):
        assert (episode.env, episode.task_id, episode.success) == (world, task, True)


@pytest.mark.long
def test_a_model_is_trained_and_plays_as_the_last_line_suggests(tmp_path: Path) -> None:
    trained = run("train quickstart --tiny --out run", tmp_path)
    folder = tmp_path / "run"
    assert len((folder / "metrics.jsonl").read_text().splitlines()) == 2
    assert (folder / "curve.png").read_bytes().startswith(b"\x89PNG")
    summary = json.loads((folder / "summary.json").read_text())
    assert summary["steps"] == 2
    for split in ("dev", "test"):
        assert set(summary["evaluations"][split]["sampled"]) == {"0", "2"}

    suggested = trained.stdout.splitlines()[-1].strip()
    assert suggested.startswith("uv run evaluate --env agentgym/")
    shorter = f"{suggested.removeprefix('uv run ')} --tasks 2 --samples 2 --out played"
    run(shorter, tmp_path)
    played = json.loads((tmp_path / "played/report.json").read_text())["settings"]
    world = json.loads((folder / "run.json").read_text())["config"]["world"]
    assert played["policy"] == "hf:run/model"
    # These options affect how training runs the environment, not the environment itself.
    world = {name: value for name, value in world.items() if name not in ("weight", "backend", "deadline")}
    assert {name: played[name] for name in world} == world
    assert overall(tmp_path / "played")["episodes"] == 4
    assert all(turn.reply.sample for e in read_episodes(tmp_path / "played/episodes.jsonl") for turn in e.turns)


def test_a_world_of_ones_own_is_found_in_the_working_folder(tmp_path: Path) -> None:
    kept = "import agentgym_envs, gymnasium\n"
    kept += "gymnasium.register('mine/Craft-v0', 'agentgym_envs.worlds.textcraft.env:TextCraft', max_episode_steps=9)\n"
    (tmp_path / "my_worlds.py").write_text(kept, encoding="utf-8")
    run("evaluate --env my_worlds:mine/Craft-v0 --policy oracle --task textcraft/test/oak_button --out mine", tmp_path)
    assert overall(tmp_path / "mine")["success"]["mean"] == 1.0


@pytest.mark.parametrize(
    ("line", "said"),
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
def test_wrong_usage_is_answered_with_what_exists(
    line: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Run a command in this process: a dozen separate processes would take half a minute."""
    if "task_set=webarena" in line:
        need("webarena_verified")
    arguments = shlex.split(line)
    (command,) = entry_points(group="console_scripts", name=arguments[0])
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", arguments)
    with pytest.raises(SystemExit) as end:
        sys.exit(command.load()())
    assert end.value.code == 2
    err = capfd.readouterr().err
    assert said in " ".join(err.split()) and "Traceback" not in err
    assert not (tmp_path / "x.jsonl").exists()


def test_a_collection_without_an_episode_of_the_kind_fails(tmp_path: Path) -> None:
    (tmp_path / "actions.txt").write_text("inventory\n")
    flags = "--policy scripted:actions.txt --tasks 2 --horizon 2 --keep success --out none.jsonl"
    assert "None of the 2 episodes" in run(f"collect --env textcraft {flags}", tmp_path, code=1).stderr
