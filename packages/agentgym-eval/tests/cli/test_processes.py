"""What only shows in a process of its own: being killed, being interrupted, and what is imported."""

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
    """A command that has written at least so many episodes and can't end: after `hold`, by default so many and twice
    what 3 slots take, no other begins in the world that counts before there is the file `gate`.
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
def test_after_kill_9_nothing_is_lost_and_nothing_played_twice(tmp_path: Path) -> None:
    path = tmp_path / "episodes.jsonl"
    arguments = command("evaluate", "--out", str(tmp_path))
    with started(arguments, path, 5) as child:
        child.kill()
    survived = keys(path)
    assert 5 <= len(survived) < 60
    with path.open("ab") as file:
        file.write(b'{"schema":"agentgym.ep')  # killed in the middle of a line
    done = subprocess.run(arguments, env=CHILD, check=True, capture_output=True, text=True)
    assert f"60 episodes, {len(survived)} of them already done" in done.stderr
    assert keys(path)[: len(survived)] == survived
    assert sorted(keys(path)) == [(f"count/test/{i}", sample) for i in range(10) for sample in range(6)]


@pytest.mark.long
def test_policies_in_worlds_survive_kill_9_at_several_moments(tmp_path: Path) -> None:
    worlds = ["--env", "textcraft", ENV, "--policy", "random", "oracle", "--tasks", "8", "--samples", "5"]
    arguments = [sys.executable, "-c", COMMANDS["evaluate"], *worlds, "--slots", "3"]
    arguments += ["--out", str(tmp_path)]
    # Of 40 episodes of each policy in each world. The last holds among the oracle's, after at most 10 at random.
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
def test_a_collection_of_several_worlds_survives_kill_9(tmp_path: Path) -> None:
    worlds = ["--env", "textcraft", ENV, "--policy", "random", "--tasks", "10", "--samples", "6", "--slots", "3"]
    arguments = [sys.executable, "-c", COMMANDS["collect"], *worlds]
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
    "how", [signal.SIGTERM, *(pytest.param(how, marks=pytest.mark.long) for how in (signal.SIGINT, signal.SIGUSR1))]
)
@pytest.mark.parametrize("name", ["evaluate", pytest.param("collect", marks=pytest.mark.long)])
def test_signals_keep_what_is_done_and_say_how_to_go_on(tmp_path: Path, name: str, how: signal.Signals) -> None:
    out = tmp_path / "run"
    folder = out if name == "evaluate" else tmp_path / "run.partial"
    episodes = folder / ("" if name == "evaluate" else "count") / "episodes.jsonl"
    arguments = command(name, "--out", str(out), "--overwrite")
    with started(arguments, episodes, 3, gate=tmp_path / "gate") as child:
        child.send_signal(how)
        if how != signal.SIGINT:
            child.send_signal(how)  # as where a launcher passes on what its children have got already
        (tmp_path / "gate").touch()
        _, err = child.communicate()
    assert child.returncode == 128 + how
    assert "Traceback" not in err
    word = {signal.SIGINT: "Interrupted", signal.SIGTERM: "Terminated", signal.SIGUSR1: "Ended by SIGUSR1"}[how]
    assert f"{word}. The episodes so far are kept in {folder}. Resume with: uv run {name} --env {ENV}" in err
    assert "--overwrite" not in err
    kept = keys(episodes)
    assert len(kept) >= 3
    again = [argument for argument in arguments if argument != "--overwrite"]
    done = subprocess.run(again, env=CHILD, check=True, capture_output=True, text=True)
    assert f"{len(kept)} of them already done" in done.stderr


def test_ctrl_c_ends_a_player_who_thinks_for_ever(tmp_path: Path) -> None:
    code = (
        "from agentgym_eval.policies import policies; from counting_policy import Counter, Entry, never; "
        "policies.entry_points = lambda group: [Entry(Counter(never))]; " + COMMANDS["evaluate"]
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


def test_nothing_here_imports_torch() -> None:
    source = HERE.parent / "src"
    rooms = [path.relative_to(source).with_suffix("").parts for path in sorted(source.rglob("*.py"))]
    loaded = modules_after("\n".join(f"import {'.'.join(room)}" for room in rooms if room[-1] != "__init__"))
    assert {"agentgym_eval.cli.main", "agentgym_eval.data.card"} <= loaded
    assert loaded.isdisjoint(HEAVY)


@pytest.mark.parametrize("name", ["evaluate", "collect", "compare"])
def test_help_loads_no_world_and_no_numpy(name: str) -> None:
    code = f"from agentgym_eval.cli.main import {name}\ntry:\n    {name}(['--help'])\nexcept SystemExit:\n    pass"
    loaded = modules_after(code)
    assert loaded.isdisjoint(
        {*HEAVY, "numpy", "gymnasium", "matplotlib", "jinja2", "agentgym_envs", "agentgym_eval.runs.run"}
    )


FORM = """
from agentgym_envs import Malformed, ReplyWrapper

class Prompt(ReplyWrapper):
    format_instructions = "Write one line that begins with '> '."

    def parse(self, reply):
        return reply[2:] if reply.startswith("> ") else Malformed(reply, "Write one line that begins with '> '.")

    def format(self, action, thought=""):
        return f"> {action}"
"""


def test_an_agent_in_the_working_folder_plays(tmp_path: Path) -> None:
    (tmp_path / "prompt_form.py").write_text(FORM)
    arguments = command("evaluate", "--tasks", "2", "--agent", "prompt_form:Prompt+plan", "--out", "run")
    subprocess.run(arguments, env=CHILD, check=True, capture_output=True, cwd=tmp_path)
    episodes = list(read_episodes(tmp_path / "run" / "episodes.jsonl"))
    assert {episode.agent for episode in episodes} == {"prompt_form:Prompt+plan"}
    acts = [turn for episode in episodes for turn in episode.turns if turn.kind == "act"]
    assert acts
    assert all(turn.reply.text.startswith("> ") and turn.action for turn in acts)
