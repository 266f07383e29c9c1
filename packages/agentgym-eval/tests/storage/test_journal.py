"""Tests that no reply is lost or requested twice, however a run ends."""

from __future__ import annotations

import errno
import json
import os
import re
import signal
import subprocess
import sys
import threading
from collections import Counter
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from agentgym_envs import Reply, read_episodes
from agentgym_eval.cli.main import collect, evaluate
from agentgym_eval.storage.journal import Journal, Place
from agentgym_eval.storage.store import Store
from counting_world import ENV
from fake_endpoint import Answer, completion_answer, error_answer, run_evaluate, serve_endpoint, tool_call_answer

PLAN = "function-call+plan+reflect:3"
CHILD = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1]), "OPENAI_API_KEY": ""}


class NumberedReplies:
    """An endpoint that solves the counting task and numbers its replies."""

    def __init__(self) -> None:
        self.reply_count = 0
        self.lock = threading.Lock()

    def __call__(self, request: dict[str, Any]) -> Answer:
        with self.lock:
            self.reply_count += 1
            number = f"reply {self.reply_count}"
        if request.get("tool_choice") == "none":
            return completion_answer(number)
        texts = " ".join(str(message["content"]) for message in request["messages"])
        goal, counts = int(re.findall(r"Goal: (\d+)", texts)[0]), re.findall(r"Count: (\d+)", texts)
        action = "add" if int(counts[-1] if counts else 0) < goal else "stop"
        return (
            tool_call_answer(("act", {"action": action}), thought=number)
            if "tools" in request
            else completion_answer(f"Thought: {number}\nAction: {action}")
        )


def reply_numbers(out: Path) -> list[int]:
    """Return the sorted numbers of the replies in all episodes."""
    texts = [turn.reply.text for episode in read_episodes(out / "episodes.jsonl") for turn in episode.turns]
    return sorted(int(re.findall(r"reply (\d+)", text)[0]) for text in texts)


def request_count(out: Path) -> int:
    return json.loads((out / "usage.json").read_text())["requests"]


@pytest.mark.parametrize("agent", [pytest.param("react", marks=pytest.mark.long), PLAN])
def test_repeatedly_stopped_run_requests_each_reply_once(tmp_path: Path, agent: str) -> None:
    flags, model = ["--agent", agent, "--slots", "3", "--samples", "2"], NumberedReplies()
    with serve_endpoint(model) as fake:
        assert run_evaluate(fake, tmp_path / "unbroken", *flags) == 0
        expected_count = model.reply_count
    model, stops, limits = NumberedReplies(), 0, [5, 20, 21, 50, 10**6]
    with serve_endpoint(
        lambda request: model(request) if model.reply_count < limits[0] else error_answer(401, "no credit")
    ) as fake:
        while limits:
            stops += run_evaluate(fake, tmp_path / "parts", *flags)
            del limits[0]
    assert stops == 4
    assert model.reply_count == expected_count
    assert reply_numbers(tmp_path / "parts") == list(range(1, expected_count + 1))
    assert request_count(tmp_path / "parts") == expected_count
    assert json.loads((tmp_path / "parts/report.json").read_text())["usage"]["requests"] == expected_count


