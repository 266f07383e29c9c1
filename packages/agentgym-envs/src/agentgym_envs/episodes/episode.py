"""What is left of one play-through, and its JSON line on disk (schema `agentgym.episode/2`)."""

from __future__ import annotations

import json
import math
import reprlib
from collections.abc import Callable, Iterator, Set
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Literal, get_args

from agentgym_envs.util.json_text import parse

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
    """Number of updates that the weights had seen that the first id was sampled with."""
    fresh: bool = True
    """Whether a new segment starts here: the first turn, or a context that could not be extended by appending."""
    versions: tuple[int, ...] = ()
    """The same number for each sampled id, where the weights changed within the reply; empty otherwise."""

    @property
    def token_versions(self) -> tuple[int, ...]:
        """For each sampled id, the number of updates that the weights had seen that it was sampled with."""
        return self.versions or (self.version,) * len(self.ids)

    def to_dict(self) -> dict[str, Any]:
        """As JSON values; `versions` is left out where it is empty."""
        return {name: value for name, value in _record(self).items() if name != "versions" or value}


@dataclass(frozen=True, slots=True)
class TokenUsage:
    """Tokens of one reply, as the endpoint counted them."""

    prompt_tokens: int
    completion_tokens: int
    """Reasoning included where the endpoint charges for it."""
    cached_tokens: int | None = None
    """Those of the prompt tokens that came from the endpoint's cache; None where it doesn't report them."""


@dataclass(frozen=True, slots=True)
class Reply:
    """What a policy says in its turn."""

    text: str
    finish: Literal["stop", "length"] = "stop"
    """`length` when the token budget cut it off: the episode ends there and the half reply is not played."""
    sample: Sample | None = None
    usage: TokenUsage | None = None
    """Tokens of the request; None where they are unknown."""
    seconds: float | None = None
    """Latency of the request: from sending it to having read the answer, without retries and waiting for the rate."""
    finish_reason: str | None = None
    """Why the model stopped, in the endpoint's word: `stop`, `length`, `tool_calls`, `content_filter`."""
    reasoning: str | None = None
    """What the model reasoned apart from its answer. It is no part of the conversation."""

    def to_dict(self) -> dict[str, Any]:
        """As JSON values; what only endpoints know is left out where it is None."""
        record = {name: value for name, value in _record(self).items() if value is not None or name not in _OPTIONAL}
        if self.sample is not None:
            record["sample"] = self.sample.to_dict()
        if self.usage is not None:
            record["usage"] = _record(self.usage)
        return record

    @classmethod
    def from_dict(cls, record: Any) -> Reply:
        """The reply that `to_dict` made this of.

        Raises:
            ValueError: when a key is missing or unknown, or a value has another type than its key.
        """
        _check(Reply, record, _OPTIONAL)
        if record["finish"] not in ("stop", "length"):
            raise ValueError(f"`finish` in Reply is stop or length, not {reprlib.repr(record['finish'])}.")
        sample, usage = record["sample"], record.get("usage")
        if sample is not None:
            sample = _sample(sample)
        if usage is not None:
            _check(TokenUsage, usage)
            usage = TokenUsage(**usage)
        return cls(**record | {"sample": sample, "usage": usage})


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
    cluster: str = ""
    """The task's, of tasks that are alike; empty where it is like no other."""

    @property
    def failed(self) -> bool:
        """Whether something broke that was not the agent's doing."""
        return self.stop == "failed"

    @property
    def acts(self) -> int:
        """How many turns were actions, which is what horizons and reports count."""
        return sum(turn.kind == "act" for turn in self.turns)

    def to_json(self) -> str:
        """One line of JSON.

        Raises:
            ValueError: when a number in it isn't finite, which `from_json` would refuse.
        """
        record = {"schema": SCHEMA, **_record(self)}
        try:
            return json.dumps(record, ensure_ascii=False, separators=(",", ":"), default=_written, allow_nan=False)
        except ValueError as error:
            raise ValueError(
                f"The episode of {self.task_id} in {self.env} can't be written: a reward, score or log-probability in "
                f"it isn't a finite number ({error})."
            ) from error

    @classmethod
    def from_json(cls, line: str) -> Episode:
        """The episode in one line of JSON.

        Raises:
            ValueError: when the line is not JSON, of another schema version, has missing or unknown keys, or a value of
                another type than its key has; the message names the key.
        """
        record: Any = parse(line)
        found = record.pop("schema", None) if isinstance(record, dict) else None
        if found == _FIRST:
            record = _upgraded(record)
        elif found != SCHEMA:
            raise ValueError(f"This is not a line of schema {SCHEMA}, but of {found!r}; convert the file first.")
        _check(cls, record, frozenset({"cluster"}))
        if record["stop"] not in _STOPS:
            raise ValueError(f"{record['stop']!r} is not a stop reason; there are {', '.join(_STOPS)}.")
        if record["stop"] != "failed" and (record["score"] is None or record["success"] is None):
            raise ValueError("`score` and `success` are null, and the episode has not failed.")
        _check_each("seconds", record["seconds"].values(), _NUMBER)
        _check_each("tools", record["tools"], _OBJECT)
        record["turns"] = tuple(_turn(turn) for turn in record["turns"])
        record["tools"] = tuple(record["tools"])
        return cls(**record)


