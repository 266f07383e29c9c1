"""Pairs of episodes by score: who is compared with whom, from where on, and how TRL gets to see it."""

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


def played(said: Sequence[str], score: float | None, *, seen: Sequence[str] = (), **more: Any) -> Episode:
    """An episode in which the world says what was said before, or what is given for the first turns."""
    shown = [*seen, *("first", *(f"after {text}" for text in said))[len(seen) :]]
    turns = tuple(
        Turn(before, Reply(text), text, valid=True, reward=0.0, state_key="")
        for before, text in zip(shown, said, strict=False)
    )
    known: dict[str, Any] = {
        "env": "lamp/Lamp-v0", "task_id": "lamp/1", "split": "train", "category": "", "difficulty": 1,
        "policy": "test", "sample": 0, "instructions": "Light it.", "final_observation": shown[-1],
        "stop": "failed" if score is None else "terminated", "success": None if score is None else score == 1,
        "agent": "bare",
    }  # fmt: skip
    return Episode(turns=turns, score=score, **(known | more))


def pairs(episodes: Sequence[Episode], min_gap: float = 0.1, most: int = 100, seed: int = 0) -> list[Pair]:
    return make_pairs(episodes, Pairing(min_gap, most, seed))


def words(episode: Episode) -> str:
    return "".join(turn.reply.text for turn in episode.turns)


@pytest.mark.parametrize(
    ("one", "other", "shared"),
    [
        (played("ab", 1.0), played("cb", 0.0), 0),
        (played("abc", 1.0), played("abd", 0.0), 2),
        (played("ab", 1.0), played("abc", 0.0), None),
        (played("ab", 1.0), played("ab", 0.0), None),
        (played("ab", 1.0, seen=["x"]), played("cb", 0.0, seen=["y"]), None),
        (played("abc", 1.0, seen=["x", "y"]), played("abd", 0.0, seen=["x", "z"]), None),
        (played("abc", 1.0, seen=["x", "y"]), played("cbd", 0.0, seen=["x", "z"]), 0),
    ],
)
def test_two_episodes_part_where_the_agent_says_something_else_to_the_same(
    one: Episode, other: Episode, shared: int | None
) -> None:
    assert divergence(one, other) == divergence(other, one) == shared
    assert [pair.shared for pair in pairs([one, other])] == ([] if shared is None else [shared])


def test_what_is_compared_begins_where_they_part() -> None:
    (pair,) = pairs([played("abd", 0.25), played("abc", 0.75)])
    chosen, rejected = pair.compared()
    assert (words(chosen), words(rejected), pair.gap) == ("abc", "abd", 0.5)
    assert [turn.loss for turn in chosen.turns] == [turn.loss for turn in rejected.turns] == [False, False, True]


def test_what_was_not_to_be_imitated_is_not_compared_either() -> None:
    one, other = played("abc", 1.0), played("add", 0.0)
    before, mute, after = one.turns
    (pair,) = pairs([replace(one, turns=(before, replace(mute, loss=False), after)), other])
    assert [turn.loss for turn in pair.compared()[0].turns] == [False, False, True]


@pytest.mark.parametrize(
    ("other", "made"),
    [
        ({}, 1),
        ({"task_id": "lamp/2"}, 0),
        ({"env": "lamp/Other-v0"}, 0),
        ({"agent": "react"}, 0),
        ({"instructions": ""}, 0),
        ({"policy": "another", "sample": 7}, 1),
    ],
)
def test_only_episodes_of_one_task_and_one_agent_are_compared(other: dict[str, Any], made: int) -> None:
    assert len(pairs([played("a", 1.0), played("b", 0.0, **other)])) == made


def test_failed_episodes_and_those_without_a_turn_are_in_no_pair() -> None:
    assert pairs([played("a", 1.0), played("b", None), played("", 0.0)]) == []


def test_a_gap_that_rounding_made_smaller_is_still_one() -> None:
    assert len(pairs([played("a", 0.1 + 0.2), played("b", 0.0)], min_gap=0.3)) == 1
    assert len(pairs([played("a", 0.8), played("b", 0.5)], min_gap=0.3)) == 1
    assert pairs([played("a", 0.8), played("b", 0.51)], min_gap=0.3) == []


def test_who_says_the_same_twice_is_compared_once() -> None:
    assert len(pairs([played("a", 1.0), played("a", 1.0), played("b", 0.0), played("b", 0.0)])) == 1


