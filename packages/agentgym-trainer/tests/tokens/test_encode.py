"""Tests of encoding episodes of all agents: the token ids equal those of an engine that played them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from io import StringIO
from pathlib import Path

import numpy as np
import pytest
from agentgym_envs import Episode
from agentgym_envs.core.action_schema import ACT, call_for
from agentgym_eval.util.errors import UsageError
from agentgym_trainer.config import DataConfig
from agentgym_trainer.engines.scripted import ScriptedEngine
from agentgym_trainer.rollout.runner import EnginePolicy, TokenBudget
from agentgym_trainer.run.console import RunConsole
from agentgym_trainer.run.folder import RunFolder
from agentgym_trainer.tokens.chat import Chat
from agentgym_trainer.tokens.encode import encode
from agentgym_trainer.tokens.trajectory import Segment, trajectory
from agentgym_trainer.trainers.training_data import keep_episodes
from chat_templates import FAMILIES, make_chat
from coin_rollouts import coin_specs, open_environment, play_episodes
from rich.console import Console

HABITS = "+plan:2+window:1+reflect:2+retry:2"
REPLIES = {
    "bare": "{}",
    "react": "Thought: why not\nAction: {}",
    "tags": "<think>why not</think>\n{}",
    "code-act": "why not\n```python\nact('{}')\n```",
    "function-call": "",
}


def _replies(agent: str) -> list[str]:
    """Return a reply for each action, and one without an action."""
    template = REPLIES[agent.partition("+")[0]]
    replies = [
        template.format(action) if template else call_for([ACT], action, "why not").to_json()
        for action in ("heads", "tails")
    ]
    return [*replies, "I can't\ndecide."]


@cache
def _episodes(agent: str, family: str, *, instructions: str | None = None) -> list[Episode]:
    """Play episodes in which a scripted model gives these replies at random."""
    with open_environment(agent=agent, instructions=instructions) as world:
        chat, rng = make_chat(family), np.random.default_rng(3)
        replies = [chat.with_tools(world.wrapped.tools).reply_ids(reply) for reply in _replies(agent)]
        engine = ScriptedEngine(lambda _: replies[rng.choice(3, p=(0.45, 0.45, 0.1))], end_id=chat.end_id)
        return play_episodes(engine, EnginePolicy(engine, chat, TokenBudget(), name="scripted"), world, coin_specs(4))


def _without_samples(episode: Episode) -> Episode:
    """Remove the sampled tokens, as in an episode of a policy without a model."""
    return replace(episode, turns=tuple(replace(t, reply=replace(t.reply, sample=None)) for t in episode.turns))


def _as_tuples(segments: Sequence[Segment]) -> list[object]:
    return [(segment.ids, segment.loss_mask, segment.turns) for segment in segments]


@pytest.mark.parametrize(
    ("family", "agent"),
    [
        *((family, "bare" + HABITS) for family in FAMILIES),
        *(("chatml", name + HABITS) for name in REPLIES if name != "bare"),
        *((family, "function-call" + habits) for family in ("qwen2.5", "mistral") for habits in ("", HABITS)),
    ],
)
def test_encoding_equals_the_tokens_of_the_engine(family: str, agent: str) -> None:
    for episode in _episodes(agent, family):
        encoded = encode(make_chat(family), Episode.from_json(_without_samples(episode).to_json()))
        assert _as_tuples(trajectory(encoded).segments) == _as_tuples(trajectory(episode).segments)
        assert [turn.reply.text for turn in encoded.turns] == [turn.reply.text for turn in episode.turns]


@pytest.mark.parametrize("family", FAMILIES)
def test_tokens_are_assigned_to_turns_of_every_kind(family: str) -> None:
    chat, kinds = make_chat(family), Counter[str]()
    for episode in _episodes("bare" + HABITS, family):
        encoded = trajectory(encode(chat, _without_samples(episode)))
        for number, turn in enumerate(episode.turns):
            turn_ids = [
                i
                for s in encoded.segments
                for i, turn_index in zip(s.ids, s.turns, strict=True)
                if turn_index == number
            ]
            assert turn_ids == chat.reply_ids(turn.reply.text)
        kinds.update(turn.kind for turn in episode.turns)
        kinds["trial"] += episode.turns[-1].trial
    assert min(kinds[kind] for kind in ("act", "plan", "reflect", "summary", "trial")) > 0


def test_only_windows_and_new_trials_start_segments() -> None:
    for episode in _episodes("bare" + HABITS, "chatml"):
        turns, fresh = episode.turns, [0]
        for number in range(1, len(turns)):
            last = turns[number - 1]
            new_trial = last.kind == "reflect" and number > 1 and last.trial != turns[number - 2].trial
            if last.kind == "summary" or new_trial:
                fresh.append(number)
        assert [i for i, turn in enumerate(turns) if turn.reply.sample and turn.reply.sample.fresh] == fresh


def test_turns_without_loss_are_masked(chat: Chat) -> None:
    (episode, *_) = _episodes("bare", "chatml")
    turns = tuple(replace(turn, loss=number != 1) for number, turn in enumerate(episode.turns))
    (full,), (masked,) = (trajectory(encode(chat, e)).segments for e in (episode, replace(episode, turns=turns)))
    assert masked.ids == full.ids
    assert masked.turns == tuple(-1 if turn == 1 else turn for turn in full.turns)
    assert masked.loss_mask == tuple(turn >= 0 for turn in masked.turns)
    assert set(full.turns) - set(masked.turns) == {1}


def test_recorded_acknowledgement_is_encoded(chat: Chat) -> None:
    """Conversations of other projects begin with an acknowledgement of the instructions."""
    (episode, *_) = _episodes("bare", "chatml", instructions="")
    first = replace(episode.turns[0], observation="Be brave.", kind="talk", loss=False)
    first = replace(first, reply=replace(first.reply, text="OK"), action=None)
    encoded = encode(chat, replace(episode, turns=(first, *episode.turns)))
    (segment,) = trajectory(encoded).segments
    text = chat.tokenizer.decode(segment.ids)
    assert text.startswith(
        "<|im_start|>user\nBe brave.<|im_end|>\n<|im_start|>assistant\nOK<|im_end|>\n<|im_start|>user"
    )
    completion_ids = [i for i, in_loss in zip(segment.ids, segment.loss_mask, strict=True) if in_loss]
    assert completion_ids == [i for turn in episode.turns for i in chat.reply_ids(turn.reply.text)]


def test_episode_of_a_different_agent_is_rejected(chat: Chat) -> None:
    (episode, *_) = _episodes("bare+plan", "chatml")
    with pytest.raises(ValueError, match="was played by a different agent"):
        encode(chat, replace(episode, agent="bare"))


def test_run_rejects_training_data_of_a_different_agent(tmp_path: Path) -> None:
    (episode, *_) = _episodes("bare+plan", "chatml")
    output, folder = StringIO(), RunFolder(tmp_path)
    episodes, config = [episode, replace(episode, agent="bare")], DataConfig(keep="all")
    with pytest.raises(
        UsageError, match=r"of mine\.jsonl can't be used for training\. .* was played by a different agent"
    ):
        keep_episodes(episodes, config, "mine.jsonl", folder, RunConsole(Console(file=output)))
    assert not folder.data.exists()
    keep_episodes(episodes[:1], config, "mine.jsonl", folder, RunConsole(Console(file=output)))
    assert "Training on 1 of 1 episodes of mine.jsonl." in output.getvalue()


def test_run_rejects_training_data_with_pictures(tmp_path: Path) -> None:
    (episode, *_) = _episodes("bare+plan", "chatml")
    seen = replace(episode, turns=tuple(replace(turn, picture="0" * 32) for turn in episode.turns))
    folder, console = RunFolder(tmp_path), RunConsole(Console(file=StringIO()))
    with pytest.raises(UsageError, match=r"of mine\.jsonl were played with pictures, .* without --pictures"):
        keep_episodes([episode, seen], DataConfig(keep="all"), "mine.jsonl", folder, console)
