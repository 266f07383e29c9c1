"""Tests of agents: their names, and every reply format with all habits in every registered environment."""

from __future__ import annotations

from contextlib import closing
from importlib.metadata import EntryPoint, EntryPoints
from pkgutil import resolve_name
from typing import Any

import pytest
from agentgym_envs import WORLDS, Episode, EpisodeSpec, RegisteredWorld, TurnContext, make, play, text_env
from agentgym_envs.agents import agent
from agentgym_envs.agents.agent import Agent
from agentgym_envs.agents.formats import REPLY_FORMATS, Bare
from agentgym_envs.cli.listings import agents
from agentgym_envs.episodes.conversation import Scaffold
from hypothesis import given
from hypothesis import strategies as st
from recording_policy import RecordingPolicy, check_conversations

ALL = "+plan:2+window:2+reflect:2+retry"
CHEAP = 5e-4
"""The maximum `step_seconds` of environments that the everyday suite plays."""
COUNTS = st.integers(1, 99)
HABITS = st.builds(
    Scaffold,
    plan=st.none() | st.just(0) | COUNTS,
    window=st.just(0) | COUNTS,
    reflect=st.just(0) | COUNTS,
    retry=COUNTS,
)


class Custom(Bare):
    """A custom reply format."""


class WithOwnName(Bare):
    reply_format = "prompt"


def test_reply_format_of_a_module_is_an_agent() -> None:
    name = f"{__name__}:Custom+plan:2"
    with closing(Agent.parse(name).wrap(make("agentgym/TextCraft-v0"))) as env:
        assert isinstance(env, Custom)
        assert env.agent == name == str(Agent.parse(env.agent))
    assert Agent.parse("agentgym_envs:ReAct+plan") == Agent.parse("react+plan")


def test_reply_formats_of_installed_packages_have_names(monkeypatch: pytest.MonkeyPatch) -> None:
    points = EntryPoints([EntryPoint("mine", f"{__name__}:Custom", agent.GROUP)])
    monkeypatch.setattr(agent, "entry_points", lambda group: points.select(group=group))
    assert str(Agent.parse("mine+plan")) == f"{__name__}:Custom+plan"
    assert [listed.name for listed in agents()][: len(REPLY_FORMATS) + 1] == [*REPLY_FORMATS, "+plan[:N]"]
    monkeypatch.setattr("agentgym_envs.cli.listings.entry_points", lambda group: points.select(group=group))
    assert "mine" in [listed.name for listed in agents()]
    with pytest.raises(ValueError, match=r"Did you mean mine\? .*code-act, mine, or MODULE:CLASS"):
        Agent.parse("minr")


@given(reply_format=st.sampled_from([*REPLY_FORMATS]), habits=HABITS, rng=st.randoms(use_true_random=False))
def test_agent_names_round_trip_with_habits_in_any_order(reply_format: str, habits: Scaffold, rng: Any) -> None:
    agent = Agent(reply_format, habits)
    words = str(agent).split("+")[1:]
    rng.shuffle(words)
    assert Agent.parse("+".join([reply_format, *words])) == agent == Agent.parse(str(agent))


@pytest.mark.parametrize("name", ["react", "bare+plan", "tags+retry:2", "react+plan:8+window:6+reflect:5+retry"])
def test_canonical_names_are_the_shortest(name: str) -> None:
    assert str(Agent.parse(name)) == name
    assert Agent.parse("react+retry:1+plan") == Agent.parse("react+plan+retry")


@pytest.mark.parametrize(
    ("name", "complaint"),
    [
        ("", "no agent ''"),
        ("raect+plan", r"no agent 'raect'. Did you mean react\? .*\(react, bare, tags, .*react\+plan\+window:6"),
        (
            "react+plam:3",
            r"no habit 'plam:3'. Did you mean plan\? Habits: plan\[:N\], window:N, token_window:N, compact:N, ",
        ),
        (
            "no_such_module:Prompt+plan",
            r"The module of the agent no_such_module:Prompt can't be imported: No module named 'no_such_module'\. "
            "Install its package, or run the command in the folder that contains it",
        ),
        (":Prompt", "The module of the agent :Prompt can't be imported"),
        ("recording_policy:Prompt", "'Prompt' in recording_policy is not a reply format"),
        ("json:JSONDecoder", "'JSONDecoder' in json is not a reply format"),
        ("agentgym_envs:ReplyWrapper", "'ReplyWrapper' in agentgym_envs is not a reply format"),
        ("recording_policy:Prompt+plam", "is not a reply format"),
        (
            f"{__name__}:WithOwnName",
            "sets reply_format = 'prompt', a name under which no command finds it. Remove `reply_format`",
        ),
        ("react+", "no habit ''"),
        ("react+plan+plan:3", "plan occurs twice"),
        ("react+window:3+compact:500", "window and compact both limit the context; choose one"),
        ("react+window", "'window' needs an integer of at least 1, as in window:5"),
        ("react+reflect:0", "needs an integer of at least 1"),
        ("react+retry:", "needs an integer of at least 1"),
        ("react+retry:-1", "needs an integer of at least 1"),
        ("react+plan:²", "needs an integer of at least 1"),
    ],
)
def test_invalid_names_are_rejected_with_alternatives(name: str, complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        Agent.parse(name)


def test_negative_habit_number_is_rejected() -> None:
    with pytest.raises(ValueError, match="window must be at least 0, not -1"):
        Scaffold(window=-1)


def _world_parameter(world: RegisteredWorld) -> Any:
    expensive = resolve_name(world.entry_point).step_seconds > CHEAP
    return pytest.param(world, marks=[pytest.mark.long] if expensive else [], id=world.id)


@pytest.mark.usefixtures("playable")
@pytest.mark.parametrize("world", [*map(_world_parameter, WORLDS)])
def test_every_reply_format_plays_every_world(world: RegisteredWorld) -> None:
    with closing(make(world.id)) as env:
        task = text_env(env).tasks.train.ids[0]
        for reply_format in REPLY_FORMATS:
            agent = Agent.parse(reply_format + ALL)
            policy = RecordingPolicy(expert)
            episode = play(agent.wrap(env), policy, EpisodeSpec(task, seed=3), horizon=3)
            check_episode(episode, agent, policy)


def expert(context: TurnContext) -> str:
    """Return the expert's action in the agent's reply format, after a first reply that no format can parse."""
    if context.acts == 0:
        return ""
    return context.env.get_wrapper_attr("format")(text_env(context.env).oracle(), "It is what comes next.")


def check_episode(episode: Episode, agent: Agent, policy: RecordingPolicy) -> None:
    """Check the recorded agent, replay, the validity of turns, rewards and the number of actions."""
    assert Agent.parse(episode.agent) == agent
    assert bool(episode.tools) == (agent.reply_format == "function-call")
    check_conversations(episode, policy.seen)
    assert sum(turn.reward for turn in episode.turns) == pytest.approx(episode.score)
    for turn in episode.turns:
        if turn.kind == "act":
            parsed = bool(turn.reply.text)
            assert (turn.action is not None, turn.valid) == (parsed, parsed)
    if episode.success is False:
        assert (episode.acts, episode.turns[-1].trial) == (6, 1)


def test_default_agents_of_worlds_are_valid() -> None:
    assert all(str(Agent.parse(world.agent)) == world.agent for world in WORLDS)
