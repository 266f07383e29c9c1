"""Tests of conversations: for all habits, those that are played equal those that `replay` reconstructs."""

from __future__ import annotations

import dataclasses
import re
from collections import Counter
from collections.abc import Iterator

import gymnasium
import pytest
from agentgym_envs import Bare, Episode, EpisodeSpec, ReAct, Reply, Turn, TurnContext, play
from agentgym_envs.agents.agent import Agent
from agentgym_envs.episodes.conversation import (
    LEAST_SUMMARIZED,
    Conversation,
    ConversationBuilder,
    Message,
    Scaffold,
    replay,
)
from door_episodes import kinds, opens_too_early, play_door
from door_world import Door, registered_env
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from recording_policy import RecordingPolicy, check_conversations, check_roles

LIMITS = (
    st.integers(0, 5).map(lambda window: {"window": window})
    | st.integers(1, 300).map(lambda tokens: {"token_window": tokens})
    | st.integers(1, 300).map(lambda tokens: {"compact": tokens})
)
HABITS = st.builds(
    lambda limit, **others: Scaffold(**limit, **others),
    limit=LIMITS,
    plan=st.none() | st.integers(0, 4),
    reflect=st.integers(0, 4),
    retry=st.integers(0, 3),
)


@pytest.fixture
def door() -> Iterator[gymnasium.Env[str, str]]:
    with registered_env(Door) as env:
        yield env


def knocks_then_opens(count: int) -> RecordingPolicy:
    return RecordingPolicy(lambda context: "knock" if context.acts < count else "open")


# Random habits and policies.


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(habits=HABITS, knocks=st.integers(1, 5), horizon=st.integers(1, 9), seed=st.integers(0, 99))
def test_replay_reproduces_played_conversations(
    door: gymnasium.Env[str, str], habits: Scaffold, knocks: int, horizon: int, seed: int
) -> None:
    def gamble(context: TurnContext) -> str | Reply:
        drawn = context.rng.random()
        return (
            Reply("half a", "length")
            if drawn < 0.02
            else "no\nsuch thing"
            if drawn < 0.2
            else "knock"
            if drawn < 0.9
            else "open"
        )

    policy = RecordingPolicy(gamble)
    agent = Agent("bare", habits)
    episode = play(agent.wrap(door), policy, EpisodeSpec(f"door/train/{knocks}", seed=seed), horizon=horizon)
    check_conversations(episode, policy.seen)
    (check_tokens if habits.context_tokens else check_window)(episode, habits)
    check_rewards(episode, horizon)
    assert Agent.parse(episode.agent) == agent