def test_no_episode_is_compared_again_while_others_wait() -> None:
    episodes = [played(text, 1.0) for text in "abcd"] + [played(text, 0.0) for text in "efgh"]
    for seed in range(5):
        uses = Counter(words(e) for pair in pairs(episodes, most=4, seed=seed) for e in (pair.chosen, pair.rejected))
        assert set(uses.values()) == {1}
        assert len(uses) == 8


def test_larger_gaps_come_first_and_the_seed_decides_between_equal_ones() -> None:
    graded = [played("a", 1.0), played("b", 0.6), played("c", 0.0)]
    assert [(words(p.chosen), words(p.rejected)) for p in pairs(graded, most=1)] == [("a", "c")]
    even = [played(text, float(text < "e")) for text in "abcdefgh"]
    drawn = {
        tuple(words(e) for p in pairs(even, most=1, seed=seed) for e in (p.chosen, p.rejected)) for seed in range(9)
    }
    assert len(drawn) > 3


def test_rejected_episodes_that_the_horizon_cut_are_as_long_as_the_chosen_or_left_out() -> None:
    won, lost, cut = played("abc", 1.0), played("axyzv", 0.0), played("adefg", 0.0, stop="truncated")

    def rejected(how: Any) -> dict[str, tuple[str, str]]:
        made = make_pairs([won, lost, cut], Pairing(most=100, truncated=how))
        said = {
            words(pair.rejected): "".join(m["content"] for m in to_trl(pair)["rejected"] if m["role"] == "assistant")
            for pair in made
        }
        assert all(pair.shared == 1 and pair.chosen == won for pair in made)
        return said

    assert rejected("keep") == {"axyzv": "xyzv", "adefg": "defg"}
    assert rejected("shorten") == {"axyzv": "xyzv", "ade": "de"}
    assert rejected("drop") == {"axyzv": "xyzv"}
    # All of them are the same episode when pairs are dealt.
    winners = [won, played("ah", 1.0)]
    few = make_pairs([*winners, cut, lost], Pairing(most=2, truncated="shorten"))
    assert {words(pair.rejected)[:2] for pair in few} == {"ad", "ax"}


def test_of_a_single_turn_trl_sees_the_reply_alone() -> None:
    (pair,) = make_pairs([played("abcd", 1.0), played("axyz", 0.0)], Pairing(turns=1))
    record = to_trl(pair)
    assert [m["content"] for m in record["prompt"] if m["role"] == "assistant"] == ["a"]
    assert record["chosen"] == [{"role": "assistant", "content": "b"}]
    assert record["rejected"] == [{"role": "assistant", "content": "x"}]
    assert [turn.loss for turn in pair.compared()[0].turns] == [False, True]
    (longer,) = make_pairs([played("abcd", 1.0), played("axyz", 0.0)], Pairing(turns=2))
    assert (words(longer.chosen), words(longer.rejected)) == ("abc", "axy")


@pytest.mark.parametrize(("min_gap", "most"), [(0.0, 1), (-0.1, 1), (1.1, 1), (0.5, 0)])
def test_gaps_and_counts_that_make_no_sense_are_refused(min_gap: float, most: int) -> None:
    with pytest.raises(ValueError, match="pairs need min_gap above 0 and at most 1, most of at least 1"):
        Pairing(min_gap, most)


some_episodes = st.lists(
    st.builds(
        lambda said, tenths, task: played(said, tenths / 10, task_id=f"lamp/{task}"),
        st.text("ab", min_size=1, max_size=4),
        st.integers(0, 10),
        st.integers(0, 2),
    ),
    max_size=12,
    # Whoever says the same in a task earns the same.
    unique_by=lambda episode: (episode.task_id, words(episode)),
)


