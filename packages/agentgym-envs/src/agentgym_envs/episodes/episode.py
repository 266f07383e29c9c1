"""Recorded episodes, and their JSON lines on disk (schema `agentgym.episode/2`)."""

from __future__ import annotations

import json
import reprlib
import sys
from collections.abc import Callable, Iterator, Set
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Literal, get_args

from agentgym_envs.core.feedback import writable
from agentgym_envs.util.json_text import parse

SCHEMA = "agentgym.episode/2"

_FIRST = "agentgym.episode/1"

Kind = Literal["act", "plan", "reflect", "summary", "talk"]
"""Kind of a reply: an action; a plan; a reflection; a summary that replaces earlier turns in the context; or a message
that gets no response from the environment, such as the "OK" at the start of recorded conversations."""

StopReason = Literal["terminated", "truncated", "length", "failed"]
"""Why an episode ended: the environment terminated it; horizon or time limit; token budget; an error."""


@dataclass(frozen=True, slots=True)
class Sample:
    """The token ids that a local model sampled for one reply. Training uses exactly these ids."""

    prompt: tuple[int, ...]
    """The prompt ids added since the previous sample; the whole context if `fresh`."""
    ids: tuple[int, ...]
    """The sampled ids, including the end-of-turn token if it was sampled."""
    logprobs: tuple[float, ...]
    """Log-probability of each sampled id under the sampling distribution; same length as `ids`."""
    version: int = 0
    """Weight version (number of updates) that sampled the first id."""
    fresh: bool = True
    """Whether a new segment starts here: in the first turn, or if the context doesn't extend the previous one."""
    versions: tuple[int, ...] = ()
    """Weight version of each sampled id if the weights changed within the reply; empty otherwise."""

    @property
    def token_versions(self) -> tuple[int, ...]:
        """Weight version (number of updates) of each sampled id."""
        return self.versions or (self.version,) * len(self.ids)

    def to_dict(self) -> dict[str, Any]:
        """Convert to JSON values; `versions` is left out if empty."""
        return {name: value for name, value in _record(self).items() if name != "versions" or value}


@dataclass(frozen=True, slots=True)
class TokenUsage:
    """Token counts of one reply, as reported by the endpoint."""

    prompt_tokens: int
    completion_tokens: int
    """Includes reasoning tokens if the endpoint charges for them."""
    cached_tokens: int | None = None
    """Number of prompt tokens served from the endpoint's cache; None if it doesn't report them."""


@dataclass(frozen=True, slots=True)
class Reply:
    """A policy's reply in one turn."""

    text: str
    finish: Literal["stop", "length"] = "stop"
    """`length` if the token budget cut it off: the episode ends, and the partial reply isn't executed."""
    sample: Sample | None = None
    usage: TokenUsage | None = None
    """Token counts of the request; None if unknown."""
    seconds: float | None = None
    """Latency of the request, from sending it to reading the response, without retries and rate limiting."""
    finish_reason: str | None = None
    """Why the model stopped, as reported by the endpoint: `stop`, `length`, `tool_calls`, `content_filter`."""
    reasoning: str | None = None
    """Reasoning that the endpoint returns separately from the answer. It isn't part of the conversation."""
    noise: bool = False
    """Whether a noisy expert (`oracle:NOISE`) took a random action here instead of its own."""
    expert: bool = False
    """Whether the environment's expert replied here, before the policy's first turn (`ExpertStart`)."""
    label: str | None = None
    """What an expert would have replied in this turn, in the agent's reply format; None if it wasn't asked or has no
    reply in this state."""
    label_error: str | None = None
    """Why the expert that was asked for a label couldn't reply."""

    def to_dict(self) -> dict[str, Any]:
        """Convert to JSON values; `noise` and `expert` are left out if false, and labels and fields that only endpoints
        provide if None.
        """
        record = {
            name: value
            for name, value in _record(self).items()
            if name not in _OPTIONAL or not (value is None or value is False)
        }
        if self.sample is not None:
            record["sample"] = self.sample.to_dict()
        if self.usage is not None:
            record["usage"] = _record(self.usage)
        return record

    @classmethod
    def from_dict(cls, record: Any) -> Reply:
        """Restore a reply from the output of `to_dict`.

        Raises:
            ValueError: if a key is missing or unknown, or a value has the wrong type for its key.
        """
        _check(Reply, record, _OPTIONAL)
        if record["finish"] not in ("stop", "length"):
            raise ValueError(f"`finish` in Reply must be stop or length, not {reprlib.repr(record['finish'])}.")
        sample, usage = record["sample"], record.get("usage")
        if sample is not None:
            sample = _sample(sample)
        if usage is not None:
            _check(TokenUsage, usage)
            usage = TokenUsage(**usage)
        marks = {name: record.get(name) or False for name in _MARKS}
        return cls(**record | {"sample": sample, "usage": usage} | marks)


