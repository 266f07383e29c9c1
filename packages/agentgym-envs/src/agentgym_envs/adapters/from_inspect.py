"""Evaluations of Inspect (UK AI Security Institute) as text environments: `inspect:MODULE:TASK`.

An evaluation calls a model; here, that is one that hands each call to the player. What a call adds to the conversation
is the observation, and the action is the model's output. The other models of an evaluation, such as the simulated user
of tau2-bench, have roles.
"""

from __future__ import annotations

import asyncio
import itertools
import re
import tempfile
from collections.abc import Callable, Container, Mapping
from pathlib import Path
from typing import Any, ClassVar, cast

from gymnasium.error import DependencyNotInstalled

from agentgym_envs.adapters.external import ExternalEnv, listed_tools, rows_of
from agentgym_envs.core.feedback import EnvFault, Feedback, writable
from agentgym_envs.core.json_actions import read_call
from agentgym_envs.core.loop_thread import LoopThread
from agentgym_envs.core.tasks import Split, Task, Tasks, TaskSet
from agentgym_envs.util.importing import import_named
from agentgym_envs.util.installation import install

try:
    import inspect_ai  # pyright: ignore[reportMissingImports]
    from inspect_ai.model import ModelOutput, ModelUsage, get_model  # pyright: ignore[reportMissingImports]
    from inspect_ai.scorer import value_to_float  # pyright: ignore[reportMissingImports]
    from inspect_ai.util import _display  # pyright: ignore[reportMissingImports]
except ModuleNotFoundError as missing:
    raise DependencyNotInstalled(
        f"Inspect's evaluations need the package inspect-ai. Install it: {install('inspect-ai')}"
    ) from missing

_SCRIPT = "script:"
Role = str | Mapping[str, Any]
"""A model of Inspect, such as `openai/gpt-4o-mini`, `script:FILE`, or the keyword arguments of Inspect's `get_model`:
a mapping."""


class InspectEnv(ExternalEnv):
    """An evaluation, whose samples are the tasks. A process can play one episode of Inspect at a time."""

    scheme: ClassVar[str] = "inspect"
    step_seconds: ClassVar[float] = 1.0  # so that each environment has a process of its own

    def __init__(
        self,
        source: str,
        *,
        settings: Mapping[str, Any] | None = None,
        roles: Mapping[str, Role] | None = None,
        timeout: float = 300.0,
        **options: Any,
    ) -> None:
        """Create the environment. The evaluation's dataset is read, but nothing is started.

        Args:
            source: MODULE:TASK, a function of the module that is decorated with Inspect's `task`.
            settings: Keyword arguments of the function.
            roles: The models of the evaluation's other roles, such as `{"user": "openai/gpt-4o-mini"}`. `script:FILE`
                is a model that says the lines of a text file in turn, the last one again and again.
            timeout: Seconds for each turn, after which the episode has failed.
            options: See `ExternalEnv`.

        Raises:
            ValueError: if there is no such task, its settings are wrong, or a role's model doesn't exist.
        """
        super().__init__(source, **options)
        if not timeout > 0:
            raise ValueError(f"timeout must be above 0 seconds, not {timeout:g}.")
        self._timeout, self._settings, self._roles = timeout, dict(settings or {}), dict(roles or {})
        self._create = _function(source, self.name)
        self.samples = self._read()
        """The samples of the evaluation, with their ids and metadata."""
        self._playing: _Playing | None = None
        _ = [_model(role) for role in self._roles.values()]  # fails now if there is none

    def _read(self) -> list[Any]:
        """Return the samples, in the order of their ids, since an evaluation may shuffle them."""
        try:
            samples = list(self._create(**self._settings).dataset)
        except Exception as error:
            raise ValueError(f"{self.name} can't be created: {error}") from error
        for number, sample in enumerate(samples, 1):
            sample.id = number if sample.id is None else sample.id
        return sorted(samples, key=lambda sample: (not isinstance(sample.id, int), _order(sample.id)))

    def close(self) -> None:
        """End the episode. May be called twice."""
        playing, self._playing = self._playing, None
        if playing is not None:
            playing.close()

    @property
    def tasks(self) -> TaskSet:
        """The samples: every tenth is a test task."""
        return TaskSet(train=self._split("train"), test=self._split("test"))

    def _split(self, split: Split) -> Tasks:
        chosen = itertools.islice(rows_of(split, len(self.samples)), self._sizes[split])
        found: dict[str, str | int] = {}
        for i in chosen:
            found[_named(f"{self._slug}/{split}/", self.samples[i].id, found)] = self.samples[i].id

        def build(task_id: str) -> Task:
            return Task(task_id, self.name, split, self._slug, 1, {"sample": found[task_id]})

        return Tasks(list(found), build)

    def _begin(self, task: Task) -> str:
        self.close()
        roles = {name: _model(role) for name, role in self._roles.items()}
        self._playing = playing = _Playing(self._create(**self._settings), task.payload["sample"], roles, self._timeout)
        observation = playing.next()
        if observation is None:
            raise EnvFault(f"{task.id} was over before it called the agent's model.")
        return observation

    def _take(self, action: str) -> Feedback:
        if self._playing is None:
            raise EnvFault(f"{self.name} has no episode.")
        observation = self._playing.reply(action)
        if observation is not None:
            return Feedback(observation)
        score, reasons = self._playing.outcome()
        self._earn(score)
        return Feedback(writable(f"The conversation is over. {reasons}".strip()), terminated=True)


