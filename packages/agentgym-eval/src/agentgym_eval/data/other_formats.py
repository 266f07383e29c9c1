"""Conversation formats other than TRL's `messages` and AgentGym's: ShareGPT, prompts with completions (TRL's, and the
rollouts of verifiers), preferences (TRL's, and those written by this package) and Alpaca.

Each record becomes one or more conversations of `chat_messages`, with the record's score and task.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from agentgym_eval.data.chat_messages import OnChange, recording
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
"""Roles by the speakers in ShareGPT files, which have several names for each."""


@dataclass(frozen=True, slots=True)
class Found:
    """A conversation of a record, with the record's score, task and agent."""

    recording: Recording
    score: float | None = None
    """None if the record has no score."""
    env: str = ""
    task_id: str = ""
    """`env` and `task_id` are empty if the record names no task."""
    agent: str = ""


def kind_of(record: dict[str, Any]) -> str | None:
    """Return the format of a record; None if it has none of these formats."""
    return next((kind for kind, (keys, _) in FORMATS.items() if keys <= record.keys()), None)


def conversations(kind: str, record: dict[str, Any], on_change: OnChange) -> Iterator[Found]:
    """Yield the conversations of a record of this format.

    Raises:
        ValueError: If the record isn't of the format; the message says where.
    """
    _, read = FORMATS[kind]
    return read(record, on_change)


def _sharegpt(record: dict[str, Any], on_change: OnChange) -> Iterator[Found]:
    entries = record["conversations"]
    if not isinstance(entries, list) or not all(isinstance(message, dict) for message in entries):
        raise ValueError("`conversations` is not a list of messages")
    messages = [{"role": "system", "content": record["system"]}] if record.get("system") else []
    for at, message in enumerate(entries, 1):
        speaker = message.get("from")
        if not isinstance(speaker, str) or speaker not in _SPEAKERS:
            raise ValueError(f"the `from` of message {at} is none of {', '.join(_SPEAKERS)}")
        weight = {"weight": message["weight"]} if "weight" in message else {}
        messages.append({"role": _SPEAKERS[speaker], "content": message.get("value"), **weight})
    yield Found(recording(messages, record.get("tools"), on_change=on_change, name="conversations"))


def _completion(record: dict[str, Any], on_change: OnChange) -> Iterator[Found]:
    prompt = _without_loss(_messages(record["prompt"], "user", "prompt"))
    whole = [*prompt, *_messages(record["completion"], "assistant", "completion")]
    yield Found(
        recording(whole, record.get("tools"), on_change=on_change), _score(record, on_change, "reward", "score")
    )


def _preference(record: dict[str, Any], on_change: OnChange) -> Iterator[Found]:
    """Yield the chosen conversation, then the rejected one; without scores in the record, they score 1 and 0.

    Of the agent only the reply format is kept: its habits, such as `window`, have shaped the messages already.
    """
    prompt = _messages(record.get("prompt") or [], "user", "prompt")
    sides = [_messages(record[side], "assistant", side) for side in ("chosen", "rejected")]
    shared = _shared_prefix(*sides)
    for side, messages, default in zip(("chosen", "rejected"), sides, (1.0, 0.0), strict=True):
        score = _score(record, on_change, f"score_{side}", f"{side}_score")
        whole = [*_without_loss([*prompt, *messages[:shared]]), *messages[shared:]]
        yield Found(
            recording(whole, record.get("tools"), on_change=on_change),
            default if score is None else score,
            env=str(record.get("env") or ""),
            task_id=str(record.get("task_id") or ""),
            agent=str(record.get("agent") or "").partition("+")[0],
        )


def _alpaca(record: dict[str, Any], on_change: OnChange) -> Iterator[Found]:
    asked = [text for name in ("instruction", "input") if (text := record.get(name))]
    if not all(isinstance(text, str) for text in asked):
        raise ValueError("`instruction` and `input` must be text")
    system = [{"role": "system", "content": record["system"]}] if record.get("system") else []
    entries = [{"role": "user", "content": "\n\n".join(asked)}, {"role": "assistant", "content": record["output"]}]
    yield Found(recording([*system, *entries], on_change=on_change))


FORMATS: dict[str, tuple[frozenset[str], Callable[[dict[str, Any], OnChange], Iterator[Found]]]] = {
    "sharegpt": (frozenset({"conversations"}), _sharegpt),
    "preferences": (frozenset({"chosen", "rejected"}), _preference),
    "completions": (frozenset({"prompt", "completion"}), _completion),
    "alpaca": (frozenset({"instruction", "output"}), _alpaca),
}
"""The required keys of each format's records, and its reader."""


def _messages(entries: Any, role: str, name: str) -> list[Any]:
    """Return a list of messages, or a single string as one message of `role`."""
    if isinstance(entries, str):
        return [{"role": role, "content": entries}]
    if not isinstance(entries, list):
        raise ValueError(f"`{name}` is neither text nor a list of messages")
    return entries


def _shared_prefix(one: Sequence[Any], other: Sequence[Any]) -> int:
    """Return the number of leading messages that two conversations share."""
    return next((n for n, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))


def _without_loss(messages: Sequence[Any]) -> list[Any]:
    """Return the messages with all replies excluded from the loss."""
    return [m | {"weight": 0} if isinstance(m, dict) and m.get("role") == "assistant" else m for m in messages]


def _score(record: dict[str, Any], on_change: OnChange, *names: str) -> float | None:
    """Return the first of these fields that a record has; None, with a report, if its value is not a valid score."""
    score = next((record[name] for name in names if record.get(name) is not None), None)
    if score is None or (type(score) in (int, float) and 0 <= score <= 1):
        return score
    on_change("a reward outside of 0 to 1 is not used as a score")
    return None
