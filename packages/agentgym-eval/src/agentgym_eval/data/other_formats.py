"""Formats that others keep conversations in, apart from TRL's `messages` and AgentGym's: ShareGPT's, prompts
with completions (TRL's, and the rollouts of verifiers), preferences (TRL's, and those that we write) and alpaca's.

Each record becomes conversations of `dialogue`, with what it says of score and task.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from agentgym_eval.data.chat_messages import Told, recording
from agentgym_eval.data.recorded import Recording

_SPEAKERS = {
    "system": "system",
    "human": "user",
    "user": "user",
    "observation": "tool",
    "tool": "tool",
    "gpt": "assistant",
    "chatgpt": "assistant",
    "assistant": "assistant",
    "model": "assistant",
}
"""Of ShareGPT's files, which have grown several names for each."""


@dataclass(frozen=True, slots=True)
class Found:
    """A conversation in a record, and what the record says of it."""

    recording: Recording
    score: float | None = None
    """None where the record has none."""
    env: str = ""
    task_id: str = ""
    """Both empty where it is of no task."""
    agent: str = ""


def kind_of(record: dict[str, Any]) -> str | None:
    """Which of these formats a record has; None for none of them."""
    return next((kind for kind, (keys, _) in FORMATS.items() if keys <= record.keys()), None)


def conversations(kind: str, record: dict[str, Any], told: Told) -> Iterator[Found]:
    """The conversations in a record of this format.

    Raises:
        ValueError: when it isn't of the format; the message says where.
    """
    _, read = FORMATS[kind]
    return read(record, told)


def _sharegpt(record: dict[str, Any], told: Told) -> Iterator[Found]:
    said = record["conversations"]
    if not isinstance(said, list) or not all(isinstance(message, dict) for message in said):
        raise ValueError("`conversations` is no list of messages")
    messages = [{"role": "system", "content": record["system"]}] if record.get("system") else []
    for at, message in enumerate(said, 1):
        speaker = message.get("from")
        if not isinstance(speaker, str) or speaker not in _SPEAKERS:
            raise ValueError(f"message {at} is `from` none of {', '.join(_SPEAKERS)}")
        weight = {"weight": message["weight"]} if "weight" in message else {}
        messages.append({"role": _SPEAKERS[speaker], "content": message.get("value"), **weight})
    yield Found(recording(messages, record.get("tools"), told=told, name="conversations"))


def _completion(record: dict[str, Any], told: Told) -> Iterator[Found]:
    prompt = _given(_messages(record["prompt"], "user", "prompt"))
    whole = [*prompt, *_messages(record["completion"], "assistant", "completion")]
    yield Found(recording(whole, record.get("tools"), told=told), _score(record, told, "reward", "score"))


def _preference(record: dict[str, Any], told: Told) -> Iterator[Found]:
    """The chosen one, then the rejected one; they scored 1 and 0 where the record doesn't say."""
    prompt = _messages(record.get("prompt") or [], "user", "prompt")
    sides = [_messages(record[side], "assistant", side) for side in ("chosen", "rejected")]
    shared = _alike(*sides)
    for side, messages, default in zip(("chosen", "rejected"), sides, (1.0, 0.0), strict=True):
        score = _score(record, told, f"score_{side}", f"{side}_score")
        whole = [*_given([*prompt, *messages[:shared]]), *messages[shared:]]
        yield Found(
            recording(whole, record.get("tools"), told=told),
            default if score is None else score,
            **{name: str(record.get(name) or "") for name in ("env", "task_id", "agent")},
        )


def _alpaca(record: dict[str, Any], told: Told) -> Iterator[Found]:
    asked = [text for name in ("instruction", "input") if (text := record.get(name))]
    if not all(isinstance(text, str) for text in asked):
        raise ValueError("`instruction` and `input` are text")
    system = [{"role": "system", "content": record["system"]}] if record.get("system") else []
    said = [{"role": "user", "content": "\n\n".join(asked)}, {"role": "assistant", "content": record["output"]}]
    yield Found(recording([*system, *said], told=told))


FORMATS: dict[str, tuple[frozenset[str], Callable[[dict[str, Any], Told], Iterator[Found]]]] = {
    "sharegpt": (frozenset({"conversations"}), _sharegpt),
    "preferences": (frozenset({"chosen", "rejected"}), _preference),
    "completions": (frozenset({"prompt", "completion"}), _completion),
    "alpaca": (frozenset({"instruction", "output"}), _alpaca),
}
"""The keys that records of each format have, and what reads them."""


def _messages(said: Any, role: str, name: str) -> list[Any]:
    """What is a list of messages, or a text that `role` says."""
    if isinstance(said, str):
        return [{"role": role, "content": said}]
    if not isinstance(said, list):
        raise ValueError(f"`{name}` is neither text nor a list of messages")
    return said


def _alike(one: Sequence[Any], other: Sequence[Any]) -> int:
    """How many messages two conversations begin with in common."""
    return next((n for n, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))


def _given(messages: Sequence[Any]) -> list[Any]:
    """The same messages, of which no reply is learned from."""
    return [m | {"weight": 0} if isinstance(m, dict) and m.get("role") == "assistant" else m for m in messages]


def _score(record: dict[str, Any], told: Told, *names: str) -> float | None:
    """The first of these figures that a record has; None where it is no score, which is told."""
    score = next((record[name] for name in names if record.get(name) is not None), None)
    if score is None or (type(score) in (int, float) and 0 <= score <= 1):
        return score
    told("a reward that isn't from 0 to 1 is no score and is left out")
    return None
