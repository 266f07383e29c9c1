"""Tests of the validation of lines: decoding by msgspec accepts exactly the lines that `Episode.from_json` accepts."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from typing import Any

import msgspec
import pytest
from agentgym_envs import Episode, Reply, Sample, Turn
from agentgym_envs.episodes.episode import SCHEMA, TokenUsage
from agentgym_eval.viewer.index import lines
from agentgym_eval.viewer.index.lines import read_line
from viewer_runs import episode

_SAMPLED = Reply("gö", "length", Sample((1, 2), (3, 4), (-0.5, 0), 7, False, (7, 8)), label="stay")
_ENDPOINT = Reply("go", usage=TokenUsage(5, 6, None), seconds=1.5, finish_reason="stop", reasoning="why", noise=True)
_TURNS = (
    Turn("A \U0001f6aa room.", _SAMPLED, None, False, -1, "s", "plan", 1, False),
    Turn("", _ENDPOINT, "go", True, 0.25, "t"),
)
_EPISODE = replace(
    episode(),
    turns=(replace(_TURNS[0], picture="a"), *_TURNS[1:]),
    seconds={"world": 1, "policy": 0.5},
    tools=({"name": "f", "x": [None]},),
    cluster="c",
    final_picture="b",
)
_VALUES = (None, True, 0, -2.5, 10**20, "x", [], ["x"], [1.5], [None], {}, {"x": 1}, float("nan"), float("inf"))


def _variants(value: Any) -> Iterator[Any]:
    """Yield the value with one of its parts replaced, removed or added."""
    yield from _VALUES
    if isinstance(value, dict):
        yield value | {"unknown": None}
        for key, part in value.items():
            yield {name: each for name, each in value.items() if name != key}
            yield from (value | {key: variant} for variant in _variants(part))
    if isinstance(value, list):
        yield [*value, value[-1] if value else 1]
        for at, part in enumerate(value):
            yield from ([*value[:at], variant, *value[at + 1 :]] for variant in _variants(part))


def _with_from_json(line: bytes) -> Episode | None:
    with suppress(ValueError):
        return Episode.from_json(line.decode("utf-8-sig"))
    return None


def _record(episode: Episode | None) -> dict[str, Any] | None:
    """Return the fields of an episode of `Episode.from_json`, or of an object that msgspec decoded."""
    return None if episode is None else {"schema": SCHEMA} | msgspec.to_builtins(episode)


def test_every_change_of_a_line_is_judged_as_by_from_json(monkeypatch: pytest.MonkeyPatch) -> None:
    changed = [f"{json.dumps(each)}\n".encode() for each in _variants(json.loads(_EPISODE.to_json()))]
    found = [_record(read_line(line)) for line in changed]
    monkeypatch.setattr(lines, "_decode", lambda line: None)  # pyright: ignore[reportUnknownLambdaType, reportUnknownArgumentType]
    assert found == [_record(read_line(line)) for line in changed]
    assert 100 < sum(each is not None for each in found) < len(found) / 2


@pytest.mark.parametrize("value", [_EPISODE, episode(), episode(success=None), replace(_EPISODE, turns=())])
def test_msgspec_decodes_what_to_json_writes(value: Episode) -> None:
    decoded = lines._decode(value.to_json().encode())  # pyright: ignore[reportPrivateUsage]
    assert decoded is not None
    assert _record(decoded) == _record(value)
    assert (decoded.failed, decoded.acts) == (value.failed, value.acts)


_LINE = episode(reply="REPLY").to_json()


@pytest.mark.parametrize(
    "line",
    [
        b"\xef\xbb\xbf" + _LINE.encode(),
        f" \t{_LINE} \r\n".encode(),
        f"{_LINE}{_LINE}".encode(),
        f"{_LINE[:-1]},}}".encode(),
        _LINE[:-9].encode(),
        _LINE.replace("REPLY", "\\ud800").encode(),
        _LINE.replace("REPLY", "\\ud83d\\ude00\\u0000").encode(),
        _LINE.replace("REPLY", "a\tb").encode(),
        _LINE.replace("REPLY", "a\\xb").encode(),
        _LINE.encode().replace(b"REPLY", b"\xff"),
        _LINE.encode().replace(b"REPLY", b"\xed\xa0\x80"),
        _LINE.replace('"sample":0', '"sample":007').encode(),
        _LINE.replace('"sample":0', '"sample":-0').encode(),
        _LINE.replace('"sample":0', f'"sample":{"9" * 5000}').encode(),
        _LINE.replace('"sample":0', '"sample":{},"sample":0').encode(),
        _LINE.replace('"score":1.0', '"score":1e400').encode(),
        _LINE.replace('"score":1.0', '"score":0.1000000000000000055511151231257827021181583404541015625').encode(),
        _LINE.replace('"tools":[]', f'"tools":[{{"x":{"[" * 100_000}{"]" * 100_000}}}]').encode(),
        _LINE.replace('"tools":[]', '"tools":[{"x":NaN}]').encode(),
        _LINE.replace("agentgym.episode/2", "agentgym.episode/3").encode(),
        _LINE.replace('"schema"', '"\\u0073chema"').encode(),
    ],
    ids=range(21),
)
def test_unusual_texts_are_judged_as_by_from_json(line: bytes) -> None:
    expected = _with_from_json(line)
    assert repr(_record(read_line(line))) == repr(_record(expected))  # the text, as NaN isn't equal to itself
