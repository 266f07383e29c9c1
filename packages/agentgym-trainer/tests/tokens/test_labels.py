"""Tests of labels as tokens: each follows exactly the context that the policy sampled its own reply from."""

from __future__ import annotations

import numpy as np
import pytest
from agentgym_envs import Episode
from agentgym_trainer.engines.scripted import ScriptedEngine
from agentgym_trainer.rollout.labels import LabelingPolicy
from agentgym_trainer.rollout.runner import EnginePolicy, TokenBudget
from agentgym_trainer.tokens.chat import Chat
from agentgym_trainer.tokens.labels import label_trajectory
from agentgym_trainer.tokens.trajectory import Trajectory, trajectory
from chat_templates import make_chat
from coin_rollouts import RecordingEngine, coin_specs, open_environment, play_episodes

AGENTS = ("bare", "react", "react+plan:2+window:1+reflect:2+retry:2", "react+compact:120", "function-call")
THINKING = "<think>Which side?</think>\nThought: it may be\nAction: tails"


def played(agent: str, family: str) -> tuple[list[Episode], RecordingEngine, Chat]:
    """Play labeled episodes of a scripted model, and return them with the engine's contexts and the chat."""
    with open_environment(agent=agent, instructions=None) as world:
        chat, rng = make_chat(family), np.random.default_rng(3)
        texts = ["heads", THINKING, "Thought: odd\nAction: edge"]
        scripted = ScriptedEngine(lambda _: chat.reply_ids(texts[rng.integers(3)]), end_id=chat.end_id)
        engine = RecordingEngine(scripted)
        policy = LabelingPolicy(EnginePolicy(engine, chat, TokenBudget(), name="scripted"), None, 1.0)
        return (
            play_episodes(engine, policy, world, coin_specs(4), horizon=3),
            engine,
            chat.with_tools(world.wrapped.tools),
        )


def labels_of(item: Trajectory) -> list[tuple[tuple[int, ...], tuple[int, ...], set[int]]]:
    """Return context, label and turn of each segment."""
    found: list[tuple[tuple[int, ...], tuple[int, ...], set[int]]] = []
    for segment in item.segments:
        first = segment.loss_mask.index(True)
        assert all(segment.loss_mask[first:])
        assert set(segment.logprobs) == {0.0}
        found.append((segment.ids[:first], segment.ids[first:], set(segment.turns[first:])))
    return found


@pytest.mark.parametrize("family", ["chatml", "qwen3", "mistral"])
@pytest.mark.parametrize("agent", AGENTS)
def test_labels_follow_the_contexts_that_were_sampled_from(agent: str, family: str) -> None:
    episodes, engine, chat = played(agent, family)
    sampled = {(context, completion.ids) for context, completion in engine.calls}
    count = 0
    for episode in episodes:
        found = labels_of(label_trajectory(episode, chat, longest=100_000))
        labeled = [(k, turn) for k, turn in enumerate(episode.turns) if turn.reply.label is not None]
        assert [k for k, _ in labeled] == [k for k, turn in enumerate(episode.turns) if turn.kind == "act"]
        for (context, label, turns), (number, turn) in zip(found, labeled, strict=True):
            assert turn.reply.sample is not None
            assert (context, turn.reply.sample.ids) in sampled
            assert label == tuple(chat.reply_ids(turn.reply.label or ""))
            assert turns == {number}
        count += len(found)
    assert count >= 12


def test_labels_leave_the_trajectory_unchanged() -> None:
    episodes, _, chat = played("bare", "chatml")
    for episode in episodes:
        labels, own = label_trajectory(episode, chat, longest=100_000), trajectory(episode)
        assert (labels.rewards, labels.states, labels.group) == (own.rewards, own.states, own.group)
        (whole,) = own.segments
        assert all(whole.ids[: len(context)] == context for context, *_ in labels_of(labels))


def test_labels_beyond_the_token_limit_are_left_out() -> None:
    (episode, *_), _, chat = played("bare", "chatml")
    lengths = [len(segment.ids) for segment in label_trajectory(episode, chat, longest=100_000).segments]
    assert lengths == sorted(set(lengths))
    for kept, longest in ((3, lengths[2]), (2, lengths[2] - 1), (1, lengths[1] - 1), (0, lengths[0] - 1)):
        assert [len(s.ids) for s in label_trajectory(episode, chat, longest=longest).segments] == lengths[:kept]
