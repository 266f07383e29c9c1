"""What is left of one play-through, and its JSON line on disk (schema `agentgym.episode/2`)."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Literal, get_args

SCHEMA = "agentgym.episode/2"

_FIRST = "agentgym.episode/1"

Kind = Literal["act", "plan", "reflect", "summary", "talk"]
"""What a reply is for: an action; a plan; a look back; a summary in place of what leaves the context; nothing that the
world would answer, such as the "OK" with which recorded conversations begin."""

StopReason = Literal["terminated", "truncated", "length", "failed"]
"""The world ended it; the horizon or a time limit did; the token budget did; something broke."""


@dataclass(frozen=True, slots=True)
class Sample:
    """What a local model sampled for one reply, as token ids. Training uses these very ids."""

    prompt: tuple[int, ...]
    """The ids put before this sample since the last one; the whole context when `fresh`."""
    ids: tuple[int, ...]
    """The sampled ids, the end-of-turn token included when it was sampled."""
    logprobs: tuple[float, ...]
    """Log-probability of each sampled id under the distribution it was drawn from; as many as `ids`."""
    version: int = 0
    """Number of updates that the weights had seen."""
    fresh: bool = True
    """Whether a new segment starts here: the first turn, or a context that could not be extended by appending."""


@dataclass(frozen=True, slots=True)
class Reply:
    """What a policy says in its turn."""

    text: str
    finish: Literal["stop", "length"] = "stop"
    """`length` when the token budget cut it off: the episode ends there and the half reply is not played."""
    sample: Sample | None = None


def spoken(reply: str) -> str:
    """What `reply` says behind the thought that models which think first end with `</think>`; all of it without one."""
    return reply.rpartition("</think>")[2].strip()


@dataclass(frozen=True, slots=True)
class Turn:
    """One observation, one reply, and what came of it."""

    observation: str
    """What the world had shown last before the reply; the same again after a reply that is no action."""
    reply: Reply
    action: str | None
    """The action found in the reply; None when it was malformed, never played, or the reply is for something else."""
    valid: bool
    """Whether the world understood the action and could carry it out. True for replies that are no actions."""
    reward: float
    """Increment of the score. Negative where a new trial begins with nothing of what the last one had earned."""
    state_key: str
    """Hash of the simulator's state before the reply; with the kind behind it where that is no action, so that actions
    are compared with actions and plans with plans."""
    kind: Kind = "act"
    trial: int = 0
    """Number of the try within the episode, from 0, for agents that begin the task again. The reflection on a try that
    has ended belongs to the next."""
    loss: bool = True
    """Whether imitation learns from the reply; data from elsewhere have some that it shouldn't."""


@dataclass(frozen=True, slots=True)
class Episode:
    """One play-through of one task."""

    env: str
    task_id: str
    split: str
    category: str
    difficulty: int
    policy: str
    sample: int
    """Number of the attempt at this task, from 0."""
    instructions: str
    turns: tuple[Turn, ...]
    final_observation: str
    stop: StopReason
    score: float | None
    """In [0, 1]; None for a failed episode, which is never scored."""
    success: bool | None
    """None for a failed episode."""
    error: str | None = None
    """Why it failed."""
    seconds: dict[str, float] = field(default_factory=dict[str, float])
    """Wall-clock time spent in the `world` and waiting for the `policy`."""
    agent: str = ""
    """How the conversation was made and replies were read, as `Agent.parse` takes it; empty where nobody knows."""
    tools: tuple[dict[str, Any], ...] = ()
    """JSON schemas of the functions that the agent could call; none for agents that don't call any."""

    @property
    def failed(self) -> bool:
        """Whether something broke that was not the agent's doing."""
        return self.stop == "failed"

    @property
    def acts(self) -> int:
        """How many turns were actions, which is what horizons and reports count."""
        return sum(turn.kind == "act" for turn in self.turns)

    def to_json(self) -> str:
        """One line of JSON."""
        record = {"schema": SCHEMA, **_record(self)}
        return json.dumps(record, ensure_ascii=False, separators=(",", ":"), default=_record)

    @classmethod
    def from_json(cls, line: str) -> Episode:
        """The episode in one line of JSON.

        Raises:
            ValueError: when the line is not JSON, of another schema version, or has missing or unknown keys.
        """
        record: Any = json.loads(line)
        found = record.pop("schema", None) if isinstance(record, dict) else None
        if found == _FIRST:
            record = _upgraded(record)
        elif found != SCHEMA:
            raise ValueError(f"This is not a line of schema {SCHEMA}, but of {found!r}; convert the file first.")
        _check_keys(cls, record)
        if record["stop"] not in get_args(StopReason):
            raise ValueError(f"{record['stop']!r} is not a stop reason; there are {', '.join(get_args(StopReason))}.")
        record["turns"] = tuple(_turn(turn) for turn in record["turns"])
        record["tools"] = tuple(record["tools"])
        return cls(**record)


def _record(noun: Any) -> dict[str, Any]:
    """A dataclass by its fields, as they are: `asdict` copies every id and log-probability, which takes longer."""
    return {f.name: getattr(noun, f.name) for f in fields(noun)}


def _upgraded(record: dict[str, Any]) -> dict[str, Any]:
    """A line of the first schema, which knew nothing but actions."""
    turns = [{"kind": "act", "trial": 0, "loss": True} | turn for turn in record["turns"]]
    return record | {"agent": "", "tools": [], "turns": turns}


def _turn(record: dict[str, Any]) -> Turn:
    _check_keys(Turn, record)
    reply = record["reply"]
    _check_keys(Reply, reply)
    sample = reply["sample"]
    if sample is not None:
        _check_keys(Sample, sample)
        sample |= {name: tuple(sample[name]) for name in ("prompt", "ids", "logprobs")}
        reply["sample"] = Sample(**sample)
    record["reply"] = Reply(**reply)
    return Turn(**record)


def _check_keys(noun: type[Any], record: dict[str, Any]) -> None:
    expected, found = {f.name for f in fields(noun)}, set(record)
    if expected != found:
        raise ValueError(
            f"A {noun.__name__} of {SCHEMA} lacks {sorted(expected - found)} or has unknown {sorted(found - expected)}."
        )


def read_episodes(path: Path | str) -> Iterator[Episode]:
    """The episodes of a JSONL file, in order. Half a line at the end, left by a killed process, is passed over.

    Raises:
        FileNotFoundError: when there is no such file.
        ValueError: when any other line is damaged; the message has its number.
    """
    with Path(path).open("rb") as lines:
        for number, line in enumerate(lines, 1):
            try:
                yield Episode.from_json(line.decode("utf-8-sig"))
            except (ValueError, TypeError, KeyError) as error:
                if isinstance(error, (json.JSONDecodeError, UnicodeDecodeError)) and not line.endswith(b"\n"):
                    return
                raise ValueError(f"{path}, line {number}: {error}") from error
