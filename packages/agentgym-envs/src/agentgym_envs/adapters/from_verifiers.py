"""Environments of verifiers (Prime Intellect) as text environments: `verifiers:ID`.

An episode of verifiers calls a model; here, it calls an endpoint of this process. What a request adds to the
conversation is the observation, and the action is the model's reply, so any environment, tool and harness can be
played. The rewards of the task's rubric are paid at the end.
"""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import Iterator, Mapping
from concurrent.futures import Future
from contextlib import AsyncExitStack
from typing import Any, ClassVar

from gymnasium.error import DependencyNotInstalled

from agentgym_envs.adapters.external import TEST_SHARE, ExternalEnv, listed_tools, rows_of
from agentgym_envs.core.feedback import EnvFault, Feedback, writable
from agentgym_envs.core.json_actions import read_call
from agentgym_envs.core.loop_thread import LoopThread
from agentgym_envs.core.tasks import Split, Task, Tasks, TaskSet
from agentgym_envs.util.installation import install

try:
    from aiohttp import web
    from verifiers.v1 import EvalClientConfig, ModelContext  # pyright: ignore[reportMissingImports]
    from verifiers.v1.configs import agent as agents  # pyright: ignore[reportMissingImports]
    from verifiers.v1.utils import loaders  # pyright: ignore[reportMissingImports]
except ModuleNotFoundError as missing:
    raise DependencyNotInstalled(
        f"verifiers' environments need version 0.4 of the package verifiers. Install it: {install('verifiers>=0.4')}"
    ) from missing

_PATH = "/v1/chat/completions"
_SEAT = {"harness": {"id": "null"}, "runtime": {"type": "subprocess"}}


class VerifiersEnv(ExternalEnv):
    """A taskset of verifiers with its environment. Its rows are the tasks, and every tenth is a test task."""

    scheme: ClassVar[str] = "verifiers"
    step_waits: ClassVar[bool] = True
    step_seconds: ClassVar[float] = 1.0

    def __init__(
        self,
        source: str,
        *,
        settings: Mapping[str, Any] | None = None,
        seat: str = "",
        timeout: float = 300.0,
        **options: Any,
    ) -> None:
        """Create the environment. Its package is imported, but nothing is started.

        Args:
            source: The id of the taskset: the name of its installed package.
            settings: The environment's configuration, as in a configuration file of verifiers, such as
                `{"taskset": {"limit": 5}}`. An agent without a harness has `null`, which chats and calls the task's
                tools, in a process of this machine.
            seat: The agent that is played, if the environment has several. The others need a `client` and a `model`
                in `settings`.
            timeout: Seconds for each turn, after which the episode has failed.
            options: See `ExternalEnv`.

        Raises:
            ValueError: if there is no such taskset, its settings are wrong, or more than one agent would be played.
        """
        super().__init__(source, **options)
        if not timeout > 0:
            raise ValueError(f"timeout must be above 0 seconds, not {timeout:g}.")
        self._timeout, self._config = timeout, _configuration(source, dict(settings or {}))
        self._seat = _played(self._config, seat, self.name)
        self._env = loaders.load_environment(self._config)
        self._rows: list[Any] = []
        self._source: Iterator[Any] = iter(self._env.taskset)
        self._serving: _Serving | None = None

    def close(self) -> None:
        """End the episode and all that was started for it. May be called twice."""
        serving, self._serving = self._serving, None
        if serving is not None:
            serving.close()

    @property
    def tasks(self) -> TaskSet:
        """The rows of the taskset, at most as many as the options `train` and `test` say."""
        number = None
        if self._env.taskset.bounded:
            self._read(TEST_SHARE * max(self._sizes.values()))
            number = len(self._rows)
        return TaskSet(train=self._split("train", number), test=self._split("test", number))

    def _split(self, split: Split, number: int | None) -> Tasks:
        """Return the tasks of a split, of `number` rows or of an endless taskset."""
        chosen = itertools.islice(rows_of(split, number), self._sizes[split])
        ids = [f"{self._slug}/{split}/{i}" for i in chosen]

        def build(task_id: str) -> Task:
            return Task(task_id, self.name, split, self._slug, 1, {"row": int(task_id.rpartition("/")[2])})

        return Tasks(ids, build)

    def _read(self, number: int) -> None:
        """Read rows until there are `number`, or no more."""
        self._rows.extend(itertools.islice(self._source, max(0, number - len(self._rows))))

    def _begin(self, task: Task) -> str:
        row = task.payload["row"]
        self._read(row + 1)
        if self._serving is None or not self._serving.alive:
            self._serving = _Serving(self._env, self._seat, self._timeout)
        observation = self._serving.begin(self._rows[row])
        if observation is None:
            raise EnvFault(f"{task.id} was over before it called the agent's model.")
        return observation

    def _take(self, action: str) -> Feedback:
        if self._serving is None:
            raise EnvFault(f"{self.name} has no episode.")
        observation = self._serving.reply(action)
        if observation is not None:
            return Feedback(observation)
        reward, reason = self._serving.outcome()
        self._earn(reward)
        return Feedback(writable(f"The conversation is over ({reason})."), terminated=True)