@dataclass(frozen=True, slots=True)
class Turn:
    """One observation, one reply, and its outcome."""

    observation: str
    """The last observation before the reply; unchanged after a reply that isn't an action."""
    reply: Reply
    action: str | None
    """The action parsed from the reply; None if it was malformed, was not executed, or the reply is of another kind."""
    valid: bool
    """Whether the environment could parse and execute the action. True for replies that aren't actions."""
    reward: float
    """Increment of the score. Negative at the start of a new trial, which resets the score of the previous one."""
    state_key: str
    """Hash of the simulator's state before the reply, followed by the kind if it isn't an action, so that actions are
    compared with actions and plans with plans."""
    kind: Kind = "act"
    trial: int = 0
    """Index of the trial within the episode, from 0, for agents that retry the task. The reflection on a finished trial
    belongs to the next one."""
    loss: bool = True
    """Whether training learns from the reply; False for an expert's turns before the policy's (`Reply.expert`), and for
    some replies in imported data."""
    picture: str | None = None
    """Digest of the observation's screenshot, the name of its file in the run's folder `pictures`; None for agents that
    get no pictures."""

    def to_dict(self) -> dict[str, Any]:
        """Convert to JSON values; `picture` is left out if None."""
        return {name: value for name, value in _record(self).items() if name != "picture" or value is not None}


@dataclass(frozen=True, slots=True)
class Episode:
    """One recorded episode of one task."""

    env: str
    task_id: str
    split: str
    category: str
    difficulty: int
    policy: str
    sample: int
    """Index of the attempt at this task, from 0."""
    instructions: str
    turns: tuple[Turn, ...]
    final_observation: str
    stop: StopReason
    score: float | None
    """In [0, 1]; None for a failed episode."""
    success: bool | None
    """None for a failed episode."""
    error: str | None = None
    """Error message of a failed episode."""
    seconds: dict[str, float] = field(default_factory=dict[str, float])
    """Wall-clock seconds spent in the environment (`world`) and waiting for the `policy`."""
    agent: str = ""
    """Reply format and scaffold, as `Agent.parse` takes them; empty if unknown."""
    tools: tuple[dict[str, Any], ...] = ()
    """JSON schemas of the functions that the agent could call; empty for agents without function calls."""
    cluster: str = ""
    """Cluster of similar tasks that the task belongs to; empty if it has none."""
    final_picture: str | None = None
    """Digest of the screenshot of the final observation; see `Turn.picture`."""

    @property
    def failed(self) -> bool:
        """Whether the episode ended with an error that the agent didn't cause."""
        return self.stop == "failed"

    @property
    def acts(self) -> int:
        """Number of the policy's actions, which horizons and reports count."""
        return sum(turn.kind == "act" and not turn.reply.expert for turn in self.turns)

    def to_json(self) -> str:
        """Convert to one line of JSON. Lone surrogates, which UTF-8 can't encode, become question marks.

        Raises:
            ValueError: if it holds a number that isn't finite, which `from_json` would reject.
        """
        record = {"schema": SCHEMA, **_record(self)}
        if self.final_picture is None:
            del record["final_picture"]
        try:
            line = json.dumps(record, ensure_ascii=False, separators=(",", ":"), default=_encoded, allow_nan=False)
        except ValueError as error:
            raise ValueError(
                f"The episode of {self.task_id} in {self.env} can't be written: a reward, score or log-probability "
                f"isn't a finite number ({error})."
            ) from error
        return writable(line)

    @classmethod
    def from_json(cls, line: str) -> Episode:
        """Parse an episode from one line of JSON.

        Raises:
            ValueError: if the line isn't JSON, has another schema version, has missing or unknown keys, or a value has
                the wrong type for its key or is out of range; the message names the key.
        """
        record: Any = parse(line)
        found = record.pop("schema", None) if isinstance(record, dict) else None
        if found == _FIRST:
            record = _upgraded(record)
        elif found != SCHEMA:
            raise ValueError(f"This is not a line of schema {SCHEMA}, but of {found!r}; convert the file first.")
        _check(cls, record, frozenset({"cluster", "final_picture"}))
        if record["stop"] not in _STOPS:
            raise ValueError(f"{record['stop']!r} is not a stop reason; there are {', '.join(_STOPS)}.")
        if record["stop"] != "failed" and (record["score"] is None or record["success"] is None):
            raise ValueError("`score` and `success` can be null only in a failed episode.")
        if record["score"] is not None and not 0 <= record["score"] <= 1:
            raise ValueError(f"`score` is {record['score']}, and not in [0, 1]; rescale the scores.")
        _check_each("seconds", record["seconds"].values(), _NUMBER)
        _check_each("tools", record["tools"], _OBJECT)
        record["turns"] = tuple(_turn(turn) for turn in record["turns"])
        record["tools"] = tuple(record["tools"])
        return cls(**record)


