"""Tests of the rollout files of training steps, in the coin environment."""

from __future__ import annotations

import json
import math
from statistics import fmean, pstdev
from typing import Any

import pytest
import torch
from agentgym_envs import Episode, read_episodes
from agentgym_trainer.config import Evaluation, RLConfig, RolloutFiles, WorldConfig
from agentgym_trainer.engines.base import EngineGone
from agentgym_trainer.run.folder import RunFolder
from agentgym_trainer.run.rollout_log import SCHEMA
from agentgym_trainer.tokens.chat import Chat
from coin_loops import (
    Build,
    collect_rollouts,
    grpo_with_group_filter,
    initial_state,
    loop_config,
    random_guesses,
    take_step,
)
from coin_world import ENV
from hypothesis import given
from hypothesis import strategies as st


def _files(folder: RunFolder) -> dict[str, str]:
    return {path.name: path.read_text() for path in sorted(folder.rollouts.glob("*"))}


def _episodes(folder: RunFolder, step: int) -> list[Episode]:
    return list(read_episodes(folder.rollouts / f"step-{step:06d}.jsonl"))


def _tokens(folder: RunFolder, step: int) -> list[dict[str, Any]]:
    path = folder.rollouts / f"step-{step:06d}.tokens.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()]


def _completion_values(segment: dict[str, Any], name: str) -> list[float]:
    """Return the values of completion tokens; other tokens have None."""
    assert [value is None for value in segment[name]] == [not in_loss for in_loss in segment["loss_mask"]]
    return [value for value in segment[name] if value is not None]


def test_step_saves_episodes_and_the_tokens_of_some_groups(build: Build, chat: Chat) -> None:
    loop = build(loop_config())
    collected = collect_rollouts(loop, initial_state(loop))
    take_step(loop, initial_state(loop))
    episodes, lines = _episodes(loop.folder, 1), _tokens(loop.folder, 1)
    played = [e for group in collected.own for e in group.episodes]
    assert [(e.task_id, e.sample, e.turns) for e in episodes] == [(e.task_id, e.sample, e.turns) for e in played]
    assert [line["group"] for line in lines] == [
        group for group in dict.fromkeys(x["group"] for x in lines) for _ in "123"
    ]
    assert len(lines) == 2 * 3
    for line in lines:
        episode = episodes[line["episode"]]
        assert (line["schema"], line["task_id"], line["sample"]) == (SCHEMA, episode.task_id, episode.sample)
        (segment,) = line["segments"]
        assert {len(values) for values in segment.values()} == {len(segment["tokens"])}
        samples = [turn.reply.sample for turn in episode.turns if turn.reply.sample]
        ids = [i for sample in samples for i in (*sample.prompt, *sample.ids)]
        assert "".join(segment["tokens"]) == chat.tokenizer.decode(ids)
        assert _completion_values(segment, "logprobs") == [round(p, 4) for sample in samples for p in sample.logprobs]
        turns = [number for number, sample in enumerate(samples) for _ in sample.ids]
        assert [turn for turn in segment["turn"] if turn >= 0] == turns


def test_saved_advantages_are_those_of_the_update(build: Build) -> None:
    loop = build(loop_config(), random_guesses())
    take_step(loop, initial_state(loop))
    episodes, lines = _episodes(loop.folder, 1), _tokens(loop.folder, 1)
    assert all(line["trained"] for line in lines)
    for line in lines:
        episode = episodes[line["episode"]]
        returns = [e.score or 0.0 for e in episodes if e.task_id == episode.task_id]
        # GRPO as in arXiv 2402.03300: the return's distance from the group mean in standard deviations.
        expected = ((episode.score or 0.0) - fmean(returns)) / (pstdev(returns) * math.sqrt(3 / 2) + 1e-6)
        for segment in line["segments"]:
            assert _completion_values(segment, "advantages") == pytest.approx(
                [expected] * sum(segment["loss_mask"]), abs=1e-3
            )


def test_saved_entropies_are_those_of_the_sampling_policy(build: Build) -> None:
    loop = build(loop_config())
    expected: list[list[float]] = []
    policy = loop.learner.policy
    collected = collect_rollouts(loop, initial_state(loop))
    for episode in (e for group in collected.own for e in group.episodes):
        samples = [turn.reply.sample for turn in episode.turns if turn.reply.sample]
        ids = [i for sample in samples for i in (*sample.prompt, *sample.ids)]
        with torch.no_grad():
            logp = policy(torch.tensor([ids])).logits[0].log_softmax(-1)
        entropies = (-(logp.exp() * logp).sum(-1)).tolist()
        is_completion = [
            sampled for sample in samples for sampled in [False] * len(sample.prompt) + [True] * len(sample.ids)
        ]
        expected.append([entropies[i - 1] for i, sampled in enumerate(is_completion) if sampled])
    take_step(loop, initial_state(loop))
    for line in _tokens(loop.folder, 1):
        (segment,) = line["segments"]
        assert _completion_values(segment, "entropies") == pytest.approx(expected[line["episode"]], abs=1e-3)