class _Serving:
    """An environment of verifiers that is being served: an endpoint for its agent, and the episode that calls it."""

    def __init__(self, env: Any, seat: str, timeout: float) -> None:
        self._env, self._seat, self._timeout = env, seat, timeout
        self._thread = LoopThread("The environment of verifiers")
        self._stack = AsyncExitStack()
        self._stop = asyncio.Event()
        self._episode: asyncio.Task[Any] | None = None
        self._news: asyncio.Queue[dict[str, Any] | None] = asyncio.Queue()
        self._replies: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self._tools: list[str] = []
        self._seen, self._calls = 0, itertools.count(1)
        ready: Future[str] = Future()
        self._serving = self._thread.start(self._serve(ready))
        try:
            self._url = ready.result(timeout)
        except Exception as error:
            self.close()
            raise EnvFault(f"The environment can't be served: {error!r}") from error

    @property
    def alive(self) -> bool:
        return self._thread.alive and not self._serving.done()

    def begin(self, row: Any) -> str | None:
        """Begin an episode, and return what its first request says; None if it is over without one."""
        self._seen, self._tools = 0, []
        self._thread.run(self._cancel(), self._timeout)
        self._thread.run(self._start(row), self._timeout)
        return self._next()

    def reply(self, action: str) -> str | None:
        """Answer the request, and return what the next one adds; None if the episode is over."""
        self._thread.call_soon(self._replies.put_nowait, _message(action, self._tools, next(self._calls)))
        return self._next()

    def outcome(self) -> tuple[float, str]:
        """Return the reward of the episode that is over, and why it ended.

        Raises:
            EnvFault: if it failed.
        """
        assert self._episode is not None
        episode = self._episode.result()
        trace = next((each for each in episode.traces if each.agent.name == self._seat), None)
        errors = [*episode.errors, *(error for each in episode.traces for error in each.errors)]
        if not episode.ok or trace is None:
            why = "; ".join(f"{error.type}: {error.message}" for error in errors) or "no reason given"
            raise EnvFault(f"The episode failed in verifiers: {why}")
        return float(trace.reward), str(trace.stop_condition or "finished")

    def close(self) -> None:
        if self._thread.alive:
            self._thread.call_soon(self._stop.set)
            try:
                self._serving.result(self._timeout)
            except Exception:  # noqa: BLE001 - it has failed before, and whoever asked knows
                self._serving.cancel()
            self._thread.stop()

    def _next(self) -> str | None:
        request = self._thread.run(self._news.get(), self._timeout)
        if request is None:
            self.outcome()
            return None
        return self._shown(request)

    def _shown(self, request: dict[str, Any]) -> str:
        """Return the messages that are new, and the tools in the first request."""
        messages: list[dict[str, Any]] = request["messages"]
        replies = [i for i, message in enumerate(messages) if message["role"] == "assistant"]
        new = messages[replies[-1] + 1 :] if replies and self._seen else messages
        texts = [_text(message.get("content")) for message in new if message["role"] != "assistant"]
        functions = [tool["function"] for tool in request.get("tools") or [] if "function" in tool]
        names = [function["name"] for function in functions]
        if names != self._tools:
            self._tools = names
            texts.append(listed_tools(functions))
        self._seen += 1
        return writable("\n\n".join(text for text in texts if text))

    async def _serve(self, ready: Future[str]) -> None:
        """Hold the endpoint and the environment open: they are closed by the task that has opened them."""
        try:
            async with AsyncExitStack() as stack:
                app = web.Application(client_max_size=2**30)
                app.router.add_post(_PATH, self._answer)
                # An episode that is given up leaves a request without an answer, which must not hold up the end.
                runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=1.0)
                await runner.setup()
                stack.push_async_callback(runner.cleanup)
                await web.TCPSite(runner, "127.0.0.1", 0).start()
                await stack.enter_async_context(self._env.serving())
                stack.push_async_callback(self._cancel)
                ready.set_result(f"http://127.0.0.1:{runner.addresses[0][1]}/v1")
                await self._stop.wait()
        except BaseException as error:
            if not ready.done():
                ready.set_exception(error)
            raise

    async def _cancel(self) -> None:
        """End the episode that is running, and forget what it said."""
        if self._episode is not None and not self._episode.done():
            self._episode.cancel()
            await asyncio.wait([self._episode])
        self._news, self._replies = asyncio.Queue(), asyncio.Queue()

    async def _start(self, row: Any) -> None:
        client = EvalClientConfig(base_url=self._url, api_key_var="AGENTGYM_NO_KEY")
        self._episode = asyncio.create_task(self._env.run_episode(row, ModelContext("agent", client)))
        news = self._news
        self._episode.add_done_callback(lambda _: news.put_nowait(None))

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        """Hand a request to the player, and return the player's reply, as a stream if it asks for one."""
        body = await request.json()
        self._news.put_nowait(body)
        message = await self._replies.get()
        about = {"id": "reply", "created": 0, "model": body.get("model", "agent")}
        reason = "tool_calls" if message.get("tool_calls") else "stop"
        choice = {"index": 0, "finish_reason": reason, "delta" if body.get("stream") else "message": message}
        if not body.get("stream"):
            return web.json_response({**about, "object": "chat.completion", "choices": [choice]})
        chunk = json.dumps({**about, "object": "chat.completion.chunk", "choices": [choice]})
        return web.Response(text=f"data: {chunk}\n\ndata: [DONE]\n\n", content_type="text/event-stream")


