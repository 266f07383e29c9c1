"""The tools of an MCP (Model Context Protocol) server as a text environment: `mcp:COMMAND` or `mcp:URL`.

An action is a call, as JSON: `{"name": "get_weather", "arguments": {"city": "Oslo"}}`. What there is to do comes from a
file of questions, whose answers end the episode, or from the server, if it has a tool `reset` as environments do.
"""

from __future__ import annotations

import asyncio
import json
import shlex
import shutil
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, cast

from gymnasium.error import DependencyNotInstalled

from agentgym_envs.adapters.external import ExternalEnv
from agentgym_envs.core.action_schema import Function
from agentgym_envs.core.feedback import EnvFault, Feedback, writable
from agentgym_envs.core.json_actions import ToolFunction, read_call
from agentgym_envs.core.loop_thread import LoopThread
from agentgym_envs.core.tasks import SPLITS, Split, Task, Tasks, TaskSet
from agentgym_envs.util.importing import import_named
from agentgym_envs.util.installation import install
from agentgym_envs.util.json_text import parse
from agentgym_envs.util.qa_metrics import exact_match

try:
    from mcp import Client, MCPError, StdioServerParameters, stdio_client
    from mcp.types import INVALID_PARAMS, METHOD_NOT_FOUND, CallToolResult, TextContent, Tool
except ImportError as missing:
    raise DependencyNotInstalled(
        f"MCP servers need version 2 of the package mcp. Install it: {install('agentgym-envs[mcp]')}"
    ) from missing

_ANSWER = "answer"
_RESET = "reset"
_URLS = ("http://", "https://")
Reward = Callable[[Mapping[str, Any], str, list[dict[str, Any]]], float]
"""A function of the record of a question, the answer, and the calls with their results; it returns a score."""


