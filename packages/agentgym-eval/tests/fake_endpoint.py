"""A local OpenAI-compatible endpoint whose responses are scripted by the tests."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from agentgym_envs import Episode, read_episodes
from agentgym_eval.cli.main import evaluate
from counting_world import ENV

KEY = "sk-very-secret"
MODELS = {"data": [{"id": "tiny-1"}, {"id": "tiny-2"}]}


@dataclass
class Answer:
    body: Any
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)


def completion_answer(
    text: str | None, *, finish: str = "stop", tokens: tuple[int, int, int] = (10, 4, 3), **more: Any
) -> Answer:
    """Return a chat completion; `tokens` are the numbers of prompt, cached and completion tokens."""
    usage = {
        "prompt_tokens": tokens[0],
        "completion_tokens": tokens[2],
        "prompt_tokens_details": {"cached_tokens": tokens[1]},
    }
    message = {"role": "assistant", "content": text, **more}
    return Answer({"choices": [{"index": 0, "message": message, "finish_reason": finish}], "usage": usage})


def tool_call_answer(*calls: tuple[str, Any], thought: str | None = None) -> Answer:
    tool_calls = [
        {"id": f"call_{i}", "type": "function", "function": {"name": name, "arguments": json.dumps(arguments)}}
        for i, (name, arguments) in enumerate(calls)
    ]
    return completion_answer(thought, finish="tool_calls", tool_calls=tool_calls)


def error_answer(status: int, message: str = "no", *, code: str | None = None, **headers: str) -> Answer:
    header_names = {name.replace("_", "-"): value for name, value in headers.items()}
    return Answer({"error": {"message": message, "code": code}}, status, header_names)


class FakeEndpoint:
    def __init__(self, answer: Callable[[dict[str, Any]], Answer | None]) -> None:
        self.answer = answer
        """Maps a request to an answer; None closes the connection."""
        self.requests: list[dict[str, Any]] = []
        self.keys: list[str | None] = []
        self.paths: list[str] = []
        self.base_url = ""

    @property
    def flags(self) -> list[str]:
        return ["--policy", "openai:tiny-1", "--base-url", self.base_url]


def count_to_goal(request: dict[str, Any]) -> Answer:
    """Solve the counting task; the number of user messages gives the current count."""
    texts = [message["content"] for message in request["messages"] if message["role"] == "user"]
    goal = next(int(text.split("Goal: ")[1].split(".")[0]) for text in texts if "Goal: " in text)
    return completion_answer(f"Thought: on\nAction: {'add' if len(texts) - 1 < goal else 'stop'}")


def run_evaluate(fake: FakeEndpoint, out: Path, *more: str) -> int:
    """Run `evaluate` on the counting environment with the endpoint's model, and return its exit code."""
    return evaluate(["--env", ENV, *fake.flags, "--out", str(out), *more])


def read_run(out: Path) -> list[Episode]:
    return list(read_episodes(out / "episodes.jsonl"))


@contextmanager
def serve_endpoint(answer: Callable[[dict[str, Any]], Answer | None]) -> Generator[FakeEndpoint]:
    fake = FakeEndpoint(answer)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        wbufsize = -1  # head and body in one packet

        def log_message(self, format: str, *args: Any) -> None:
            pass

        def do_GET(self) -> None:
            assert self.path == "/v1/models"
            self._send(Answer(MODELS))

        def do_POST(self) -> None:
            assert self.path.partition("?")[0] == "/v1/chat/completions"
            fake.paths.append(self.path)
            request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            fake.requests.append(request)
            fake.keys.append(self.headers["Authorization"])
            answer = fake.answer(request)
            if answer is None:
                self.close_connection = True
            else:
                self._send(answer)

        def _send(self, answer: Answer) -> None:
            text = answer.body if isinstance(answer.body, str) else json.dumps(answer.body)
            self.send_response(answer.status)
            for name, value in {**answer.headers, "Content-Length": str(len(text.encode()))}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(text.encode())

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = False  # server_close() joins them
    fake.base_url = f"http://127.0.0.1:{server.server_port}/v1"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield fake
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