def _configuration(source: str, settings: dict[str, Any]) -> Any:
    """Return the environment's configuration. Its agents have a harness and a runtime that need this machine alone."""
    record = {**settings, "taskset": {**settings.get("taskset", {}), "id": source}}
    try:
        kind = loaders.env_config_type(source, record.get("id", ""))
        seats = list(agents.agent_config_fields(kind.model_construct()))
        for name in seats:
            record[name] = {**_SEAT, **record.get(name, {})}
        return loaders.resolve_env_config(record)
    except (AttributeError, ImportError, TypeError, ValueError) as error:
        raise ValueError(f"verifiers:{source} can't be loaded: {' '.join(str(error).split())}") from error


def _played(config: Any, seat: str, name: str) -> str:
    """Return the name of the agent that is played."""
    seats = agents.agent_config_fields(config)
    if seat and seat not in seats:
        raise ValueError(f"{name} has no agent {seat}. Its agents: {', '.join(seats)}.")
    free = [each for each, agent in seats.items() if agent.client is None and each != seat]
    if len(free) > (0 if seat else 1):
        raise ValueError(
            f"{name} has the agents {', '.join(seats)}, and one can be played: choose it with the option seat, and "
            f"give the others a model and a client in settings ({', '.join(free)} have none)."
        )
    return seat or next(iter(free), next(iter(seats)))


def _message(action: str, tools: list[str], number: int) -> dict[str, Any]:
    """Return an action as a message: a call if it is one of a known tool, and otherwise text."""
    call = read_call(action)
    if call is None or call[0] not in tools:
        return {"role": "assistant", "content": action}
    function = {"name": call[0], "arguments": json.dumps(call[1], ensure_ascii=False)}
    return {
        "role": "assistant",
        "content": None,
        "tool_calls": [{"index": 0, "id": f"call_{number}", "type": "function", "function": function}],
    }


def _text(content: Any) -> str:
    """Return the text of a message; other parts are named."""
    if not isinstance(content, list):
        return str(content or "")
    return "\n".join(str(part.get("text") or f"[{part.get('type')}]") for part in content)
