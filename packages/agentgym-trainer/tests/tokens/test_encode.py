"""Episodes of all agents as token ids: encoded, they are what an engine would have been fed and have said."""

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
from chat_templates import FAMILIES, chat_of
from coin_rollouts import coins, open_world, played
from rich.console import Console

HABITS = "+plan:2+window:1+reflect:2+retry:2"
FORMS = {
    "bare": "{}",
    "react": "Thought: why not\nAction: {}",
    "tags": "<think>why not</think>\n{}",
    "code-act": "why not\n```python\nact('{}')\n```",
    "function-call": "",
}


def _words(agent: str) -> list[str]:
    """What the agent may say to act, and something that is no action."""
    form = FORMS[agent.partition("+")[0]]
    said = [
        form.format(action) if form else call_for([ACT], action, "why not").to_json() for action in ("heads", "tails")
    ]
    return [*said, "I can't\ndecide."]


@cache
def _played(agent: str, family: str, *, instructions: str | None = None) -> list[Episode]:
    """Episodes in which a model says these words at random."""
    with open_world(agent=agent, instructions=instructions) as world:
        chat, rng = chat_of(family), np.random.default_rng(3)
        said = [chat.with_tools(world.wrapped.tools).reply_ids(words) for words in _words(agent)]
        engine = ScriptedEngine(lambda _: said[rng.choice(3, p=(0.45, 0.45, 0.1))], end_id=chat.end_id)
        return played(engine, EnginePolicy(engine, chat, TokenBudget(), name="scripted"), world, coins(4))


def _silent(episode: Episode) -> Episode:
    """As a player without a model would have left it."""
    return replace(episode, turns=tuple(replace(t, reply=replace(t.reply, sample=None)) for t in episode.turns))


def _lines(segments: Sequence[Segment]) -> list[object]:
    return [(segment.ids, segment.loss_mask, segment.turns) for segment in segments]


@pytest.mark.parametrize(
    ("family", "agent"),
    [
        *((family, "bare" + HABITS) for family in FAMILIES),
        *(("chatml", form + HABITS) for form in FORMS if form != "bare"),
        *((family, "function-call" + habits) for family in ("qwen2.5", "mistral") for habits in ("", HABITS)),
    ],
)
def test_encoding_gives_what_the_engine_was_fed(family: str, agent: str) -> None:
    for episode in _played(agent, family):
        encoded = encode(chat_of(family), Episode.from_json(_silent(episode).to_json()))
        assert _lines(trajectory(encoded).segments) == _lines(trajectory(episode).segments)
        assert [turn.reply.text for turn in encoded.turns] == [turn.reply.text for turn in episode.turns]


@pytest.mark.parametrize("family", FAMILIES)
def test_every_kind_of_turn_is_said_and_each_token_belongs_to_its_turn(family: str) -> None:
    chat, kinds = chat_of(family), Counter[str]()
    for episode in _played("bare" + HABITS, family):
        line = trajectory(encode(chat, _silent(episode)))
        for number, turn in enumerate(episode.turns):
            own = [i for s in line.segments for i, of in zip(s.ids, s.turns, strict=True) if of == number]
            assert own == chat.reply_ids(turn.reply.text)
        kinds.update(turn.kind for turn in episode.turns)
        kinds["trial"] += episode.turns[-1].trial
    assert min(kinds[kind] for kind in ("act", "plan", "reflect", "summary", "trial")) > 0


def test_a_window_and_a_new_trial_begin_a_fresh_segment_and_nothing_else_does() -> None:
    for episode in _played("bare" + HABITS, "chatml"):
        turns, fresh = episode.turns, [0]
        for number in range(1, len(turns)):
            last = turns[number - 1]
            looked_back = last.kind == "reflect" and number > 1 and last.trial != turns[number - 2].trial
            if last.kind == "summary" or looked_back:
                fresh.append(number)
        assert [i for i, turn in enumerate(turns) if turn.reply.sample and turn.reply.sample.fresh] == fresh


def test_what_is_not_to_be_learned_is_read_and_not_said(chat: Chat) -> None:
    (episode, *_) = _played("bare", "chatml")
    kept = tuple(replace(turn, loss=number != 1) for number, turn in enumerate(episode.turns))
    (whole,), (part,) = (trajectory(encode(chat, e)).segments for e in (episode, replace(episode, turns=kept)))
    assert part.ids == whole.ids
    assert part.turns == tuple(-1 if turn == 1 else turn for turn in whole.turns)
    assert part.loss_mask == tuple(turn >= 0 for turn in part.turns)
    assert set(whole.turns) - set(part.turns) == {1}


def test_a_recorded_ok_is_read_and_encoded(chat: Chat) -> None:
    """Conversations of others begin with an answer to their instructions."""
    (episode, *_) = _played("bare", "chatml", instructions="")
    first = replace(episode.turns[0], observation="Be brave.", kind="talk", loss=False)
    first = replace(first, reply=replace(first.reply, text="OK"), action=None)
    encoded = encode(chat, replace(episode, turns=(first, *episode.turns)))
    (segment,) = trajectory(encoded).segments
    text = chat.tokenizer.decode(segment.ids)
    assert text.startswith(
        "<|im_start|>user\nBe brave.<|im_end|>\n<|im_start|>assistant\nOK<|im_end|>\n<|im_start|>user"
    )
    said = [i for i, yes in zip(segment.ids, segment.loss_mask, strict=True) if yes]
    assert said == [i for turn in episode.turns for i in chat.reply_ids(turn.reply.text)]


def test_an_agent_that_would_not_have_come_to_such_turns_is_refused(chat: Chat) -> None:
    (episode, *_) = _played("bare+plan", "chatml")
    with pytest.raises(ValueError, match="was played by a different agent"):
        encode(chat, replace(episode, agent="bare"))


def test_a_run_says_before_it_learns_that_an_agent_would_not_have_come_to_such_turns(tmp_path: Path) -> None:
    (episode, *_) = _played("bare+plan", "chatml")
    told, folder = StringIO(), RunFolder(tmp_path)
    found, every = [episode, replace(episode, agent="bare")], DataConfig(keep="all")
    with pytest.raises(
        UsageError, match=r"of mine\.jsonl can't be used for training\. .* was played by a different agent"
    ):
        keep_episodes(found, every, "mine.jsonl", folder, RunConsole(Console(file=told)))
    assert not folder.data.exists()
    keep_episodes(found[:1], every, "mine.jsonl", folder, RunConsole(Console(file=told)))
    assert "Training on 1 of 1 episodes of mine.jsonl." in told.getvalue()