def _record(noun: Any) -> dict[str, Any]:
    """A dataclass by its fields, as they are: `asdict` copies every id and log-probability, which takes longer."""
    return {f.name: getattr(noun, f.name) for f in fields(noun)}


def _written(noun: Any) -> dict[str, Any]:
    return noun.to_dict() if isinstance(noun, Reply) else _record(noun)


_Types = tuple[frozenset[type], str]
"""Those that a value may be of, and how they are called."""

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
_OPTIONAL = frozenset({"usage", "seconds", "finish_reason", "reasoning"})
"""Keys of a reply that lines without an endpoint's figures don't have."""
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
        **dict.fromkeys(("finish_reason", "reasoning"), _TEXT_OR_NULL),
        "seconds": (frozenset({int, float, type(None)}), "a number or null"),
    },
    Turn: {
        **dict.fromkeys(("observation", "state_key", "kind"), _TEXT),
        **dict.fromkeys(("valid", "loss"), _BOOL),
        "reply": _OBJECT,
        "action": _TEXT_OR_NULL,
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
        "error": _TEXT_OR_NULL,
        "seconds": _OBJECT,
    },
}


def _upgraded(record: dict[str, Any]) -> dict[str, Any]:
    """A line of the first schema, which knew nothing but actions."""
    record = {"agent": "", "tools": []} | record
    if isinstance(record.get("turns"), list):
        _check_each("turns", record["turns"], _OBJECT)
        record["turns"] = [{"kind": "act", "trial": 0, "loss": True} | turn for turn in record["turns"]]
    return record


def _turn(record: dict[str, Any]) -> Turn:
    _check(Turn, record)
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


def _check(noun: type[Any], record: Any, optional: Set[str] = frozenset()) -> None:
    """Raise ValueError unless a record has the keys of `noun`, and under each a value of its type."""
    if not isinstance(record, dict):
        raise ValueError(f"A {noun.__name__} is a JSON object, not {reprlib.repr(record)}.")
    expected = _FIELDS[noun]
    if record.keys() | optional != expected.keys() | optional:
        lacks, unknown = sorted(expected.keys() - record.keys() - optional), sorted(record.keys() - expected.keys())
        raise ValueError(f"A {noun.__name__} of {SCHEMA} lacks {lacks} or has unknown {unknown}.")
    for name, value in record.items():
        types, called = expected[name]
        if type(value) not in types or (type(value) is float and not math.isfinite(value)):
            raise ValueError(f"`{name}` in {noun.__name__} is {called}, not {reprlib.repr(value)}.")


def _check_each(name: str, values: Any, types: _Types) -> None:
    if not set(map(type, values)) <= types[0] or (types is _NUMBER and not all(map(math.isfinite, values))):
        raise ValueError(f"Each of `{name}` is {types[1]}; one is not.")


def read_episodes(path: Path | str, *, half: Callable[[str], object] | None = None) -> Iterator[Episode]:
    """The episodes of a JSONL file, in order. Half a line at the end, left by a killed process, is passed over.

    Args:
        path: The file.
        half: Is told of such half a line, with file and number.

    Raises:
        FileNotFoundError: when there is no such file.
        ValueError: when any other line is damaged; the message has its number.
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