@pytest.mark.parametrize(
    "signal_number",
    [signal.SIGTERM, *(pytest.param(number, marks=pytest.mark.long) for number in (signal.SIGKILL, signal.SIGINT))],
)
def test_ended_process_keeps_all_received_replies(tmp_path: Path, signal_number: signal.Signals) -> None:
    model, gate, arrived = NumberedReplies(), threading.Event(), threading.Semaphore(0)

    def answer(request: dict[str, Any]) -> Answer:
        if len(fake.requests) > 12 and not gate.is_set():  # three requests block until the process is ended
            arrived.release()
            assert gate.wait(120)
            if signal_number == signal.SIGKILL:
                return error_answer(500)  # the client is gone
        return model(request)

    # SIGTERM has to work if SIGINT is ignored, as in background jobs of a shell.
    sigint = "signal.SIG_IGN" if signal_number == signal.SIGTERM else "signal.default_int_handler"
    code = f"import signal, sys; signal.signal(signal.SIGINT, {sigint}); from agentgym_eval.cli.main import evaluate; "
    with serve_endpoint(answer) as fake:
        arguments = ["--env", ENV, *fake.flags, "--slots", "3", "--out", str(tmp_path)]
        command = [sys.executable, "-c", code + "sys.exit(evaluate())", *arguments]
        with subprocess.Popen(command, env=CHILD, stderr=subprocess.PIPE, text=True) as child:
            assert child.stderr is not None
            for _ in range(3):
                assert arrived.acquire(timeout=120)
            child.send_signal(signal_number)
            err = "" if signal_number == signal.SIGKILL else next(line for line in child.stderr if "pending" in line)
            gate.set()
            err += child.stderr.read()
        if signal_number != signal.SIGKILL:
            assert child.returncode == (130 if signal_number == signal.SIGINT else 143)
            reason = "Interrupted" if signal_number == signal.SIGINT else "Terminated"
            assert (
                f"{reason}. The episodes so far are kept in {tmp_path}. Resume with: uv run evaluate --env {ENV}" in err
            )
            assert request_count(tmp_path) == model.reply_count == 15
            assert "Traceback" not in err
        assert evaluate(arguments) == 0
    assert model.reply_count == 55
    assert len(fake.requests) == (58 if signal_number == signal.SIGKILL else 55)
    assert reply_numbers(tmp_path) == list(range(1, 56))
    assert request_count(tmp_path) == 55