class McpEnv(ExternalEnv):
    """The tools of a server. Each episode with a question has a connection, and a command a process, of its own."""

    scheme: ClassVar[str] = "mcp"
    step_waits: ClassVar[bool] = True
    step_seconds: ClassVar[float] = 0.05

    def __init__(
        self, source: str, *, questions: str = "", reward: str = "", timeout: float = 60.0, **options: Any
    ) -> None:
        """Create the environment without starting or reaching the server.

        Args:
            source: A command that serves on its standard input and output, or a URL of the streamable HTTP transport.
            questions: A file of JSON lines with a `question` each, an `answer` or a list of `answers`, and optionally
                an `id` and a `split`. An answer is right if it equals one of them, apart from case, punctuation and
                articles. Empty: the server's tool `reset` begins a task, and its structured results have the rewards.
            reward: MODULE:FUNCTION that scores answers instead; see `Reward`.
            timeout: Seconds for each call, after which the episode has failed.
            options: See `ExternalEnv`.

        Raises:
            ValueError: if options are out of range, or the file or the function can't be read.
        """
        super().__init__(source, **options)
        if not timeout > 0:
            raise ValueError(f"timeout must be above 0 seconds, not {timeout:g}.")
        self._timeout, self._connection = timeout, cast("_Connection | None", None)
        self._questions = _read_questions(Path(questions), self.name) if questions else None
        self._reward = _function(reward) if reward else _right
        self._calls: list[dict[str, Any]] = []
        self._paid = 0.0

    @property
    def _slug(self) -> str:
        if self.source.startswith(_URLS):
            return super()._slug
        return "-".join(Path(word).name.lstrip("-") for word in shlex.split(self.source))

    def check_dependencies(self) -> None:
        """Check that the command exists.

        Raises:
            gymnasium.error.DependencyNotInstalled: if there is no such program.
        """
        program = shlex.split(self.source)[0]
        if not self.source.startswith(_URLS) and shutil.which(program) is None:
            raise DependencyNotInstalled(
                f"{self.name} starts the program {program}, which isn't installed here; install it, or give a URL."
            )

    def close(self) -> None:
        """End the connection, and a process that was started. May be called twice."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    @property
    def tasks(self) -> TaskSet:
        """The questions, or seeds for the server's `reset`."""
        if self._questions is None:
            return super().tasks
        found = self._questions
        splits = {name: [i for i, task in found.items() if task.split == name] for name in SPLITS}
        sets = {name: Tasks(ids, found.__getitem__) for name, ids in splits.items()}
        return TaskSet(train=sets["train"], test=sets["test"], dev=sets["dev"] if sets["dev"] else None)

    @property
    def functions(self) -> tuple[Function, ...]:
        """The server's tools, without `reset`, and with a question the tool `answer`.

        Raises:
            EnvFault: if the server can't be reached.
        """
        return self._functions

    @cached_property
    def _functions(self) -> tuple[Function, ...]:
        tools = [tool for tool in self._connected.tools if self._questions is not None or tool.name != _RESET]
        functions = [ToolFunction.of(tool.name, tool.description or "", tool.input_schema) for tool in tools]
        if self._questions is not None:
            schema = {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]}
            functions.append(ToolFunction.of(_ANSWER, "Answer the question.", schema))
        return tuple(functions)

    @property
    def _connected(self) -> _Connection:
        if self._connection is None:
            connection = _Connection(self.source, self._timeout)
            self._connection = connection
        return self._connection

    def _described(self) -> str:
        tools = "\n".join(json.dumps(function.schema["function"], ensure_ascii=False) for function in self.functions)
        end = f" The call of {_ANSWER} ends the task." if self._questions is not None else ""
        return "\n\n".join(
            filter(None, [self._connected.instructions, f"Your tools:\n{tools}", f"{self._form()}{end}"])
        )

    def _form(self) -> str:
        example = self.functions[0].name if self.functions else _ANSWER
        return f'Your action is a call as JSON: {{"name": "{example}", "arguments": {{…}}}}.'

    def _begin(self, task: Task) -> str:
        self._calls, self._paid = [], 0.0
        if self._questions is not None:
            self.close()
            _ = self._connected  # a question finds the server in its first state
            return str(task.payload["question"])
        reset = next((tool for tool in self._connected.tools if tool.name == _RESET), None)
        if reset is None:
            raise ValueError(
                f"{self.name} has no tool {_RESET} that begins a task. Give its questions: --options "
                "questions=FILE.jsonl."
            )
        accepted = reset.input_schema.get("properties", {})
        given = {"seed": task.payload["seed"], "split": task.split}
        result = self._called(_RESET, {name: value for name, value in given.items() if name in accepted})
        if result.is_error:
            raise EnvFault(f"{self.name} did not begin a task: {_text(result)}")
        return _text(result)

    def _take(self, action: str) -> Feedback:
        call = read_call(action)
        known = [function.name for function in self.functions]
        if call is None or call[0] not in known:
            return Feedback(f"{self._form()} The tools: {', '.join(known)}.", valid=False)
        name, arguments = call
        if name == _ANSWER and self._questions is not None:
            text = str(arguments.get("text", ""))
            self._earn(float(self._reward(self.task.payload, text, self._calls)))
            return Feedback("", terminated=True)
        result = self._called(name, arguments)
        self._calls.append({"name": name, "arguments": arguments, "result": _text(result)})
        status = result.structured_content or {}
        if self._questions is None:
            self._receive(status)
        done = bool(status.get("terminated", status.get("done", False)))
        over = self._questions is None
        truncated = over and bool(status.get("truncated")) and not status.get("terminated")
        return Feedback(
            _text(result),
            valid=not result.is_error and status.get("valid") is not False,
            terminated=over and done and not truncated,
            truncated=truncated,
        )

    def _called(self, name: str, arguments: dict[str, Any]) -> CallToolResult:
        """Call a tool. After a fault, the next call has a new connection."""
        try:
            return self._connected.call(name, arguments)
        except EnvFault:
            self.close()
            raise

    def _receive(self, status: Mapping[str, Any]) -> None:
        """Take over the score so far, or else the reward, that a structured result has."""
        solved = status.get("success")
        reward, score = status.get("reward"), status.get("score")
        if isinstance(score, int | float):
            reward, self._paid = score - self._paid, float(score)
        earned = float(reward) if isinstance(reward, int | float) else 0.0
        self._earn(earned, solved=solved)