def _record(instance: Any) -> dict[str, Any]:
    """Return the fields of a dataclass without copying: `asdict` is slow, as it copies every id and log-probability."""
    return {f.name: getattr(instance, f.name) for f in fields(instance)}


def _encoded(instance: Any) -> dict[str, Any]:
    return instance.to_dict() if isinstance(instance, Reply | Turn) else _record(instance)


_Types = tuple[frozenset[type], str]
"""Accepted types of a value, and their description for error messages."""

_TEXT: _Types = frozenset({str}), "text"
_TEXT_OR_NULL: _Types = frozenset({str, type(None)}), "text or null"
_BOOL: _Types = frozenset({bool}), "true or false"
_WHOLE: _Types = frozenset({int}), "a whole number"
_NUMBER: _Types = frozenset({int, float}), "a number"
_LIST: _Types = frozenset({list}), "a list"
_OBJECT: _Types = frozenset({dict}), "a JSON object"

_WHOLE_OR_NULL: _Types = frozenset({int, type(None)}), "a whole number or null"
_OBJECT_OR_NULL: _Types = frozenset({dict, type(None)}), "a JSON object or null"

_STOPS = get_args(StopReason)
_KINDS = get_args(Kind)
_MARKS = ("noise", "expert")
_OPTIONAL = frozenset({"usage", "seconds", "finish_reason", "reasoning", "label", "label_error", *_MARKS})
"""Keys of a reply that may be missing: those that only endpoints provide, labels, and marks that are false."""
_FIELDS: dict[type, dict[str, _Types]] = {
    Sample: {
        **dict.fromkeys(("prompt", "ids", "logprobs"), _LIST),
        "version": _WHOLE,
        "fresh": _BOOL,
        "versions": (frozenset({list, type(None)}), "a list or null"),
    },
    TokenUsage: {"prompt_tokens": _WHOLE, "completion_tokens": _WHOLE, "cached_tokens": _WHOLE_OR_NULL},
    Reply: {
        **dict.fromkeys(("text", "finish"), _TEXT),
        **dict.fromkeys(("sample", "usage"), _OBJECT_OR_NULL),
        **dict.fromkeys(("finish_reason", "reasoning", "label", "label_error"), _TEXT_OR_NULL),
        "seconds": (frozenset({int, float, type(None)}), "a number or null"),
        **dict.fromkeys(_MARKS, (frozenset({bool, type(None)}), "true, false or null")),
    },
    Turn: {
        **dict.fromkeys(("observation", "state_key", "kind"), _TEXT),
        **dict.fromkeys(("valid", "loss"), _BOOL),
        "reply": _OBJECT,
        **dict.fromkeys(("action", "picture"), _TEXT_OR_NULL),
        "reward": _NUMBER,
        "trial": _WHOLE,
    },
    Episode: {
        **dict.fromkeys(("env", "task_id", "split", "category", "cluster", "policy", "instructions", "agent"), _TEXT),
        **dict.fromkeys(("final_observation", "stop"), _TEXT),
        **dict.fromkeys(("difficulty", "sample"), _WHOLE),
        **dict.fromkeys(("turns", "tools"), _LIST),
        "score": (frozenset({int, float, type(None)}), "a number or null"),
        "success": (frozenset({bool, type(None)}), "true, false or null"),
        **dict.fromkeys(("error", "final_picture"), _TEXT_OR_NULL),
        "seconds": _OBJECT,
    },
}