@given(episodes=some_episodes, tenths=st.integers(1, 10), most=st.integers(1, 5), seed=st.integers(0, 3))
def test_whatever_was_played_pairs_keep_what_they_promise(
    episodes: list[Episode], tenths: int, most: int, seed: int
) -> None:
    found = pairs(episodes, tenths / 10, most, seed)
    assert found == pairs(episodes, tenths / 10, most, seed)
    assert all(count <= most for count in Counter(pair.chosen.task_id for pair in found).values())
    assert len({(words(p.chosen), words(p.rejected), p.chosen.task_id) for p in found}) == len(found)
    for pair in found:
        assert pair.chosen.task_id == pair.rejected.task_id
        assert round(10 * pair.gap) >= tenths
        assert words(pair.chosen)[: pair.shared] == words(pair.rejected)[: pair.shared]
        assert words(pair.chosen)[pair.shared] != words(pair.rejected)[pair.shared]
    if not found:
        assert not any(
            a.task_id == b.task_id and round(10 * (a.score or 0)) - round(10 * (b.score or 0)) >= tenths
            for a in episodes
            for b in episodes
            if divergence(a, b) is not None
        )


def test_trl_sees_what_both_have_in_common_and_how_each_went_on() -> None:
    (pair,) = pairs([played("abc", 1.0), played("abd", 0.0), played("abd", None)])
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


def test_trl_sees_what_the_world_answered_and_no_conversation_that_begins_anew() -> None:
    acting = {"agent": "bare+retry:1"}
    (pair,) = pairs([played("ab", 1.0, **acting), played("cd", 0.0, **acting)])
    record = to_trl(pair)
    assert [message["content"] for message in record["chosen"]] == ["a", "after a", "b"]
    assert [message["role"] for message in record["rejected"]] == ["assistant", "user", "assistant"]
    # A second trial is another conversation: what was said there would not follow from the prompt.
    first, again = played("cd", 0.0, **acting), played("ef", 0.0, **acting)
    look = replace(
        first.turns[0], observation="it is dark", reply=Reply("I see."), kind="reflect", trial=1, action=None
    )
    retried = replace(first, turns=(*first.turns, look, *(replace(turn, trial=1) for turn in again.turns)))
    (pair,) = pairs([played("ab", 1.0, **acting), retried])
    assert [message["content"][:8] for message in to_trl(pair)["rejected"]] == [
        "c",
        "after c",
        "d",
        "it is da",
        "I see.",
    ]


def test_functions_that_the_agent_could_call_go_along() -> None:
    tools = ({"type": "function", "function": {"name": "light", "parameters": {}}},)
    calling = {"agent": "function-call", "tools": tools}
    (pair,) = pairs([played("a", 1.0, **calling), played("b", 0.0, **calling)])
    assert json.loads(to_trl(pair)["tools"]) == list(tools)


def test_convert_writes_pairs_for_trl(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source, out = tmp_path / "episodes.jsonl", tmp_path / "pairs.jsonl"
    episodes = [played("abc", 1.0), played("abd", 0.5), played("c", 0.0), played("d", None)]
    source.write_text("".join(f"{episode.to_json()}\n" for episode in episodes))
    arguments = [str(source), "--to", "pairs", "--out", str(out)]
    assert convert([*arguments, "--pairs.min-gap", "0.6"]) == 0
    assert [json.loads(line) for line in out.read_text().splitlines()] == [
        to_trl(pair) for pair in make_pairs(episodes, Pairing(0.6))
    ]
    assert convert([*arguments, "--pairs.min-gap", "0.6", "--overwrite", "--pairs.most", "9"]) == 0
    for wrong, sentence in (
        ([str(source), "--to", "trl", "--out", str(out), "--pairs.most", "9"], "flags apply only to --to pairs"),
        ([*arguments, "--pairs.min-gap", "0"], "min_gap above 0"),
    ):
        with pytest.raises(SystemExit) as end:
            convert([*wrong, "--overwrite"])
        assert end.value.code == 2
        assert sentence in capsys.readouterr().err


def test_pairs_load_as_a_dataset(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
    datasets.disable_progress_bars()
    tools = ({"type": "function", "function": {"name": "light", "parameters": {"x": 1}}},)
    calling = {"agent": "function-call", "tools": tools}
    found = pairs([played("a", 1.0), played("b", 0.0), played("c", 1.0, **calling), played("d", 0.0, **calling)])
    file = tmp_path / "pairs.jsonl"
    file.write_text("".join(f"{json.dumps(to_trl(pair))}\n" for pair in found))
    loaded = datasets.load_dataset("json", data_files=str(file), split="train", cache_dir=str(tmp_path / "cache"))
    for name in ("prompt", "chosen", "rejected"):
        assert list(loaded[name]) == [to_trl(pair)[name] for pair in found]
    assert [tools and json.loads(tools) for tools in loaded["tools"]] == [None, list(tools)]
