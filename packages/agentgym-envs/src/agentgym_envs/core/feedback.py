"""What an environment answers, the malformed replies that it may be given, and the errors of one that is broken.

`Checked` looks at every value once, where it enters: from there on rewards and scores are finite numbers, observations
are text, and no trainer, file or tracker has to ask again.
"""

from __future__ import annotations

import re
import reprlib
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
"""How far a score that was summed up in floats may lie outside of [0, 1]."""


_FRAME = re.compile(r'File "(.+)", line (\d+), in (\S+)')


class EnvFault(RuntimeError):
    """The world itself broke (JVM, browser, server, network); the agent did nothing wrong.

    Whoever plays retries the task after `reset`, which builds what broke anew; a fault that persists makes the
    episode *failed*: counted and shown, never scored, never trained on.
    """


class InvalidFeedback(EnvFault):
    """An environment returned what the contract doesn't allow; the message names environment, task and field."""


class Malformed(str):
    """A reply in which no action was found. It is a `str`, so it passes through any Gymnasium wrapper to the world.

    The world answers it with `hint`, marks the turn invalid and lets it cost a turn like any other.
    """

    hint: str
    """What would have been understood."""

    def __new__(cls, reply: str, hint: str) -> Malformed:
        """A malformed `reply` with its `hint`."""
        malformed = super().__new__(cls, reply)
        malformed.hint = hint
        return malformed

    def __reduce__(self) -> tuple[type[Malformed], tuple[str, str]]:
        return Malformed, (str(self), self.hint)


@dataclass(frozen=True, slots=True)
class Feedback:
    """What a world says to one action."""

    observation: str
    valid: bool = True
    """False when the action was not understood or not possible; the observation then says what would be."""
    terminated: bool = False
    """The world ended the episode: the goal was reached or can't be any more."""
    truncated: bool = False
    """A limit of the simulator's own ended it."""


@dataclass(frozen=True, slots=True)
class FeedbackChecker:
    """Checks what one environment returns in one task. Each method gives the value back in its plain Python type.

    Raises:
        InvalidFeedback: (all methods) when the value isn't what the contract says.
    """

    env: str
    """Gymnasium id, or the name of the class."""
    task_id: str

    def feedback(self, given: Any) -> Feedback:
        """A `Feedback` whose observation is text and whose flags are bool."""
        if not isinstance(given, Feedback):
            raise self.invalid("feedback", "must be a Feedback", given)
        told = self.text("observation", given.observation)
        flags = [self.flag(name, getattr(given, name)) for name in ("valid", "terminated", "truncated")]
        return Feedback(told, *flags)

    def text(self, field: str, given: Any) -> str:
        """Text, with a question mark for each lone surrogate."""
        if not isinstance(given, str):
            raise self.invalid(field, "must be text (str)", given)
        return writable(given)

    def flag(self, field: str, given: Any) -> bool:
        """True or False."""
        if not isinstance(given, bool | np.bool_):
            raise self.invalid(field, "must be True or False", given)
        return bool(given)

    def score(self, given: Any) -> float:
        """A finite number in [0, 1]; one that lies outside by rounding is moved to the bound."""
        if not isinstance(given, Real) or not -_ROUNDING <= (score := float(given)) <= 1 + _ROUNDING:  # nor a NaN
            raise self.invalid("score", "must be a finite number in [0, 1]", given)
        return min(1.0, max(0.0, score))

    def actions(self, given: Any) -> list[str] | None:
        """A list of texts, or None."""
        if given is not None and not (isinstance(given, list) and all(isinstance(action, str) for action in given)):
            raise self.invalid("available_actions", "must be a list of texts (str) or None", given)
        return given

    def raw(self, given: Any) -> dict[str, Any]:
        """A dict."""
        if not isinstance(given, dict):
            raise self.invalid("raw", "must be a dict", given)
        return given

    def invalid(self, field: str, rule: str, given: Any) -> InvalidFeedback:
        """The error for a field that breaks this rule."""
        return InvalidFeedback(
            f"{self.env} broke the environment contract in task {self.task_id}: `{field}` {rule}, not "
            f"{reprlib.repr(given)} ({type(given).__name__}). Mend the environment; docs/howto/add-a-world.md has the "
            "contract."
        )


@contextmanager
def faulting(env: str) -> Generator[None]:
    """Turn whatever is raised in here, where an environment works or what it gave is read, into an `EnvFault`: a bug in
    an environment must fail an episode, not a run.

    What it needs and isn't installed fails every episode, and is passed on as it is.
    """
    try:
        yield
    except (EnvFault, DependencyNotInstalled):
        raise
    except Exception as error:
        raise _raised_by(env, error) from error


def _raised_by(env: str, error: Exception) -> EnvFault:
    """The fault that an environment's own exception amounts to, with the line of code that raised it."""
    notes = "\n".join(getattr(error, "__notes__", ()))  # with the traceback of another process, see `pool.orders`
    frames = [(f.filename, f.lineno, f.name) for f in traceback.extract_tb(error.__traceback__)]
    *_, (path, line, function) = _FRAME.findall(notes) or frames or [("", "", "")]
    where = f" ({Path(path).name}, line {line}, in {function})" if path else ""
    said = f"{type(error).__name__}: {error}".removesuffix(": ")
    return EnvFault(f"{env} raised {said}{where}")


def writable(text: str) -> str:
    """`text` with a question mark for each lone surrogate, which UTF-8 can't write; a tokenizer may cut an emoji so."""
    return text if text.isascii() else text.encode(errors="replace").decode()