def _upgraded(record: dict[str, Any]) -> dict[str, Any]:
    """Convert a record of the first schema, which had only actions."""
    record = {"agent": "", "tools": []} | record
    if isinstance(record.get("turns"), list):
        _check_each("turns", record["turns"], _OBJECT)
        record["turns"] = [{"kind": "act", "trial": 0, "loss": True} | turn for turn in record["turns"]]
    return record


def _turn(record: dict[str, Any]) -> Turn:
    _check(Turn, record, frozenset({"picture"}))
    if record["kind"] not in _KINDS:
        raise ValueError(f"{record['kind']!r} is not a kind of turn; there are {', '.join(_KINDS)}.")
    record["reply"] = Reply.from_dict(record["reply"])
    return Turn(**record)


def _sample(record: Any) -> Sample:
    _check(Sample, record, frozenset({"versions"}))
    for name, types in (("prompt", _WHOLE), ("ids", _WHOLE), ("logprobs", _NUMBER), ("versions", _WHOLE)):
        _check_each(name, record.get(name) or (), types)
        record[name] = tuple(record.get(name) or ())
    sample = Sample(**record)
    if sample.versions and len(sample.versions) != len(sample.ids):
        raise ValueError(f"`versions` in Sample has {len(sample.versions)} numbers for {len(sample.ids)} `ids`.")
    return sample


def _check(cls: type[Any], record: Any, optional: Set[str] = frozenset()) -> None:
    """Raise ValueError unless a record has the keys of `cls` with values of the right types."""
    if not isinstance(record, dict):
        raise ValueError(f"A {cls.__name__} is a JSON object, not {reprlib.repr(record)}.")
    expected = _FIELDS[cls]
    if record.keys() | optional != expected.keys() | optional:
        lacks, unknown = sorted(expected.keys() - record.keys() - optional), sorted(record.keys() - expected.keys())
        raise ValueError(f"A {cls.__name__} of {SCHEMA} lacks {lacks} or has unknown {unknown}.")
    for name, value in record.items():
        types, description = expected[name]
        if type(value) not in types or (isinstance(value, float | int) and not _is_finite(value)):
            raise ValueError(f"`{name}` in {cls.__name__} is {description}, not {reprlib.repr(value)}.")


def _check_each(name: str, values: Any, types: _Types) -> None:
    if not set(map(type, values)) <= types[0] or (types is _NUMBER and not all(map(_is_finite, values))):
        raise ValueError(f"Each of `{name}` is {types[1]}; one is not.")


def _is_finite(number: float) -> bool:
    """Return whether a number is finite as a float, which an int of hundreds of digits isn't."""
    return abs(number) <= sys.float_info.max


def read_episodes(path: Path | str, *, half: Callable[[str], object] | None = None) -> Iterator[Episode]:
    """Yield the episodes of a JSONL file, in order. An incomplete last line, left by a killed process, is skipped.

    Args:
        path: The file.
        half: Called with a message that has file and line number if the last line is skipped.

    Raises:
        FileNotFoundError: if there is no such file.
        ValueError: if any other line is damaged; the message has its number.
    """
    with Path(path).open("rb") as lines:
        for number, line in enumerate(lines, 1):
            try:
                yield Episode.from_json(line.decode("utf-8-sig"))
            except ValueError as error:
                if isinstance(error, (json.JSONDecodeError, UnicodeDecodeError)) and not line.endswith(b"\n"):
                    if half is not None:
                        half(f"{path}, line {number}: half a line")
                    return
                raise ValueError(f"{path}, line {number}: {error}") from error
