"""Nothing that was paid for is lost or paid for twice, however a run ends."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from agentgym_envs import Reply, read_episodes
from agentgym_eval.cli.main import collect, evaluate
from agentgym_eval.storage.journal import Journal, Place
from counting_world import ENV
from fake_endpoint import Answer, called, play, said, serving, trouble

PLAN = "function-call+plan+reflect:3"
CHILD = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1]), "OPENAI_API_KEY": ""}


class Numbered:
    """Counts to success and numbers what it says, so that one reply can be told from another."""

    def __init__(self) -> None:
        self.said = 0
        self.lock = threading.Lock()

    def __call__(self, request: dict[str, Any]) -> Answer:
        with self.lock:
            self.said += 1
            number = f"reply {self.said}"
        if request.get("tool_choice") == "none":
            return said(number)
        texts = " ".join(str(message["content"]) for message in request["messages"])
        goal, counts = int(re.findall(r"Goal: (\d+)", texts)[0]), re.findall(r"Count: (\d+)", texts)
        action = "add" if int(counts[-1] if counts else 0) < goal else "stop"
        return (
            called(("act", {"action": action}), thought=number)
            if "tools" in request
            else said(f"Thought: {number}\nAction: {action}")
        )


def numbers(out: Path) -> list[int]:
    """Of the replies in all episodes, in order."""
    texts = [turn.reply.text for episode in read_episodes(out / "episodes.jsonl") for turn in episode.turns]
    return sorted(int(re.findall(r"reply (\d+)", text)[0]) for text in texts)


def requests(out: Path) -> int:
    return json.loads((out / "usage.json").read_text())["requests"]


@pytest.mark.parametrize("agent", [pytest.param("react", marks=pytest.mark.long), PLAN])
def test_a_run_that_stops_again_and_again_pays_for_each_reply_once(tmp_path: Path, agent: str) -> None:
    flags, model = ["--agent", agent, "--slots", "3", "--samples", "2"], Numbered()
    with serving(model) as fake:
        assert play(fake, tmp_path / "unbroken", *flags) == 0
        once = model.said
    model, stops, limits = Numbered(), 0, [5, 20, 21, 50, 10**6]
    with serving(lambda request: model(request) if model.said < limits[0] else trouble(401, "no credit")) as fake:
        while limits:
            stops += play(fake, tmp_path / "parts", *flags)
            del limits[0]
    assert stops == 4
    assert model.said == once
    assert numbers(tmp_path / "parts") == list(range(1, once + 1))
    assert requests(tmp_path / "parts") == once
    assert json.loads((tmp_path / "parts/report.json").read_text())["usage"]["requests"] == once


@pytest.mark.parametrize(
    "how", [signal.SIGTERM, *(pytest.param(how, marks=pytest.mark.long) for how in (signal.SIGKILL, signal.SIGINT))]
)
def test_a_process_that_is_ended_leaves_every_reply_that_was_paid_for(tmp_path: Path, how: signal.Signals) -> None:
    model, gate, arrived = Numbered(), threading.Event(), threading.Semaphore(0)

    def answer(request: dict[str, Any]) -> Answer:
        if len(fake.asked) > 12 and not gate.is_set():  # three at once, until the process is ended
            arrived.release()
            assert gate.wait(120)
            if how == signal.SIGKILL:
                return trouble(500)  # nobody hears it
        return model(request)

    # SIGTERM has to work where Ctrl-C is ignored, as in the background of a shell.
    sigint = "signal.SIG_IGN" if how == signal.SIGTERM else "signal.default_int_handler"
    code = f"import signal, sys; signal.signal(signal.SIGINT, {sigint}); from agentgym_eval.cli.main import evaluate; "
    with serving(answer) as fake:
        arguments = ["--env", ENV, *fake.flags, "--slots", "3", "--out", str(tmp_path)]
        command = [sys.executable, "-c", code + "sys.exit(evaluate())", *arguments]
        with subprocess.Popen(command, env=CHILD, stderr=subprocess.PIPE, text=True) as child:
            assert child.stderr is not None
            for _ in range(3):
                assert arrived.acquire(timeout=120)
            child.send_signal(how)
            err = "" if how == signal.SIGKILL else next(line for line in child.stderr if "pending" in line)
            gate.set()
            err += child.stderr.read()
        if how != signal.SIGKILL:
            assert child.returncode == (130 if how == signal.SIGINT else 143)
            word = "Interrupted" if how == signal.SIGINT else "Terminated"
            assert (
                f"{word}. The episodes so far are kept in {tmp_path}. Resume with: uv run evaluate --env {ENV}" in err
            )
            assert requests(tmp_path) == model.said == 15
            assert "Traceback" not in err
        assert evaluate(arguments) == 0
    assert model.said == 55
    assert len(fake.asked) == (58 if how == signal.SIGKILL else 55)
    assert numbers(tmp_path) == list(range(1, 56))
    assert requests(tmp_path) == 55


def test_replies_of_an_episode_under_way_are_all_there_is(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = Numbered()
    with serving(lambda request: model(request) if model.said < 4 else trouble(401)) as fake:
        assert play(fake, tmp_path, "--task", "count/test/9") == 1
    err = capsys.readouterr().err
    assert f"No episode has ended yet; the replies so far are kept in {tmp_path}. Resume with: uv run evaluate" in err
    with serving(model) as fake:
        assert play(fake, tmp_path, "--task", "count/test/9", "--seed", "1") == 2  # they were paid for with seed 0
        assert "seed 0, not 1" in capsys.readouterr().err
        assert play(fake, tmp_path, "--task", "count/test/9") == 0
    assert numbers(tmp_path) == list(range(1, 11))


def test_an_attempt_that_is_begun_again_does_not_pay_again(tmp_path: Path) -> None:
    """A filter cuts one reply: the retry has the replies before it, and asks for that one alone."""
    model = Numbered()

    def filtering(request: dict[str, Any]) -> Answer:
        answer = model(request)
        if model.said == 4:
            answer.body["choices"][0]["finish_reason"] = "content_filter"
        return answer

    with serving(filtering) as fake:
        assert play(fake, tmp_path, "--task", "count/test/6") == 0
    assert numbers(tmp_path) == [1, 2, 3, 5, 6, 7, 8]
    assert requests(tmp_path) == 8  # the cut one is paid for as well


def test_a_world_that_breaks_does_not_make_its_episode_cost_more(tmp_path: Path) -> None:
    note = tmp_path / "note"
    with serving(Numbered()) as fake:
        assert play(fake, tmp_path / "run", "--task", "count/test/6", "--options", f"note={note}") == 0
    assert note.exists()
    assert numbers(tmp_path / "run") == list(range(1, 8))


def test_a_world_that_shows_something_else_is_answered_anew(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model, note, run = Numbered(), tmp_path / "note", tmp_path / "run"
    flags = ["--task", "count/test/6", "--options", f"note={note}"]
    for text, limit, code in ((" Go on!", 5, 1), (" Well done!", 100, 0)):
        note.write_text(text)
        with serving(lambda request, limit=limit: model(request) if model.said < limit else trouble(401)) as fake:
            assert play(fake, run, *flags) == code
    assert numbers(run) == [1, 2, 3, *range(6, 10)]
    assert requests(run) == 9
    assert "In 1 episodes the environment's observations differ" in capsys.readouterr().err


def test_half_a_reply_at_the_end_is_paid_for_again_and_damage_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model, path = Numbered(), tmp_path / "replies.jsonl"
    with serving(lambda request: model(request) if model.said < 4 else trouble(401)) as fake:
        assert play(fake, tmp_path, "--task", "count/test/6") == 1
    whole = path.read_bytes()
    path.write_bytes(b"nonsense\n" + whole)
    with serving(model) as fake:
        assert play(fake, tmp_path, "--task", "count/test/6") == 2
        assert "replies.jsonl, line 1: " in capsys.readouterr().err
        path.write_bytes(whole[:-10])
        assert play(fake, tmp_path, "--task", "count/test/6") == 0
    assert numbers(tmp_path) == [1, 2, 3, *range(5, 9)]


def test_a_line_has_the_reply_and_no_headers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-very-secret")
    with serving(Numbered()) as fake:
        assert play(fake, tmp_path, "--task", "count/test/1") == 0
    text = (tmp_path / "replies.jsonl").read_text()
    assert "sk-very" not in text
    first, second = map(json.loads, text.splitlines())
    assert (first["task"], first["sample"], first["number"], second["number"]) == ("count/test/1", 0, 0, 1)
    assert first["request"] != second["request"]
    assert first["reply"].pop("seconds") >= 0
    assert first["reply"] == {
        "text": "Thought: reply 1\nAction: add", "finish": "stop", "sample": None, "finish_reason": "stop",
        "usage": {"prompt_tokens": 10, "completion_tokens": 3, "cached_tokens": 4},
    }  # fmt: skip


def test_a_full_disk_is_told_by_the_reply_and_not_by_the_end(tmp_path: Path) -> None:
    path = tmp_path / "replies.jsonl"
    path.symlink_to("/dev/full")
    journal = Journal(path, begin=lambda: None)
    with pytest.raises(OSError, match="No space left"):
        journal.keep(Place(1, "count/test/1", 0, "its hash"), Reply("Action: add"))
    journal.close()


def test_beginning_again_replaces_the_replies_with_the_first_that_is_paid_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with serving(Numbered()) as fake:
        assert play(fake, tmp_path, "--tasks", "3") == 0
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    with serving(lambda request: trouble(401)) as fake:
        assert play(fake, tmp_path, "--tasks", "4", "--overwrite") == 1
    assert "Nothing has been replaced yet" in capsys.readouterr().err
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before
    model = Numbered()
    with serving(lambda request: model(request) if model.said < 2 else trouble(401)) as fake:
        assert play(fake, tmp_path, "--tasks", "4", "--overwrite", "--slots", "1") == 1
    assert "--overwrite" not in capsys.readouterr().err
    assert requests(tmp_path) == 2
    with serving(model) as fake:
        assert play(fake, tmp_path, "--tasks", "4", "--slots", "1") == 0
    assert Counter(numbers(tmp_path)) == Counter(range(1, requests(tmp_path) + 1))


def test_collecting_goes_on_from_replies_as_well(tmp_path: Path) -> None:
    model, out = Numbered(), tmp_path / "data.jsonl"
    with serving(lambda request: model(request) if model.said < 4 else trouble(401)) as fake:
        arguments = ["--env", ENV, *fake.flags, "--task", "count/train/7", "--out", str(out)]
        assert collect(arguments) == 1
    with serving(model) as fake:
        arguments[4] = fake.base_url
        assert collect(["--env", ENV, *fake.flags, "--task", "count/train/7", "--out", str(out)]) == 0
    (episode,) = read_episodes(out)
    assert len(episode.turns) == model.said == 8
    assert json.loads((tmp_path / "data.card.json").read_text())["usage"]["requests"] == 8
    assert not (tmp_path / "data.jsonl.partial").exists()