def check_window(episode: Episode, habits: Scaffold) -> None:
    """Check that each context has at most as many earlier actions as the window, and at least half as many."""
    number = trial = 0
    for conversation, turn in replay(episode):
        number, trial = (number if turn.trial == trial else 0), turn.trial
        if turn.kind == "act":
            visible = sum(m.role == "assistant" and not m.content[-1:].isdigit() for m in conversation)
            least, most = (habits.window // 2, habits.window) if habits.window else (number, number)
            assert min(least, number) <= visible <= most
            number += 1


def check_tokens(episode: Episode, habits: Scaffold) -> None:
    """Check that an action's context is within the limit unless a summary would take out too little of it or has just
    been written, and that each summary was due.
    """
    summarized = False
    for conversation, turn in replay(episode):
        tokens = sum(len(message.content) for message in conversation) // 4
        assert turn.kind != "act" or summarized or tokens <= habits.context_tokens or not shortens(conversation)
        assert turn.kind != "summary" or (tokens > habits.context_tokens and shortens(conversation, least=0.1))
        summarized = turn.kind == "summary"


def shortens(conversation: Conversation, *, least: float = LEAST_SUMMARIZED) -> bool:
    """Whether a summary would replace an action, and at least this share of a conversation's tokens."""
    if len(conversation) < 4:
        return False
    instructions, first, *within, last = conversation
    tokens = sum(len(message.content) for message in conversation) // 4
    stay = len("\n\n".join(message.content for message in (first, last)) + instructions.content) // 4
    return any(m.role == "assistant" and m.content[-1:].isalpha() for m in within) and tokens - stay >= least * tokens


def check_rewards(episode: Episode, horizon: int) -> None:
    """Check that rewards sum to the score over all trials, and that no trial exceeds the horizon."""
    assert sum(turn.reward for turn in episode.turns) == pytest.approx(episode.score)
    acts = Counter(turn.trial for turn in episode.turns if turn.kind == "act")
    assert max(acts.values(), default=0) <= horizon
    for turn in episode.turns:
        assert turn.kind == "act" or (turn.action is None and turn.valid)


# Single habits.


def test_without_habits_the_conversation_is_observations_and_replies() -> None:
    builder = ConversationBuilder(Scaffold(), "Do it.")
    assert builder.needs_observation
    for text in "ab":
        builder.add_observation(text)
        assert (builder.kind, builder.needs_observation) == ("act", False)
        builder.add_reply(text.upper())
    builder.add_observation("c")
    texts = [(message.role[0], message.content) for message in builder.conversation]
    assert texts == [("s", "Do it."), ("u", "a"), ("a", "A"), ("u", "b"), ("a", "B"), ("u", "c")]
    assert not builder.end_trial("d")


@pytest.mark.parametrize(
    ("habits", "expected"),
    [
        ("", "aaaaaa"),
        ("+plan", "paaaaaa"),
        ("+plan:2", "paapaapaa"),
        ("+reflect:2", "aaraaraa"),
        ("+reflect:1", "ararararara"),
        ("+window:2", "aaasaasa"),
        ("+window:1", "aasaasaa"),
        ("+window:9", "aaaaaa"),
        ("+plan:3+reflect:3+window:2", "paaarpsaasa"),
    ],
)
def test_habits_are_scheduled_between_actions(door: gymnasium.Env[str, str], habits: str, expected: str) -> None:
    policy = knocks_then_opens(5)
    episode = play_door(door, habits, policy, knocks=5)
    assert kinds(episode) == expected
    assert (episode.success, episode.acts) == (True, 6)
    check_conversations(episode, policy.seen)


def test_questions_follow_the_latest_observation(door: gymnasium.Env[str, str]) -> None:
    policy = knocks_then_opens(3)
    play_door(door, "+plan:2", policy)
    plan, act, _, new_plan, _, _ = [conversation for conversation, _ in policy.seen]
    assert plan[-1].content.startswith("Knock 3 times.\n\nBefore you act, write down your plan")
    assert act[-2:] == (Message("assistant", "plan 1"), Message("user", "Now go on with your next action."))
    assert new_plan[-1].content.startswith("You knocked 2 times.\n\nWrite down your plan anew")


def test_turn_without_action_is_free_and_has_its_own_state(door: gymnasium.Env[str, str]) -> None:
    episode = play_door(door, "+plan", knocks_then_opens(3))
    plan, act = episode.turns[:2]
    assert (plan.action, plan.valid, plan.reward, plan.observation) == (None, True, 0.0, "Knock 3 times.")
    assert (act.observation, plan.state_key) == (plan.observation, f"{act.state_key} plan")
    assert play_door(door, "+plan", knocks_then_opens(3), horizon=4).success  # the horizon counts actions only


def test_window_moves_in_blocks_and_keeps_plan_and_notes(door: gymnasium.Env[str, str]) -> None:
    policy = RecordingPolicy(lambda context: f"knock {context.acts}")
    episode = play_door(door, "+plan:5+reflect:5+window:4", policy, horizon=9)
    assert kinds(episode) == "paaaaarpsaaasa"
    restarted = policy.seen[9][0]
    assert [message.role for message in restarted] == ["system", "user", "assistant", "user", "assistant", "user"]
    head = restarted[1].content
    for kept in ("1. reflect 7", "This is how it began:\nKnock 3 times.", "Your plan:\nplan 8", "words:\nsummary 9"):
        assert kept in head
    assert "plan 1" not in str(restarted)
    assert (restarted[2].content, restarted[4].content) == ("knock 3", "knock 4")
    assert len(policy.seen[-1][0]) == len(restarted)


def test_window_bounds_the_context_despite_many_reflections(door: gymnasium.Env[str, str]) -> None:
    policy = RecordingPolicy(lambda _: "knock")
    play_door(door, "+reflect:1+window:2", policy, horizon=40)
    sizes = [sum(len(message.content) for message in conversation) for conversation, _ in policy.seen]
    assert max(sizes) <= 1.1 * max(sizes[:20])
    notes = re.findall(r"(?m)^(\d+)\. reflect", policy.seen[-1][0][1].content)
    assert len(notes) == 3 and int(notes[0]) > 30


def test_context_beyond_its_tokens_is_replaced_by_a_summary(door: gymnasium.Env[str, str]) -> None:
    policy = RecordingPolicy(lambda context: f"knock {context.acts}" + 200 * "!")
    episode = play_door(door, "+plan+compact:200", policy, horizon=8)
    assert kinds(episode) == "paaasaaasaa"
    asked, restarted = policy.seen[4][0][-1].content, policy.seen[5][0]
    assert asked.startswith("Say knock or open.") and "Sum up what has happened" in asked
    assert [message.role for message in restarted] == ["system", "user"]
    for kept in (
        "This is how it began:\nKnock 3 times.",
        "Your plan:\nplan 1",
        "words:\nsummary 5",
        "what you see now:",
    ):
        assert kept in restarted[-1].content
    assert "knock 2" not in str(restarted)
    assert restarted[-1].content.endswith(asked.partition("\n\nMost of what")[0])


def test_token_window_keeps_the_last_half_of_the_actions(door: gymnasium.Env[str, str]) -> None:
    policy = RecordingPolicy(lambda context: f"knock {context.acts}" + 200 * "!")
    episode = play_door(door, "+token_window:300", policy, horizon=8)
    assert kinds(episode) == "aaaaasaaa"
    restarted = policy.seen[6][0]
    assert [message.content[:7] for message in restarted if message.role == "assistant"] == ["knock 3", "knock 4"]


def test_question_for_a_summary_replaces_the_request_to_go_on(door: gymnasium.Env[str, str]) -> None:
    policy = RecordingPolicy(lambda context: "knock")
    episode = play_door(door, "+plan:1+compact:1", policy, horizon=3)
    assert kinds(episode) == "papsapsa"
    question = policy.seen[3][0][-1].content
    assert question.startswith("Most of what stands above") and "go on with your next action" not in question


def test_policy_counts_the_tokens_of_its_context(door: gymnasium.Env[str, str]) -> None:
    class Counting(RecordingPolicy):
        def count_tokens(self, context: TurnContext) -> int:
            if len(context.conversation) == 2:  # what stays after a summary: instructions, first and last observation
                return 1
            return 10 if context.acts == 2 else 9

    assert kinds(play_door(door, "+compact:9", Counting(lambda _: "knock" + 99 * "!"), horizon=4)) == "aasaa"


@pytest.mark.parametrize(("stay", "expected"), [(7, "asasa"), (8, "aaa")])
def test_summary_is_due_if_it_takes_out_a_quarter_of_the_tokens(
    door: gymnasium.Env[str, str], stay: int, expected: str
) -> None:
    observations = list[str]()

    class Counting(RecordingPolicy):
        def count_tokens(self, context: TurnContext) -> int:
            if any(message.role == "assistant" for message in context.conversation):
                return 10
            observations.append(context.conversation[-1].content)
            return stay

    assert kinds(play_door(door, "+compact:9", Counting(lambda _: "knock"), horizon=3)) == expected
    assert observations[0] == "Knock 3 times.\n\nYou knocked 1 times."


@pytest.mark.parametrize("kind", ["plan", "reflect", "summary"])
def test_kept_replies_exclude_their_thoughts(kind: str) -> None:
    builder = ConversationBuilder(Scaffold(plan=0, reflect=1, window=1), "")
    for reply in ("plan", "act", "reflect", "act", "reflect", "summary"):
        if builder.needs_observation:
            builder.add_observation("Knock.")
        assert builder.kind == reply
        builder.add_reply(f"<think>\nHm.\n</think>\n\nMy {reply}." if reply == kind else f"My {reply}.")
    (message,) = builder.conversation
    assert f"My {kind}." in message.content and "Hm." not in message.content


# Recorded episodes.


def recorded(door: gymnasium.Env[str, str]) -> Episode:
    return play_door(door, "+plan+retry", opens_too_early(1), knocks=1)


def test_turns_of_kind_talk_are_part_of_the_conversation(door: gymnasium.Env[str, str]) -> None:
    episode = play(Bare(door, instructions=""), knocks_then_opens(1), EpisodeSpec("door/train/1"))
    talk = Turn("You are to knock.", Reply("OK."), None, True, 0.0, "", kind="talk", loss=False)
    (first, _), (second, _), (third, _) = replay(dataclasses.replace(episode, turns=(talk, *episode.turns), agent=""))
    check_roles(third, "")
    assert [message.content for message in second] == ["You are to knock.", "OK.", "Knock 1 times."]
    assert third[: len(second)] == second
    assert second[: len(first)] == first


@pytest.mark.parametrize(
    ("agent", "complaint"),
    [
        (
            "bare",
            "Turn 0 of door/train/1 has kind 'plan' in trial 0, but the agent 'bare' expects 'act' in trial 0",
        ),
        ("bare+plan", "Turn 2 .* has kind 'reflect' in trial 1, but .* expects 'act' in trial 0"),
        ("bare+plam", "no habit 'plam'. Did you mean plan"),
    ],
)
def test_replay_as_another_agent_is_rejected(door: gymnasium.Env[str, str], agent: str, complaint: str) -> None:
    episode = dataclasses.replace(recorded(door), agent=agent)
    with pytest.raises(ValueError, match=complaint):
        list(replay(episode))


def test_replay_needs_only_the_habits_of_an_unknown_agent(door: gymnasium.Env[str, str]) -> None:
    episode = recorded(door)
    assert list(replay(dataclasses.replace(episode, agent="mine+plan+retry"))) == list(replay(episode))


def test_conversation_starts_with_the_instructions(door: gymnasium.Env[str, str]) -> None:
    episode = play(ReAct(door), RecordingPolicy(lambda context: "Action: open"), EpisodeSpec("door/train/0"))
    ((conversation, _),) = replay(episode)
    expected: Conversation = (Message("system", ReAct(door).instructions), Message("user", "Knock 0 times."))
    assert conversation == expected