class _Playing:
    """An episode: an evaluation of one sample, which waits for the player where it calls its model."""

    def __init__(self, task: Any, sample: str | int, roles: dict[str, Any], timeout: float) -> None:
        self._timeout = timeout
        self._thread = LoopThread("The evaluation of Inspect")
        self._calls: asyncio.Queue[tuple[Any, Any] | None] = asyncio.Queue()
        self._replies: asyncio.Queue[Any] = asyncio.Queue()
        self._tools: list[str] = []
        self._evaluation = self._thread.start(self._evaluate(task, sample, roles))

    def next(self) -> str | None:
        """Return what the next call of the model says; None if the evaluation is over.

        Raises:
            EnvFault: if it failed, or nothing happens in time.
        """
        call = self._thread.run(self._calls.get(), self._timeout)
        if call is None:
            self.outcome()
            return None
        return self._shown(*call)

    def reply(self, action: str) -> str | None:
        """Answer the call, and return what the next one adds."""
        call = read_call(action)
        if call is None or call[0] not in self._tools:
            output = _output(action)
        else:
            output = ModelOutput.for_tool_call("agent", *call)
            output.usage = ModelUsage()
        self._thread.call_soon(self._replies.put_nowait, output)
        return self.next()

    def outcome(self) -> tuple[float, str]:
        """Return the score of the evaluation that is over, and its scorer's reasons.

        Raises:
            EnvFault: if it failed.
        """
        try:
            failure, samples = self._evaluation.result(self._timeout)
        except Exception as error:
            raise EnvFault(f"The evaluation failed: {error!r}") from error
        sample = next(iter(samples), None)
        error = failure or (sample.error if sample else None)
        if error is not None or sample is None or not sample.scores:
            raise EnvFault(f"The evaluation failed: {error.message if error else 'it has no score'}")
        score = next(iter(sample.scores.values()))
        return float(value_to_float()(score.value)), str(score.explanation or "")

    def close(self) -> None:
        """End the evaluation, if it is running."""
        self._evaluation.cancel()
        self._thread.stop()

    async def _evaluate(self, task: Any, sample: str | int, roles: dict[str, Any]) -> Any:
        if not _display.display_type_initialized():
            _display.init_display_type("none")
        model = get_model("mockllm/agent", custom_outputs=self._answer, memoize=False)
        try:
            with tempfile.TemporaryDirectory(prefix="agentgym-inspect-") as logs:
                (log,) = await inspect_ai.eval_async(
                    task, model=model, model_roles=roles, sample_id=sample, epochs=1, log_dir=logs, log_format="json",
                    log_samples=True, log_realtime=False, score_display=False, acp_server=False, ctl_server=False,
                )  # fmt: skip
                return log.error, await asyncio.to_thread(list, log.samples or [])  # read from the file before it goes
        finally:
            self._calls.put_nowait(None)

    async def _answer(self, messages: Any, tools: Any, *_: Any) -> Any:
        """Hand a call of the model to the player, and return the player's output."""
        self._calls.put_nowait((messages, tools))
        return await self._replies.get()

    def _shown(self, messages: list[Any], tools: list[Any]) -> str:
        """Return the messages since the player's last reply, and the tools when they change."""
        replies = [i for i, message in enumerate(messages) if message.role == "assistant"]
        new = messages[replies[-1] + 1 :] if replies else messages
        texts = [_text(message) for message in new]
        names = [tool.name for tool in tools]
        if names != self._tools:
            self._tools = names
            fields = {"name", "description", "parameters"}
            texts.append(listed_tools(tool.model_dump(include=fields, exclude_none=True) for tool in tools))
        return writable("\n\n".join(text for text in texts if text))