class _Connection:
    """A connection to a server, whose client lives in a task of a loop of its own."""

    def __init__(self, target: str, timeout: float) -> None:
        self._timeout, self._target = timeout, target
        self._thread = LoopThread(f"The MCP server {target}")
        self._client: Client | None = None
        self._stop = asyncio.Event()
        ready: Future[Client] = Future()
        self._serving = self._thread.start(self._serve(ready))
        try:
            self._client = ready.result(timeout)
            self.tools = self._thread.run(self._listed(self._client), timeout)
            self.instructions = self._client.instructions or ""
        except EnvFault:
            self.close()
            raise
        except Exception as error:
            self.close()
            why = str(error) or f"no answer within {timeout:g} seconds"
            raise EnvFault(f"The MCP server {target} can't be reached: {why}") from error

    def call(self, name: str, arguments: dict[str, Any]) -> CallToolResult:
        """Call a tool. Raises `EnvFault` if the server is gone, or doesn't answer in time."""
        assert self._client is not None
        try:
            return self._thread.run(self._client.call_tool(name, arguments), self._timeout)
        except MCPError as error:
            if error.code in (INVALID_PARAMS, METHOD_NOT_FOUND):  # the agent's own mistake
                return CallToolResult(content=[TextContent(text=str(error))], is_error=True)
            raise EnvFault(f"The MCP server {self._target} failed: {error}") from error

    def close(self) -> None:
        """End the connection."""
        if self._thread.alive:
            self._thread.call_soon(self._stop.set)
            try:
                self._serving.result(self._timeout)
            except Exception:  # noqa: BLE001 - it has failed before, and whoever asked knows
                self._serving.cancel()
            self._thread.stop()

    async def _serve(self, ready: Future[Client]) -> None:
        """Hold the client open: it is closed by the task that has opened it."""
        try:
            async with Client(_transport(self._target)) as client:
                ready.set_result(client)
                await self._stop.wait()
        except BaseException as error:
            if not ready.done():
                ready.set_exception(_first(error))
            raise

    @staticmethod
    async def _listed(client: Client) -> list[Tool]:
        found, cursor = list[Tool](), None
        while True:
            page = await client.list_tools(cursor=cursor)
            found += page.tools
            cursor = page.next_cursor
            if not cursor:
                return found


def _transport(target: str) -> Any:
    if target.startswith(_URLS):
        return target
    command, *arguments = shlex.split(target)
    return stdio_client(StdioServerParameters(command=command, args=arguments))


def _first(error: BaseException) -> BaseException:
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


def _text(result: CallToolResult) -> str:
    """Return the text of a result; other content is named."""
    parts = [part.text if isinstance(part, TextContent) else f"[{part.type}]" for part in result.content]
    return writable("\n".join(parts))


def _right(record: Mapping[str, Any], answer: str, _: list[dict[str, Any]]) -> float:
    return float(exact_match(answer, record["answers"]))


def _function(name: str) -> Reward:
    module, colon, attribute = name.partition(":")
    found = getattr(import_named(module, f"the reward {name}"), attribute, None) if colon else None
    if not callable(found):
        raise ValueError(
            f"reward must be MODULE:FUNCTION with a function of a question, an answer and calls, not {name}."
        )
    return cast("Reward", found)


def _read_questions(file: Path, env: str) -> dict[str, Task]:
    try:
        lines = file.read_text(encoding="utf-8").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"The questions in {file} can't be read: {error}.") from error
    found: dict[str, Task] = {}
    for number, line in enumerate(lines, 1):
        if line.strip():
            task = _question(line, f"{file}, line {number}", f"{file.stem}/{number}", env)
            if task.id in found:
                raise ValueError(f"{file}, line {number}: there is a second question with the id {task.id}.")
            found[task.id] = task
    if not found:
        raise ValueError(f"{file} has no question; write one JSON object a line, with question and answer.")
    return found


def _question(line: str, where: str, default_id: str, env: str) -> Task:
    try:
        record = parse(line)
    except ValueError as error:
        raise ValueError(f"{where}: {error}") from error
    given: dict[str, Any] = record if isinstance(record, dict) else {}
    split = cast("Split", given.get("split", "test"))
    answers = given.get("answers", [given["answer"]] if "answer" in given else [])
    if not isinstance(given.get("question"), str) or split not in SPLITS or not isinstance(answers, list):
        raise ValueError(
            f"{where}: a question is an object with the texts question and answer (or a list, answers), and optionally "
            f"an id and a split, one of {', '.join(SPLITS)}."
        )
    payload = {**given, "answers": [str(answer) for answer in cast("list[Any]", answers)]}
    category = str(given.get("category", default_id.partition("/")[0]))
    return Task(str(given.get("id", default_id)), env, split, category, 1, payload)