def test_tokens_are_saved_for_flat_groups_but_not_for_failures(build: Build) -> None:
    world = WorldConfig(ENV, options=("fault_on_reset=(0, 1, 2, 3)",), agent="bare", instructions=False)
    config = loop_config(world=world, tasks_per_step=16, rollouts=RolloutFiles(tokens=16), max_failed=1.0)
    loop = build(config, lambda: "heads")
    take_step(loop, initial_state(loop))
    lines, episodes = _tokens(loop.folder, 1), _episodes(loop.folder, 1)
    assert len(episodes) == 16 * 3
    assert {line["episode"] for line in lines} == {index for index, e in enumerate(episodes) if not e.failed}
    assert 0 < len(lines) < len(episodes)
    # A constant policy gets equal returns, so all groups are flat and filtered.
    assert not any(line["trained"] for line in lines)
    assert {a for line in lines for segment in line["segments"] for a in segment["advantages"]} == {None}
    assert {type(h) for line in lines for segment in line["segments"] for h in segment["entropies"]} == {
        float,
        type(None),
    }


def test_tokens_of_trained_groups_are_saved_first(build: Build) -> None:
    loop = build(loop_config(tasks_per_step=8, rollouts=RolloutFiles(tokens=3)), random_guesses())
    collected = collect_rollouts(loop, initial_state(loop))
    loop = build(loop_config(tasks_per_step=8, rollouts=RolloutFiles(tokens=3)), random_guesses(), name="again")
    take_step(loop, initial_state(loop))
    trained = [group.number for group in collected.groups if group.treatment == "keep"]
    others = [group.number for group in collected.groups if group.treatment != "keep"]
    assert others
    assert list(dict.fromkeys(line["group"] for line in _tokens(loop.folder, 1))) == sorted((trained + others)[:3])


@pytest.mark.parametrize(
    ("settings", "names"),
    [
        (RolloutFiles(every=2, tokens=0), ["step-000002.jsonl", "step-000003.jsonl"]),
        (RolloutFiles(every=0), []),
    ],
)
def test_saved_files_depend_on_the_settings(build: Build, settings: RolloutFiles, names: list[str]) -> None:
    loop = build(loop_config(steps=3, rollouts=settings), random_guesses())
    loop.run(lambda: False)
    assert [*_files(loop.folder)] == names


def test_saving_rollouts_does_not_change_training(build: Build) -> None:
    weights: list[Any] = []
    for every in (0, 1):
        loop = build(
            loop_config(rollouts=RolloutFiles(every=every), algorithm=grpo_with_group_filter(zero_variance="keep")),
            name=f"every-{every}",
        )
        take_step(loop, take_step(loop, initial_state(loop)))
        weights.append([parameter.clone() for parameter in loop.learner.policy.parameters()])
        assert len(_files(loop.folder)) == 4 * every
    assert all(torch.equal(*pair) for pair in zip(*weights, strict=True))


def _config() -> RLConfig:
    return loop_config(steps=3, save_every=100, evaluation=Evaluation(tasks=2, samples=1, ks=(1,), every=1))


@pytest.mark.long
def test_resumed_run_removes_rollouts_that_it_repeats(build: Build) -> None:
    uninterrupted, loop = build(_config(), name="whole"), build(_config())
    uninterrupted.run(lambda: False)
    stop_requests = iter([False, True])
    loop.run(lambda: next(stop_requests))
    for name in ("step-000002.jsonl", "step-000002.tokens.jsonl", "step-000003.jsonl"):
        (loop.folder.rollouts / name).write_text("of an earlier process\n")
    loop.run(lambda: True)
    assert [*_files(loop.folder)] == ["step-000001.jsonl", "step-000001.tokens.jsonl"]
    loop.run(lambda: False)
    assert _files(loop.folder).keys() == _files(uninterrupted.folder).keys()
    for step in (1, 2, 3):
        assert _tokens(loop.folder, step) == _tokens(uninterrupted.folder, step)
        assert [e.turns for e in _episodes(loop.folder, step)] == [
            e.turns for e in _episodes(uninterrupted.folder, step)
        ]


def test_rollouts_of_a_completed_update_are_kept_on_resume(build: Build, monkeypatch: pytest.MonkeyPatch) -> None:
    loop = build(_config())

    def fail(*_: Any) -> None:
        raise EngineGone("It has left for good.")

    with monkeypatch.context() as patch, pytest.raises(EngineGone):
        patch.setattr(loop, "finish_step", fail)
        loop.run(lambda: False)
    saved = _files(loop.folder)
    assert [*saved] == ["step-000001.jsonl", "step-000001.tokens.jsonl"]
    loop.run(lambda: False)
    assert {name: text for name, text in _files(loop.folder).items() if name in saved} == saved
    assert len(_files(loop.folder)) == 6


@given(st.lists(st.integers(0, 300), max_size=40))
def test_token_texts_join_to_the_full_text(chat: Chat, ids: list[int]) -> None:
    texts = chat.token_texts(ids)
    assert len(texts) == len(ids)
    assert "".join(texts) == chat.tokenizer.decode(ids, clean_up_tokenization_spaces=False)
    for text in ("é", "<|im_end|>"):
        assert "".join(chat.token_texts(chat.tokenizer.encode(text))) == text
