"""The law for agents, over every form of a reply and every world. Names none of either."""

from __future__ import annotations

from contextlib import closing
from pkgutil import resolve_name
from typing import Any

import pytest
from agentgym_envs import WORLDS, Episode, EpisodeSpec, RegisteredWorld, TurnContext, make, play, text_env
from agentgym_envs.agents.agent import Agent
from agentgym_envs.agents.formats import REPLY_FORMATS, Bare
from agentgym_envs.episodes.conversation import Scaffold
from hypothesis import given
from hypothesis import strategies as st
from recording_policy import Talker, check_conversations

ALL = "+plan:2+window:2+reflect:2+retry"
CHEAP = 5e-4
"""Seconds a step, of worlds that are played every day."""
COUNTS = st.integers(1, 99)
HABITS = st.builds(
    Scaffold,
    plan=st.none() | st.just(0) | COUNTS,
    window=st.just(0) | COUNTS,
    reflect=st.just(0) | COUNTS,
    retry=COUNTS,
)


class Shouted(Bare):
    """The action in capital letters."""


class Named(Bare):
    reply_format = "prompt"


def test_a_form_of_a_module_is_an_agent_under_the_name_that_episodes_carry() -> None:
    name = f"{__name__}:Shouted+plan:2"
    with closing(Agent.parse(name).wrap(make("agentgym/TextCraft-v0"))) as env:
        assert isinstance(env, Shouted)
        assert env.agent == name == str(Agent.parse(env.agent))
    assert Agent.parse("agentgym_envs:ReAct+plan") == Agent.parse("react+plan")


@given(form=st.sampled_from([*REPLY_FORMATS]), habits=HABITS, order=st.randoms(use_true_random=False))
def test_an_agent_is_its_name(form: str, habits: Scaffold, order: Any) -> None:
    agent = Agent(form, habits)
    words = str(agent).split("+")[1:]
    order.shuffle(words)
    assert Agent.parse("+".join([form, *words])) == agent == Agent.parse(str(agent))


@pytest.mark.parametrize("name", ["react", "bare+plan", "tags+retry:2", "react+plan:8+window:6+reflect:5+retry"])
def test_the_shortest_name_is_the_one_that_is_written(name: str) -> None:
    assert str(Agent.parse(name)) == name
    assert Agent.parse("react+retry:1+plan") == Agent.parse("react+plan+retry")


@pytest.mark.parametrize(
    ("name", "complaint"),
    [
        ("", "no agent ''"),
        ("raect+plan", r"no agent 'raect'. Did you mean react\? .*\(react, bare, tags, .*react\+plan\+window:6"),
        (
            "react+plam:3",
            r"no habit 'plam:3'. Did you mean plan\? Habits: plan\[:N\], window:N, reflect:N, retry\[:K\]",
        ),
        (
            "no_such_module:Prompt+plan",
            "The module of the agent no_such_module:Prompt can't be imported: No module named",
        ),
        (":Prompt", "The module of the agent :Prompt can't be imported"),
        ("recording_policy:Prompt", "'Prompt' in recording_policy is not a reply format"),
        ("json:JSONDecoder", "'JSONDecoder' in json is not a reply format"),
        ("agentgym_envs:ReplyWrapper", "'ReplyWrapper' in agentgym_envs is not a reply format"),
        ("recording_policy:Prompt+plam", "is not a reply format"),
        (
            f"{__name__}:Named",
            "sets reply_format = 'prompt', a name under which no command finds it. Remove `reply_format`",
        ),
        ("react+", "no habit ''"),
        ("react+plan+plan:3", "plan occurs twice"),
        ("react+window", "'window' needs an integer of at least 1, as in window:5"),
        ("react+reflect:0", "needs an integer of at least 1"),
        ("react+retry:", "needs an integer of at least 1"),
        ("react+retry:-1", "needs an integer of at least 1"),
        ("react+plan:²", "needs an integer of at least 1"),
    ],
)
def test_other_names_are_refused_with_what_there_is(name: str, complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        Agent.parse(name)


def test_a_number_below_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="window must be at least 0, not -1"):
        Scaffold(window=-1)


# Every form in every world.


def _in_time(world: RegisteredWorld) -> Any:
    dear = resolve_name(world.entry_point).step_seconds > CHEAP
    return pytest.param(world, marks=[pytest.mark.long] if dear else [], id=world.id)


@pytest.mark.usefixtures("playable")
@pytest.mark.parametrize("world", [*map(_in_time, WORLDS)])
def test_every_agent_plays_every_world(world: RegisteredWorld) -> None:
    with closing(make(world.id)) as env:
        task = text_env(env).tasks.train.ids[0]
        for form in REPLY_FORMATS:
            agent = Agent.parse(form + ALL)
            talker = Talker(expert)
            episode = play(agent.wrap(env), talker, EpisodeSpec(task, seed=3), horizon=3)
            check_game(episode, agent, talker)


def expert(seat: TurnContext) -> str:
    """The world's own, in the form of the agent; but first it says what no form understands."""
    if seat.acts == 0:
        return ""
    return seat.env.get_wrapper_attr("format")(text_env(seat.env).oracle(), "It is what comes next.")


def check_game(episode: Episode, agent: Agent, talker: Talker) -> None:
    """The episode says who played, can be replayed, and counts and pays as it should."""
    assert Agent.parse(episode.agent) == agent
    assert bool(episode.tools) == (agent.reply_format == "function-call")
    check_conversations(episode, talker.seen)
    assert sum(turn.reward for turn in episode.turns) == pytest.approx(episode.score)
    for turn in episode.turns:
        if turn.kind == "act":
            understood = bool(turn.reply.text)
            assert (turn.action is not None, turn.valid) == (understood, understood)
    if episode.success is False:
        assert (episode.acts, episode.turns[-1].trial) == (6, 1)


def test_worlds_name_agents_that_there_are() -> None:
    assert all(str(Agent.parse(world.agent)) == world.agent for world in WORLDS)
