"""Tests that need a separate process: kills, interrupts and imports."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from agentgym_envs import read_episodes
from counting_world import ENV
from patience import eventually

HERE = Path(__file__).parents[1]
CHILD = {**os.environ, "PYTHONPATH": str(HERE)}
COMMANDS = {
    name: f"import sys; from agentgym_eval.cli.main import {name}; sys.exit({name}())"
    for name in ("evaluate", "collect", "compare")
}


def command(name: str, *flags: str) -> list[str]:
    run = ["--env", ENV, "--policy", "random", "--samples", "6", "--slots", "3"]
    return [sys.executable, "-c", COMMANDS[name], *run, *flags]


@contextmanager
def started(
    arguments: list[str], episodes: Path, least: int, *, hold: int = 0, gate: Path = Path("/nowhere")
) -> Iterator[subprocess.Popen[str]]:
    """Run a command and yield it once it has written at least `least` episodes.

    It can't finish: after `hold` episodes, by default `least` plus twice the 3 slots, the counting environment starts
    no other before the file `gate` exists.
    """
    env = CHILD | {"COUNTING_HOLD": f"{hold or least + 6}:{gate}"}
    with subprocess.Popen(arguments, env=env, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as child:
        eventually(lambda: child.poll() is not None or (episodes.exists() and lines(episodes) >= least))
        assert child.poll() is None, child.communicate()[1]
        yield child


def lines(path: Path) -> int:
    return path.read_bytes().count(b"\n")


def keys(path: Path) -> list[tuple[str, int]]:
    return [(episode.task_id, episode.sample) for episode in read_episodes(path)]


@pytest.mark.long
def test_killed_evaluation_loses_and_repeats_no_episodes(tmp_path: Path) -> None:
    path = tmp_path / "episodes.jsonl"
    arguments = command("evaluate", "--out", str(tmp_path))
    with started(arguments, path, 5) as child:
        child.kill()
    kept = keys(path)
    assert 5 <= len(kept) < 60
    with path.open("ab") as file:
        file.write(b'{"schema":"agentgym.ep')  # as if killed in the middle of a line
    done = subprocess.run(arguments, env=CHILD, check=True, capture_output=True, text=True)
    assert f"60 episodes, {len(kept)} of them already done" in done.stderr
    assert keys(path)[: len(kept)] == kept
    assert sorted(keys(path)) == [(f"count/test/{i}", sample) for i in range(10) for sample in range(6)]


@pytest.mark.long
def test_killed_evaluation_of_several_runs_resumes(tmp_path: Path) -> None:
    flags = ["--env", "textcraft", ENV, "--policy", "random", "oracle", "--tasks", "8", "--samples", "5"]
    arguments = [sys.executable, "-c", COMMANDS["evaluate"], *flags, "--slots", "3"]
    arguments += ["--out", str(tmp_path)]
    # Each policy plays 40 episodes per environment. The last kill is among those of the oracle.
    moments = [("textcraft-random", 1, 0), ("count-random", 3, 0), ("count-random", 30, 0), ("count-oracle", 2, 20)]
    before: dict[Path, bytes] = {}
    for run, least, hold in moments:
        with started(arguments, tmp_path / f"{run}-test/episodes.jsonl", least, hold=hold) as child:
            child.kill()
        for path, content in before.items():
            assert path.read_bytes().startswith(content[: content.rfind(b"\n") + 1])
        before = {path: path.read_bytes() for path in tmp_path.glob("*/episodes.jsonl")}
    done = subprocess.run(arguments, env=CHILD, check=True, capture_output=True, text=True)
    assert "80 episodes, 80 of them already done" in done.stderr
    for run in tmp_path.glob("*/episodes.jsonl"):
        assert len(keys(run)) == len(set(keys(run))) == 40
    assert len(list(tmp_path.glob("*/report.json"))) == 4


@pytest.mark.long
def test_killed_collection_of_several_environments_resumes(tmp_path: Path) -> None:
    flags = ["--env", "textcraft", ENV, "--policy", "random", "--tasks", "10", "--samples", "6", "--slots", "3"]
    arguments = [sys.executable, "-c", COMMANDS["collect"], *flags]
    partial = tmp_path / "data.partial"
    with started([*arguments, "--out", str(tmp_path / "data")], partial / "count/episodes.jsonl", 5) as child:
        child.kill()
    first, second = keys(partial / "textcraft/episodes.jsonl"), keys(partial / "count/episodes.jsonl")
    assert len(first) == 60
    assert 5 <= len(second) < 60
    for out in ("data", "unbroken"):
        done = subprocess.run([*arguments, "--out", str(tmp_path / out)], env=CHILD, capture_output=True, text=True)
        assert done.returncode == 0
        assert (f"{60 + len(second)} of them already done" in done.stderr) == (out == "data")
    for file in ("textcraft/train.jsonl", "count/train.jsonl"):
        collected = [
            [(e.task_id, e.sample, [turn.reply.text for turn in e.turns]) for e in read_episodes(tmp_path / out / file)]
            for out in ("data", "unbroken")
        ]
        assert len(collected[0]) == 60
        assert collected[0] == collected[1]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["data", "unbroken"]


@pytest.mark.parametrize(
    "signal_number",
    [signal.SIGTERM, *(pytest.param(number, marks=pytest.mark.long) for number in (signal.SIGINT, signal.SIGUSR1))],
)
@pytest.mark.parametrize("name", ["evaluate", pytest.param("collect", marks=pytest.mark.long)])
def test_signals_keep_episodes_and_print_how_to_resume(
    tmp_path: Path, name: str, signal_number: signal.Signals
) -> None:
    out = tmp_path / "run"
    folder = out if name == "evaluate" else tmp_path / "run.partial"
    episodes = folder / ("" if name == "evaluate" else "count") / "episodes.jsonl"
    arguments = command(name, "--out", str(out), "--overwrite")
    with started(arguments, episodes, 3, gate=tmp_path / "gate") as child:
        child.send_signal(signal_number)
        if signal_number != signal.SIGINT:
            child.send_signal(signal_number)  # as if forwarded by a launcher as well
        (tmp_path / "gate").touch()
        _, err = child.communicate()
    assert child.returncode == 128 + signal_number
    assert "Traceback" not in err
    reason = {signal.SIGINT: "Interrupted", signal.SIGTERM: "Terminated", signal.SIGUSR1: "Ended by SIGUSR1"}[
        signal_number
    ]
    assert f"{reason}. The episodes so far are kept in {folder}. Resume with: uv run {name} --env {ENV}" in err
    assert "--overwrite" not in err
    kept = keys(episodes)
    assert len(kept) >= 3
    resume_command = [argument for argument in arguments if argument != "--overwrite"]
    done = subprocess.run(resume_command, env=CHILD, check=True, capture_output=True, text=True)
    assert f"{len(kept)} of them already done" in done.stderr


def test_ctrl_c_ends_a_policy_that_blocks_forever(tmp_path: Path) -> None:
    code = (
        "from agentgym_eval.policies import policies; "
        "from counting_policy import CountingPolicy, FakeEntryPoint, block_on_longest_task; "
        "policies.entry_points = lambda group: [FakeEntryPoint(CountingPolicy(block_on_longest_task))]; "
        + COMMANDS["evaluate"]
    )
    arguments = [sys.executable, "-c", code, "--env", ENV, "--policy", "counter", "--samples", "3", "--slots", "4"]
    path = tmp_path / "episodes.jsonl"
    with started([*arguments, "--out", str(tmp_path)], path, 27, hold=60) as child:
        child.send_signal(signal.SIGINT)
        _, err = child.communicate()
    assert child.returncode == 130
    assert "Traceback" not in err
    assert f"Interrupted. The episodes so far are kept in {tmp_path}. Resume with: uv run evaluate --env {ENV}" in err
    assert len(keys(path)) == 27


HEAVY = ("torch", "transformers", "vllm", "accelerate", "trl", "datasets")


def modules_after(code: str) -> set[str]:
    script = f"{code}\nimport sys\nprint(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", script], env=CHILD, check=True, capture_output=True, text=True)
    return set(done.stdout.splitlines()[-1].split())


def test_no_module_imports_torch() -> None:
    source = HERE.parent / "src"
    modules = [path.relative_to(source).with_suffix("").parts for path in sorted(source.rglob("*.py"))]
    loaded = modules_after("\n".join(f"import {'.'.join(module)}" for module in modules if module[-1] != "__init__"))
    assert {"agentgym_eval.cli.main", "agentgym_eval.data.card"} <= loaded
    assert loaded.isdisjoint(HEAVY)


@pytest.mark.parametrize("name", ["evaluate", "collect", "compare"])
def test_help_imports_no_environments_and_no_numpy(name: str) -> None:
    code = f"from agentgym_eval.cli.main import {name}\ntry:\n    {name}(['--help'])\nexcept SystemExit:\n    pass"
    loaded = modules_after(code)
    assert loaded.isdisjoint(
        {*HEAVY, "numpy", "gymnasium", "matplotlib", "jinja2", "agentgym_envs.core.registry", "agentgym_eval.runs.run"}
    )
    assert not [module for module in loaded if module.startswith(("agentgym_envs.worlds.", "agentgym_envs.episodes."))]


REPLY_FORMAT = """
from agentgym_envs import Malformed, ReplyWrapper

class Prompt(ReplyWrapper):
    format_instructions = "Write one line that begins with '> '."

    def parse(self, reply):
        return reply[2:] if reply.startswith("> ") else Malformed(reply, "Write one line that begins with '> '.")

    def format(self, action, thought=""):
        return f"> {action}"
"""


def test_agent_from_the_working_directory_is_found(tmp_path: Path) -> None:
    (tmp_path / "prompt_form.py").write_text(REPLY_FORMAT)
    arguments = command("evaluate", "--tasks", "2", "--agent", "prompt_form:Prompt+plan", "--out", "run")
    subprocess.run(arguments, env=CHILD, check=True, capture_output=True, cwd=tmp_path)
    episodes = list(read_episodes(tmp_path / "run" / "episodes.jsonl"))
    assert {episode.agent for episode in episodes} == {"prompt_form:Prompt+plan"}
    acts = [turn for episode in episodes for turn in episode.turns if turn.kind == "act"]
    assert acts
    assert all(turn.reply.text.startswith("> ") and turn.action for turn in acts)
