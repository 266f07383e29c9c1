"""Tests of preference pairs: which episodes are paired, where they diverge, and their TRL records."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import datasets
import pytest
from agentgym_envs import Episode, Reply, Turn
from agentgym_eval.cli.convert import convert
from agentgym_eval.data.pairing import Pairing
from agentgym_eval.data.pairs import Pair, divergence, make_pairs, to_trl
from hypothesis import given
from hypothesis import strategies as st

pytestmark = pytest.mark.quick


def make_episode(
    replies: Sequence[str], score: float | None, *, first_observations: Sequence[str] = (), **changes: Any
) -> Episode:
    """Return an episode with the given replies and first observations; later ones quote the previous reply."""
    observations = [*first_observations, *("first", *(f"after {text}" for text in replies))[len(first_observations) :]]
    turns = tuple(
        Turn(before, Reply(text), text, valid=True, reward=0.0, state_key="")
        for before, text in zip(observations, replies, strict=False)
    )
    fields: dict[str, Any] = {
        "env": "lamp/Lamp-v0", "task_id": "lamp/1", "split": "train", "category": "", "difficulty": 1,
        "policy": "test", "sample": 0, "instructions": "Light it.", "final_observation": observations[-1],
        "stop": "failed" if score is None else "terminated", "success": None if score is None else score == 1,
        "agent": "bare",
    }  # fmt: skip
    return Episode(turns=turns, score=score, **(fields | changes))


def pairs(episodes: Sequence[Episode], min_gap: float = 0.1, most: int = 100, seed: int = 0) -> list[Pair]:
    return make_pairs(episodes, Pairing(min_gap, most, seed))


def reply_text(episode: Episode) -> str:
    return "".join(turn.reply.text for turn in episode.turns)


@pytest.mark.parametrize(
    ("first", "second", "shared"),
    [
        (make_episode("ab", 1.0), make_episode("cb", 0.0), 0),
        (make_episode("abc", 1.0), make_episode("abd", 0.0), 2),
        (make_episode("ab", 1.0), make_episode("abc", 0.0), None),
        (make_episode("ab", 1.0), make_episode("ab", 0.0), None),
        (make_episode("ab", 1.0, first_observations=["x"]), make_episode("cb", 0.0, first_observations=["y"]), None),
        (
            make_episode("abc", 1.0, first_observations=["x", "y"]),
            make_episode("abd", 0.0, first_observations=["x", "z"]),
            None,
        ),
        (
            make_episode("abc", 1.0, first_observations=["x", "y"]),
            make_episode("cbd", 0.0, first_observations=["x", "z"]),
            0,
        ),
    ],
)
def test_divergence_is_the_first_different_reply_to_one_observation(
    first: Episode, second: Episode, shared: int | None
) -> None:
    assert divergence(first, second) == divergence(second, first) == shared
    assert [pair.shared for pair in pairs([first, second])] == ([] if shared is None else [shared])


def test_loss_starts_at_the_divergence() -> None:
    (pair,) = pairs([make_episode("abd", 0.25), make_episode("abc", 0.75)])
    chosen, rejected = pair.compared()
    assert (reply_text(chosen), reply_text(rejected), pair.gap) == ("abc", "abd", 0.5)
    assert [turn.loss for turn in chosen.turns] == [turn.loss for turn in rejected.turns] == [False, False, True]


def test_turns_without_loss_stay_without_loss_in_pairs() -> None:
    first, other = make_episode("abc", 1.0), make_episode("add", 0.0)
    before, masked, after = first.turns
    (pair,) = pairs([replace(first, turns=(before, replace(masked, loss=False), after)), other])
    assert [turn.loss for turn in pair.compared()[0].turns] == [False, False, True]


@pytest.mark.parametrize(
    ("other", "pair_count"),
    [
        ({}, 1),
        ({"task_id": "lamp/2"}, 0),
        ({"env": "lamp/Other-v0"}, 0),
        ({"agent": "react"}, 0),
        ({"instructions": ""}, 0),
        ({"policy": "another", "sample": 7}, 1),
    ],
)
def test_only_episodes_of_one_task_and_agent_are_paired(other: dict[str, Any], pair_count: int) -> None:
    assert len(pairs([make_episode("a", 1.0), make_episode("b", 0.0, **other)])) == pair_count


def test_most_is_the_number_of_pairs_of_a_task_over_all_agents_and_beginnings() -> None:
    changes: list[dict[str, Any]] = [{}, {"agent": "react"}, {"first_observations": ["other"]}, {"task_id": "lamp/2"}]
    episodes = [
        make_episode(replies, score, **each)
        for each in changes
        for replies, score in (("a", 1.0), ("b", 0.5), ("c", 0))
    ]
    for most, counts in ((2, (2, 2)), (4, (4, 3))):
        tasks = Counter(pair.chosen.task_id for pair in pairs(episodes, most=most))
        assert (tasks["lamp/1"], tasks["lamp/2"]) == counts


def test_failed_and_empty_episodes_are_not_paired() -> None:
    assert pairs([make_episode("a", 1.0), make_episode("b", None), make_episode("", 0.0)]) == []


def test_min_gap_tolerates_rounding_errors() -> None:
    assert len(pairs([make_episode("a", 0.1 + 0.2), make_episode("b", 0.0)], min_gap=0.3)) == 1
    assert len(pairs([make_episode("a", 0.8), make_episode("b", 0.5)], min_gap=0.3)) == 1
    assert pairs([make_episode("a", 0.8), make_episode("b", 0.51)], min_gap=0.3) == []


def test_identical_episodes_are_paired_once() -> None:
    assert (
        len(pairs([make_episode("a", 1.0), make_episode("a", 1.0), make_episode("b", 0.0), make_episode("b", 0.0)]))
        == 1
    )


def test_every_episode_is_paired_before_any_is_paired_again() -> None:
    episodes = [make_episode(text, 1.0) for text in "abcd"] + [make_episode(text, 0.0) for text in "efgh"]
    for seed in range(5):
        uses = Counter(
            reply_text(e) for pair in pairs(episodes, most=4, seed=seed) for e in (pair.chosen, pair.rejected)
        )
        assert set(uses.values()) == {1}
        assert len(uses) == 8


def test_larger_gaps_come_first_and_ties_are_broken_by_the_seed() -> None:
    graded = [make_episode("a", 1.0), make_episode("b", 0.6), make_episode("c", 0.0)]
    assert [(reply_text(p.chosen), reply_text(p.rejected)) for p in pairs(graded, most=1)] == [("a", "c")]
    equal_gaps = [make_episode(text, float(text < "e")) for text in "abcdefgh"]
    chosen_pairs = {
        tuple(reply_text(e) for p in pairs(equal_gaps, most=1, seed=seed) for e in (p.chosen, p.rejected))
        for seed in range(9)
    }
    assert len(chosen_pairs) > 3


def test_truncated_rejected_episodes_are_kept_shortened_or_dropped() -> None:
    successful, failed, truncated = (
        make_episode("abc", 1.0),
        make_episode("axyzv", 0.0),
        make_episode("adefg", 0.0, stop="truncated"),
    )

    def rejected(truncation: Any) -> dict[str, tuple[str, str]]:
        result = make_pairs([successful, failed, truncated], Pairing(most=100, truncated=truncation))
        replies = {
            reply_text(pair.rejected): "".join(
                m["content"] for m in to_trl(pair)["rejected"] if m["role"] == "assistant"
            )
            for pair in result
        }
        assert all(pair.shared == 1 and pair.chosen == successful for pair in result)
        return replies

    assert rejected("keep") == {"axyzv": "xyzv", "adefg": "defg"}
    assert rejected("shorten") == {"axyzv": "xyzv", "ade": "de"}
    assert rejected("drop") == {"axyzv": "xyzv"}
    # Shortened versions of an episode count as one when pairs are distributed.
    chosen_episodes = [successful, make_episode("ah", 1.0)]
    limited = make_pairs([*chosen_episodes, truncated, failed], Pairing(most=2, truncated="shorten"))
    assert {reply_text(pair.rejected)[:2] for pair in limited} == {"ad", "ax"}


def test_single_turn_pairs_contain_only_the_reply() -> None:
    (pair,) = make_pairs([make_episode("abcd", 1.0), make_episode("axyz", 0.0)], Pairing(turns=1))
    record = to_trl(pair)
    assert [m["content"] for m in record["prompt"] if m["role"] == "assistant"] == ["a"]
    assert record["chosen"] == [{"role": "assistant", "content": "b"}]
    assert record["rejected"] == [{"role": "assistant", "content": "x"}]
    assert [turn.loss for turn in pair.compared()[0].turns] == [False, True]
    (longer,) = make_pairs([make_episode("abcd", 1.0), make_episode("axyz", 0.0)], Pairing(turns=2))
    assert (reply_text(longer.chosen), reply_text(longer.rejected)) == ("abc", "axy")


@pytest.mark.parametrize(("min_gap", "most"), [(0.0, 1), (-0.1, 1), (1.1, 1), (0.5, 0)])
def test_invalid_gaps_and_counts_are_rejected(min_gap: float, most: int) -> None:
    with pytest.raises(ValueError, match="pairs need min_gap above 0 and at most 1, most of at least 1"):
        Pairing(min_gap, most)


EPISODES = st.lists(
    st.builds(
        lambda replies, tenths, task: make_episode(replies, tenths / 10, task_id=f"lamp/{task}"),
        st.text("ab", min_size=1, max_size=4),
        st.integers(0, 10),
        st.integers(0, 2),
    ),
    max_size=12,
    # Identical replies in a task have the same score.
    unique_by=lambda episode: (episode.task_id, reply_text(episode)),
)


@given(episodes=EPISODES, tenths=st.integers(1, 10), most=st.integers(1, 5), seed=st.integers(0, 3))
def test_pairs_satisfy_their_invariants_for_arbitrary_episodes(
    episodes: list[Episode], tenths: int, most: int, seed: int
) -> None:
    result = pairs(episodes, tenths / 10, most, seed)
    assert result == pairs(episodes, tenths / 10, most, seed)
    assert all(count <= most for count in Counter(pair.chosen.task_id for pair in result).values())
    assert len({(reply_text(p.chosen), reply_text(p.rejected), p.chosen.task_id) for p in result}) == len(result)
    for pair in result:
        assert pair.chosen.task_id == pair.rejected.task_id
        assert round(10 * pair.gap) >= tenths
        assert reply_text(pair.chosen)[: pair.shared] == reply_text(pair.rejected)[: pair.shared]
        assert reply_text(pair.chosen)[pair.shared] != reply_text(pair.rejected)[pair.shared]
    if not result:
        assert not any(
            a.task_id == b.task_id and round(10 * (a.score or 0)) - round(10 * (b.score or 0)) >= tenths
            for a in episodes
            for b in episodes
            if divergence(a, b) is not None
        )


def test_trl_record_has_the_common_prompt_and_both_continuations() -> None:
    (pair,) = pairs([make_episode("abc", 1.0), make_episode("abd", 0.0), make_episode("abd", None)])
    assert to_trl(pair) == {
        "prompt": [
            {"role": "system", "content": "Light it."},
            {"role": "user", "content": "first"},
            {"role": "assistant", "content": "a"},
            {"role": "user", "content": "after a"},
            {"role": "assistant", "content": "b"},
            {"role": "user", "content": "after b"},
        ],
        "chosen": [{"role": "assistant", "content": "c"}],
        "rejected": [{"role": "assistant", "content": "d"}],
        "env": "lamp/Lamp-v0",
        "task_id": "lamp/1",
        "agent": "bare",
        "score_chosen": 1.0,
        "score_rejected": 0.0,
    }


def test_trl_record_has_observations_and_no_restarted_conversation() -> None:
    agent = {"agent": "bare+retry:1"}
    (pair,) = pairs([make_episode("ab", 1.0, **agent), make_episode("cd", 0.0, **agent)])
    record = to_trl(pair)
    assert [message["content"] for message in record["chosen"]] == ["a", "after a", "b"]
    assert [message["role"] for message in record["rejected"]] == ["assistant", "user", "assistant"]
    # A second trial is another conversation, which doesn't follow from the prompt.
    first, again = make_episode("cd", 0.0, **agent), make_episode("ef", 0.0, **agent)
    reflection = replace(
        first.turns[0], observation="it is dark", reply=Reply("I see."), kind="reflect", trial=1, action=None
    )
    retried = replace(first, turns=(*first.turns, reflection, *(replace(turn, trial=1) for turn in again.turns)))
    (pair,) = pairs([make_episode("ab", 1.0, **agent), retried])
    assert [message["content"][:8] for message in to_trl(pair)["rejected"]] == [
        "c",
        "after c",
        "d",
        "it is da",
        "I see.",
    ]


def test_trl_record_contains_the_tools() -> None:
    tools = ({"type": "function", "function": {"name": "light", "parameters": {}}},)
    agent = {"agent": "function-call", "tools": tools}
    (pair,) = pairs([make_episode("a", 1.0, **agent), make_episode("b", 0.0, **agent)])
    assert json.loads(to_trl(pair)["tools"]) == list(tools)


def test_convert_writes_pairs_for_trl(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source, out = tmp_path / "episodes.jsonl", tmp_path / "pairs.jsonl"
    episodes = [make_episode("abc", 1.0), make_episode("abd", 0.5), make_episode("c", 0.0), make_episode("d", None)]
    source.write_text("".join(f"{episode.to_json()}\n" for episode in episodes))
    arguments = [str(source), "--to", "pairs", "--out", str(out)]
    assert convert([*arguments, "--pairs.min-gap", "0.6"]) == 0
    assert [json.loads(line) for line in out.read_text().splitlines()] == [
        to_trl(pair) for pair in make_pairs(episodes, Pairing(0.6))
    ]
    assert convert([*arguments, "--pairs.min-gap", "0.6", "--overwrite", "--pairs.most", "9"]) == 0
    for invalid_arguments, sentence in (
        ([str(source), "--to", "trl", "--out", str(out), "--pairs.most", "9"], "flags apply only to --to pairs"),
        ([*arguments, "--pairs.min-gap", "0"], "min_gap above 0"),
    ):
        with pytest.raises(SystemExit) as end:
            convert([*invalid_arguments, "--overwrite"])
        assert end.value.code == 2
        assert sentence in capsys.readouterr().err


def test_convert_says_what_pairs_need(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = tmp_path / "episodes.jsonl"
    source.write_text(make_episode("abc", 1.0).to_json() + "\n")
    arguments = [str(source), "--to", "pairs", "--out", str(tmp_path / "pairs.jsonl")]
    assert convert([*arguments, "--pairs.min-gap", "0.25"]) == 1
    said = capsys.readouterr().err
    assert "No task has two comparable episodes whose scores differ by at least 0.25 (--pairs.min-gap)." in said
    assert "collect --policy oracle:0.3 --samples 4" in said


def test_pairs_load_as_a_dataset(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
    datasets.disable_progress_bars()
    tools = ({"type": "function", "function": {"name": "light", "parameters": {"x": 1}}},)
    agent = {"agent": "function-call", "tools": tools}
    result = pairs(
        [
            make_episode("a", 1.0),
            make_episode("b", 0.0),
            make_episode("c", 1.0, **agent),
            make_episode("d", 0.0, **agent),
        ]
    )
    file = tmp_path / "pairs.jsonl"
    file.write_text("".join(f"{json.dumps(to_trl(pair))}\n" for pair in result))
    loaded = datasets.load_dataset("json", data_files=str(file), split="train", cache_dir=str(tmp_path / "cache"))
    for name in ("prompt", "chosen", "rejected"):
        assert list(loaded[name]) == [to_trl(pair)[name] for pair in result]
    assert [tools and json.loads(tools) for tools in loaded["tools"]] == [None, list(tools)]
