"""The feedback of an environment, malformed replies, and the errors of broken environments.

`FeedbackChecker` checks every value once, where it enters the package. After that, rewards and scores are finite
numbers and observations are text, so trainers, files and trackers need no further checks.
"""

from __future__ import annotations

import re
import reprlib
import signal
import threading
import traceback
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from numbers import Real
from pathlib import Path
from typing import Any

import numpy as np
from gymnasium.error import DependencyNotInstalled

_ROUNDING = 1e-6
"""Tolerance for a score outside of [0, 1] by floating-point summation."""

_FRAME = re.compile(r'File "(.+)", line (\d+), in (\S+)')


class EnvFault(RuntimeError):
    """A failure of the environment itself (JVM, browser, server, network), not of the agent.

    The caller retries the task after `reset`, which rebuilds the broken part. If the fault persists, the episode is
    *failed*: it is counted and shown, but never scored and never trained on.
    """


class InvalidFeedback(EnvFault):
    """A returned value that violates the contract. The message names the environment, the task and the field."""


class Malformed(str):
    """A reply without an action. As a `str`, it passes through any Gymnasium wrapper to the environment.

    The environment answers it with `hint` and marks the turn invalid. It costs a turn like any other reply.
    """

    hint: str
    """The form that would have been understood."""

    def __new__(cls, reply: str, hint: str) -> Malformed:
        """Create a malformed `reply` with its `hint`."""
        malformed = super().__new__(cls, reply)
        malformed.hint = hint
        return malformed

    def __reduce__(self) -> tuple[type[Malformed], tuple[str, str]]:
        return Malformed, (str(self), self.hint)


@dataclass(frozen=True, slots=True)
class Feedback:
    """The result of one action."""

    observation: str
    valid: bool = True
    """False if the action was not understood or not possible. The observation then states what would be."""
    terminated: bool = False
    """The environment ended the episode: the goal was reached or has become unreachable."""
    truncated: bool = False
    """A limit of the simulator itself ended the episode."""


@dataclass(frozen=True, slots=True)
class FeedbackChecker:
    """Checks the values that one environment returns in one task. Each method returns the value as a plain Python type.

    Raises:
        InvalidFeedback: (all methods) if the value violates the contract.
    """

    env: str
    """The Gymnasium id, or the name of the class."""
    task_id: str

    def feedback(self, given: Any) -> Feedback:
        """Return a `Feedback` whose observation is text and whose flags are bool."""
        if not isinstance(given, Feedback):
            raise self.invalid("feedback", "must be a Feedback", given)
        observation = self.text("observation", given.observation)
        flags = [self.flag(name, getattr(given, name)) for name in ("valid", "terminated", "truncated")]
        return Feedback(observation, *flags)

    def text(self, field: str, given: Any) -> str:
        """Return text with a question mark for each lone surrogate."""
        if not isinstance(given, str):
            raise self.invalid(field, "must be text (str)", given)
        return writable(given)

    def flag(self, field: str, given: Any) -> bool:
        """Return True or False."""
        if not isinstance(given, bool | np.bool_):
            raise self.invalid(field, "must be True or False", given)
        return bool(given)

    def score(self, given: Any) -> float:
        """Return a finite number in [0, 1]. Values outside by a rounding error are clipped to the bound."""
        if not isinstance(given, Real) or not -_ROUNDING <= (score := float(given)) <= 1 + _ROUNDING:  # nor a NaN
            raise self.invalid("score", "must be a finite number in [0, 1]", given)
        return min(1.0, max(0.0, score))

    def actions(self, given: Any) -> list[str] | None:
        """Return a list of texts, or None."""
        if given is not None and not (isinstance(given, list) and all(isinstance(action, str) for action in given)):
            raise self.invalid("available_actions", "must be a list of texts (str) or None", given)
        return given

    def raw(self, given: Any) -> dict[str, Any]:
        """Return a dict."""
        if not isinstance(given, dict):
            raise self.invalid("raw", "must be a dict", given)
        return given

    def invalid(self, field: str, rule: str, given: Any) -> InvalidFeedback:
        """Return the error for a field that violates `rule`."""
        return InvalidFeedback(
            f"{self.env} broke the environment contract in task {self.task_id}: `{field}` {rule}, not "
            f"{reprlib.repr(given)} ({type(given).__name__}). Fix the environment; docs/howto/add-a-world.md describes "
            "the contract."
        )


@contextmanager
def faulting(env: str) -> Generator[None]:
    """Turn any exception in this block into an `EnvFault`: a bug in an environment must fail an episode, not a run.

    The block runs the environment or reads the values it returned. So `SystemExit` is turned into one, too, unless it
    is meant for the caller. `DependencyNotInstalled` passes through unchanged, because a missing dependency would fail
    every episode.
    """
    try:
        yield
    except (EnvFault, DependencyNotInstalled):
        raise
    except StopIteration as error:
        # With it as the cause of a RuntimeError, `contextlib` would raise the StopIteration again.
        raise _raised_by(env, error) from None
    except (Exception, SystemExit) as error:
        if isinstance(error, SystemExit) and ends_caller(error):
            raise
        raise _raised_by(env, error) from error


def ends_caller(error: BaseException) -> bool:
    """Return whether an error that was raised while an environment ran is meant for its caller: a signal handler raised
    it, or it is a `KeyboardInterrupt` in the main thread, where Ctrl-C raises it.
    """
    handlers = map(signal.getsignal, signal.valid_signals())
    codes = [getattr(getattr(handler, "__func__", handler), "__code__", None) for handler in handlers]
    if any(frame.f_code in codes for frame, _ in traceback.walk_tb(error.__traceback__)):
        return True
    return isinstance(error, KeyboardInterrupt) and threading.current_thread() is threading.main_thread()


def _raised_by(env: str, error: Exception | SystemExit) -> EnvFault:
    """Return the fault for an exception of the environment, with the line of code that raised it."""
    notes = "\n".join(getattr(error, "__notes__", ()))  # the traceback of another process, see `pool.orders`
    frames = [(f.filename, f.lineno, f.name) for f in traceback.extract_tb(error.__traceback__)]
    *_, (path, line, function) = _FRAME.findall(notes) or frames or [("", "", "")]
    location = f" ({Path(path).name}, line {line}, in {function})" if path else ""
    message = f"{type(error).__name__}: {error}".removesuffix(": ")
    return EnvFault(f"{env} raised {message}{location}")


def writable(text: str) -> str:
    """Return `text` with a question mark for each lone surrogate, which UTF-8 can't encode.

    A tokenizer that splits an emoji can produce lone surrogates.
    """
    return text if text.isascii() else text.encode(errors="replace").decode()