def _output(text: str) -> Any:
    """Return a text as a model's output, whose tokens aren't counted: Inspect would download a tokenizer for it."""
    output = ModelOutput.from_content("agent", text)
    output.usage = ModelUsage()
    return output


def _text(message: Any) -> str:
    """Return the text of a message, and why a tool has failed."""
    error = getattr(message, "error", None)
    return f"Error: {error.message}" if error is not None else str(message.text)


def _function(source: str, name: str) -> Callable[..., Any]:
    module, colon, attribute = source.rpartition(":")
    found = getattr(import_named(module, f"the environment {name}"), attribute, None) if colon else None
    if not callable(found):
        raise ValueError(
            f"{name} must name a task of Inspect as inspect:MODULE:TASK, such as "
            "inspect:inspect_evals.tau2:tau2_airline."
        )
    return cast("Callable[..., Any]", found)


def _model(role: Role) -> Any:
    """Return the model of a role.

    Raises:
        ValueError: if there is no such model or file.
    """
    if isinstance(role, str) and role.startswith(_SCRIPT):
        file = Path(role.removeprefix(_SCRIPT))
        try:
            lines = file.read_text(encoding="utf-8").splitlines()
        except (OSError, UnicodeDecodeError) as error:
            raise ValueError(f"The script of a role can't be read: {error}.") from error
        if not lines:
            raise ValueError(f"The script {file} of a role is empty; write what it says, one message a line.")
        said = itertools.chain(lines, itertools.repeat(lines[-1]))
        outputs = map(_output, said)
        return get_model("mockllm/script", custom_outputs=outputs, memoize=False)
    try:
        return get_model(role, memoize=False) if isinstance(role, str) else get_model(**role, memoize=False)
    except Exception as error:
        raise ValueError(f"The model {role} of a role can't be opened: {error}") from error


def _order(sample: str | int) -> Any:
    """Return a key that sorts numbers in texts by value."""
    if isinstance(sample, int):
        return sample
    return [(int(part), "") if part.isdigit() else (-1, part) for part in re.split(r"(\d+)", sample)]


def _named(prefix: str, sample: str | int, taken: Container[str]) -> str:
    """Return the id of a sample's task, with a number if another sample, such as `a/b` beside `a-b`, has taken it."""
    name = prefix + re.sub(r"[^\w.-]+", "-", str(sample)).strip("-")
    numbered = (f"{name}-{number}" for number in itertools.count(2))
    return next(each for each in itertools.chain([name], numbered) if each not in taken)