def test_replies_of_an_unfinished_episode_are_kept(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = NumberedReplies()
    with serve_endpoint(lambda request: model(request) if model.reply_count < 4 else error_answer(401)) as fake:
        assert run_evaluate(fake, tmp_path, "--task", "count/test/9") == 1
    err = capsys.readouterr().err
    assert f"No episode has ended yet; the replies so far are kept in {tmp_path}. Resume with: uv run evaluate" in err
    with serve_endpoint(model) as fake:
        assert (
            run_evaluate(fake, tmp_path, "--task", "count/test/9", "--seed", "1") == 2
        )  # the replies were requested with seed 0
        assert "seed 0, not 1" in capsys.readouterr().err
        assert run_evaluate(fake, tmp_path, "--task", "count/test/9") == 0
    assert reply_numbers(tmp_path) == list(range(1, 11))


def test_retried_episode_reuses_its_replies(tmp_path: Path) -> None:
    """A filter cuts one reply; the retry reuses the replies before it and requests only that one."""
    model = NumberedReplies()

    def answer(request: dict[str, Any]) -> Answer:
        response = model(request)
        if model.reply_count == 4:
            response.body["choices"][0]["finish_reason"] = "content_filter"
        return response

    with serve_endpoint(answer) as fake:
        assert run_evaluate(fake, tmp_path, "--task", "count/test/6") == 0
    assert reply_numbers(tmp_path) == [1, 2, 3, 5, 6, 7, 8]
    assert request_count(tmp_path) == 8  # including the cut one


def test_env_fault_requests_no_reply_twice(tmp_path: Path) -> None:
    note = tmp_path / "note"
    with serve_endpoint(NumberedReplies()) as fake:
        assert run_evaluate(fake, tmp_path / "run", "--task", "count/test/6", "--options", f"note={note}") == 0
    assert note.exists()
    assert reply_numbers(tmp_path / "run") == list(range(1, 8))


def test_changed_observations_need_new_replies(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model, note, run = NumberedReplies(), tmp_path / "note", tmp_path / "run"
    flags = ["--task", "count/test/6", "--options", f"note={note}"]
    for text, limit, code in ((" Go on!", 5, 1), (" Well done!", 100, 0)):
        note.write_text(text)
        with serve_endpoint(
            lambda request, limit=limit: model(request) if model.reply_count < limit else error_answer(401)
        ) as fake:
            assert run_evaluate(fake, run, *flags) == code
    assert reply_numbers(run) == [1, 2, 3, *range(6, 10)]
    assert request_count(run) == 9
    assert "In 1 episodes the environment's observations differ" in capsys.readouterr().err


def test_incomplete_line_is_requested_again_and_damage_is_an_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model, path = NumberedReplies(), tmp_path / "replies.jsonl"
    with serve_endpoint(lambda request: model(request) if model.reply_count < 4 else error_answer(401)) as fake:
        assert run_evaluate(fake, tmp_path, "--task", "count/test/6") == 1
    content = path.read_bytes()
    path.write_bytes(b"nonsense\n" + content)
    with serve_endpoint(model) as fake:
        assert run_evaluate(fake, tmp_path, "--task", "count/test/6") == 2
        assert "replies.jsonl, line 1: " in capsys.readouterr().err
        path.write_bytes(content[:-10])
        assert run_evaluate(fake, tmp_path, "--task", "count/test/6") == 0
    assert reply_numbers(tmp_path) == [1, 2, 3, *range(5, 9)]


def test_journal_line_has_the_reply_but_no_headers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-very-secret")
    with serve_endpoint(NumberedReplies()) as fake:
        assert run_evaluate(fake, tmp_path, "--task", "count/test/1") == 0
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


def test_full_disk_raises_when_a_reply_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "replies.jsonl"
    path.symlink_to("/dev/full")
    journal = Journal(path, begin=lambda: None)
    with pytest.raises(OSError, match="No space left"):
        journal.keep(Place(1, "count/test/1", 0, "its hash"), Reply("Action: add"))
    journal.close()


def test_full_disk_does_not_keep_the_lock(tmp_path: Path) -> None:
    store = Store(tmp_path / "run", {"a": 1})
    full = OSError(errno.ENOSPC, "No space left on device")

    def close(file: Any) -> None:
        file.close()
        raise full

    with pytest.raises(OSError, match="No space left"), store:
        store._file = SimpleNamespace(close=partial(close, store._file))  # type: ignore[assignment]
        raise full
    with Store(tmp_path / "run", {"a": 1}):
        pass


def test_overwrite_replaces_replies_when_the_first_new_one_arrives(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with serve_endpoint(NumberedReplies()) as fake:
        assert run_evaluate(fake, tmp_path, "--tasks", "3") == 0
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    with serve_endpoint(lambda request: error_answer(401)) as fake:
        assert run_evaluate(fake, tmp_path, "--tasks", "4", "--overwrite") == 1
    assert "Nothing has been replaced yet" in capsys.readouterr().err
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before
    model = NumberedReplies()
    with serve_endpoint(lambda request: model(request) if model.reply_count < 2 else error_answer(401)) as fake:
        assert run_evaluate(fake, tmp_path, "--tasks", "4", "--overwrite", "--slots", "1") == 1
    assert "--overwrite" not in capsys.readouterr().err
    assert request_count(tmp_path) == 2
    with serve_endpoint(model) as fake:
        assert run_evaluate(fake, tmp_path, "--tasks", "4", "--slots", "1") == 0
    assert Counter(reply_numbers(tmp_path)) == Counter(range(1, request_count(tmp_path) + 1))


def test_collect_resumes_from_replies(tmp_path: Path) -> None:
    model, out = NumberedReplies(), tmp_path / "data.jsonl"
    with serve_endpoint(lambda request: model(request) if model.reply_count < 4 else error_answer(401)) as fake:
        arguments = ["--env", ENV, *fake.flags, "--task", "count/train/7", "--out", str(out)]
        assert collect(arguments) == 1
    with serve_endpoint(model) as fake:
        arguments[4] = fake.base_url
        assert collect(["--env", ENV, *fake.flags, "--task", "count/train/7", "--out", str(out)]) == 0
    (episode,) = read_episodes(out)
    assert len(episode.turns) == model.reply_count == 8
    assert json.loads((tmp_path / "data.card.json").read_text())["usage"]["requests"] == 8
    assert not (tmp_path / "data.jsonl.partial").exists()
