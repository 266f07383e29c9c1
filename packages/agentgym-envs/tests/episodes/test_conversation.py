"""What an agent is asked and what it remembers: conversations as they are played are those that `replay` makes."""

from __future__ import annotations

import dataclasses
import itertools
import re
from collections import Counter
from collections.abc import Iterator
from typing import Any

import gymnasium
import pytest
from agentgym_envs import Bare, EnvFault, Episode, EpisodeSpec, ReAct, Reply, Turn, TurnContext, play, text_env
from agentgym_envs.agents.agent import Agent
from agentgym_envs.episodes.conversation import Conversation, ConversationBuilder, Message, Scaffold, replay
from door_world import Door, made
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from recording_policy import Talker, check_conversations, check_roles

HABITS = st.builds(
    Scaffold,
    plan=st.none() | st.integers(0, 4),
    window=st.integers(0, 5),
    reflect=st.integers(0, 4),
    retry=st.integers(0, 3),
)


@pytest.fixture
def door() -> Iterator[gymnasium.Env[str, str]]:
    with made(Door) as env:
        yield env


def knocks_then_opens(count: int) -> Talker:
    return Talker(lambda seat: "knock" if seat.acts < count else "open")


def game(env: gymnasium.Env[str, str], habits: str, talker: Talker, knocks: int = 3, **how: Any) -> Episode:
    return play(Agent.parse(f"bare{habits}").wrap(env), talker, EpisodeSpec(f"door/train/{knocks}"), **how)


def kinds(episode: Episode) -> str:
    """The first letters of the kinds of its turns, and a bar where a trial begins."""
    trials = itertools.groupby(episode.turns, lambda turn: turn.trial)
    return "|".join("".join(turn.kind[0] for turn in turns) for _, turns in trials)


# What hypothesis thinks up.


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(habits=HABITS, knocks=st.integers(1, 5), horizon=st.integers(1, 9), seed=st.integers(0, 99))
def test_what_was_played_is_replayed(
    door: gymnasium.Env[str, str], habits: Scaffold, knocks: int, horizon: int, seed: int
) -> None:
    def gamble(seat: TurnContext) -> str | Reply:
        drawn = seat.rng.random()
        return (
            Reply("half a", "length")
            if drawn < 0.02
            else "no\nsuch thing"
            if drawn < 0.2
            else "knock"
            if drawn < 0.9
            else "open"
        )

    talker = Talker(gamble)
    agent = Agent("bare", habits)
    episode = play(agent.wrap(door), talker, EpisodeSpec(f"door/train/{knocks}", seed=seed), horizon=horizon)
    check_conversations(episode, talker.seen)
    check_window(episode, habits)
    check_rewards(episode, horizon)
    assert Agent.parse(episode.agent) == agent


def check_window(episode: Episode, habits: Scaffold) -> None:
    """An action is chosen with so many in sight and no more, and with half of them at least."""
    number = trial = 0
    for conversation, turn in replay(episode):
        number, trial = (number if turn.trial == trial else 0), turn.trial
        if turn.kind == "act":
            in_sight = sum(m.role == "assistant" and not m.content[-1:].isdigit() for m in conversation)
            least, most = (habits.window // 2, habits.window) if habits.window else (number, number)
            assert min(least, number) <= in_sight <= most
            number += 1


def check_rewards(episode: Episode, horizon: int) -> None:
    """They sum to the score, whatever earlier trials had earned; each trial has its horizon."""
    assert sum(turn.reward for turn in episode.turns) == pytest.approx(episode.score)
    acts = Counter(turn.trial for turn in episode.turns if turn.kind == "act")
    assert max(acts.values(), default=0) <= horizon
    for turn in episode.turns:
        assert turn.kind == "act" or (turn.action is None and turn.valid)


# One habit after the other.


def test_without_habits_all_is_remembered_and_nothing_is_asked() -> None:
    dialogue = ConversationBuilder(Scaffold(), "Do it.")
    assert dialogue.listens
    for said in "ab":
        dialogue.saw(said)
        assert (dialogue.kind, dialogue.listens) == ("act", False)
        dialogue.said(said.upper())
    dialogue.saw("c")
    texts = [(message.role[0], message.content) for message in dialogue.conversation]
    assert texts == [("s", "Do it."), ("u", "a"), ("a", "A"), ("u", "b"), ("a", "B"), ("u", "c")]
    assert not dialogue.over("d")


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
def test_each_habit_has_its_time(door: gymnasium.Env[str, str], habits: str, expected: str) -> None:
    talker = knocks_then_opens(5)
    episode = game(door, habits, talker, knocks=5)
    assert kinds(episode) == expected
    assert (episode.success, episode.acts) == (True, 6)
    check_conversations(episode, talker.seen)


def test_questions_are_joined_to_what_has_just_been_seen(door: gymnasium.Env[str, str]) -> None:
    talker = knocks_then_opens(3)
    game(door, "+plan:2", talker)
    plan, act, _, anew, _, _ = [conversation for conversation, _ in talker.seen]
    assert plan[-1].content.startswith("Knock 3 times.\n\nBefore you act, write down your plan")
    assert act[-2:] == (Message("assistant", "plan 1"), Message("user", "Now go on with your next action."))
    assert anew[-1].content.startswith("You knocked 2 times.\n\nWrite down your plan anew")


def test_a_turn_that_is_no_action_costs_nothing_and_has_a_state_of_its_own(door: gymnasium.Env[str, str]) -> None:
    episode = game(door, "+plan", knocks_then_opens(3))
    plan, act = episode.turns[:2]
    assert (plan.action, plan.valid, plan.reward, plan.observation) == (None, True, 0.0, "Knock 3 times.")
    assert (act.observation, plan.state_key) == (plan.observation, f"{act.state_key} plan")
    assert game(door, "+plan", knocks_then_opens(3), horizon=4).success  # of actions


def test_a_window_moves_on_in_blocks_with_all_that_is_worth_keeping(door: gymnasium.Env[str, str]) -> None:
    talker = Talker(lambda seat: f"knock {seat.acts}")
    episode = game(door, "+plan:5+reflect:5+window:4", talker, horizon=9)
    assert kinds(episode) == "paaaaarpsaaasa"
    anew = talker.seen[9][0]
    assert [message.role for message in anew] == ["system", "user", "assistant", "user", "assistant", "user"]
    head = anew[1].content
    for kept in ("1. reflect 7", "This is how it began:\nKnock 3 times.", "Your plan:\nplan 8", "words:\nsummary 9"):
        assert kept in head
    assert "plan 1" not in str(anew)
    assert (anew[2].content, anew[4].content) == ("knock 3", "knock 4")
    assert len(talker.seen[-1][0]) == len(anew)


def test_a_window_bounds_what_is_in_sight_however_often_it_looks_back(door: gymnasium.Env[str, str]) -> None:
    talker = Talker(lambda _: "knock")
    game(door, "+reflect:1+window:2", talker, horizon=40)
    sizes = [sum(len(message.content) for message in conversation) for conversation, _ in talker.seen]
    assert max(sizes) <= 1.1 * max(sizes[:20])
    notes = re.findall(r"(?m)^(\d+)\. reflect", talker.seen[-1][0][1].content)
    assert len(notes) == 3 and int(notes[0]) > 30


@pytest.mark.parametrize("due", ["plan", "reflect", "summary"])
def test_what_is_kept_is_what_was_said_and_not_what_was_thought_before(due: str) -> None:
    dialogue = ConversationBuilder(Scaffold(plan=0, reflect=1, window=1), "")
    for reply in ("plan", "act", "reflect", "act", "reflect", "summary"):
        if dialogue.listens:
            dialogue.saw("Knock.")
        assert dialogue.kind == reply
        dialogue.said(f"<think>\nHm.\n</think>\n\nMy {reply}." if reply == due else f"My {reply}.")
    (begins,) = dialogue.conversation
    assert f"My {due}." in begins.content and "Hm." not in begins.content


class Shy(Door):
    """Shows a number that it drew, and counts how often it began."""

    begun = 0

    def _start(self, task: Any) -> str:
        self.begun += 1
        return f"{super()._start(task)} Its number is {self.np_random.integers(1_000_000)}."


def opens_too_early(failures: int) -> Talker:
    """Knocks once, as is asked for, and opens; but in the first trials it opens first."""
    trials = iter([*["open"] * failures, *["knock", "open"] * 9])
    return Talker(lambda seat: next(trials))


@pytest.mark.parametrize(("failures", "expected"), [(0, "aa"), (1, "a|raa"), (2, "a|ra|raa"), (3, "a|ra|ra")])
def test_a_task_is_begun_again_until_it_is_done_or_the_tries_are_used_up(failures: int, expected: str) -> None:
    with made(Shy) as env:
        talker = opens_too_early(failures)
        episode = game(env, "+retry:2", talker, knocks=1)
        assert text_env(env).unwrapped.begun == min(failures, 2) + 1  # pyright: ignore[reportAttributeAccessIssue]
    assert (kinds(episode), episode.success, episode.stop) == (expected, failures < 3, "terminated")
    check_conversations(episode, talker.seen)


def test_each_trial_is_of_the_same_task_and_seed_and_knows_what_was_learned() -> None:
    with made(Shy) as env:
        talker = opens_too_early(2)
        episode = play(Agent.parse("bare+retry:2").wrap(env), talker, EpisodeSpec("door/train/1", seed=5))
    (first, _), (_, _), (second, _), (_, _), (third, _), _ = talker.seen
    shown = first[-1].content
    assert second[-1].content.endswith(f"1. reflect 2\n\nNow it begins again.\n\n{shown}")
    assert third[-1].content.endswith(f"1. reflect 2\n2. reflect 4\n\nNow it begins again.\n\n{shown}")
    assert len(first) == len(second) == len(third) == 2
    assert [turn.trial for turn in episode.turns] == [0, 1, 1, 2, 2, 2]


def test_a_drawn_task_is_the_same_in_each_trial(door: gymnasium.Env[str, str]) -> None:
    talker = Talker(lambda seat: "knock")
    for seed in range(5):
        episode = play(Agent.parse("bare+retry").wrap(door), talker, EpisodeSpec(seed=seed), horizon=1)
        first, _, second = episode.turns
        assert second.observation == first.observation == f"Knock {episode.difficulty} times."


def test_a_new_trial_begins_without_what_the_last_one_earned(door: gymnasium.Env[str, str]) -> None:
    episode = game(door, "+retry", Talker(lambda seat: "knock"), knocks=2, horizon=2)
    assert [turn.reward for turn in episode.turns] == [0.0, 0.5, -0.5, 0.0, 0.5]
    assert (episode.score, episode.success, episode.stop, episode.acts) == (0.5, False, "truncated", 4)
    assert episode.turns[2].observation == "You knocked 2 times."


def test_a_look_back_that_is_cut_off_leaves_the_trial_as_it_was(door: gymnasium.Env[str, str]) -> None:
    class Cut(Talker):
        async def reply(self, context: TurnContext) -> Reply:
            reply = await super().reply(context)
            return Reply("half a", "length") if context.kind == "reflect" else reply

    talker = Cut(lambda seat: "knock")
    episode = game(door, "+retry", talker, knocks=1, horizon=1)
    assert (kinds(episode), episode.stop, episode.score) == ("a|r", "length", 0.5)
    assert [turn.reward for turn in episode.turns] == [0.5, 0.0]
    check_conversations(episode, talker.seen)


def test_a_fault_in_a_later_trial_begins_all_of_it_again() -> None:
    class Jammed(Shy):
        def _start(self, task: Any) -> str:
            shown = super()._start(task)
            if self.begun == 2:
                raise EnvFault("the hinge broke")
            return shown

    def played(retries: int) -> Episode:
        with made(Jammed) as env:
            return game(env, "+retry", Talker(lambda seat: "open"), knocks=1, retries=retries)

    assert kinds(played(1)) == "a|ra"
    failed = played(0)
    assert (kinds(failed), failed.stop, failed.score) == ("a|r", "failed", None)
    assert len(list(replay(failed))) == 2


# Recorded elsewhere.


def recorded(door: gymnasium.Env[str, str]) -> Episode:
    return game(door, "+plan+retry", opens_too_early(1), knocks=1)


def test_turns_that_the_world_does_not_answer_are_part_of_the_conversation(door: gymnasium.Env[str, str]) -> None:
    episode = play(Bare(door, instructions=""), knocks_then_opens(1), EpisodeSpec("door/train/1"))
    hello = Turn("You are to knock.", Reply("OK."), None, True, 0.0, "", kind="talk", loss=False)
    (first, _), (second, _), (third, _) = replay(dataclasses.replace(episode, turns=(hello, *episode.turns), agent=""))
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
def test_turns_of_another_agent_are_refused(door: gymnasium.Env[str, str], agent: str, complaint: str) -> None:
    episode = dataclasses.replace(recorded(door), agent=agent)
    with pytest.raises(ValueError, match=complaint):
        list(replay(episode))


def test_forms_of_others_are_replayed_by_their_habits(door: gymnasium.Env[str, str]) -> None:
    episode = recorded(door)
    assert list(replay(dataclasses.replace(episode, agent="mine+plan+retry"))) == list(replay(episode))


def test_the_conversation_of_an_agent_with_instructions_begins_with_them(door: gymnasium.Env[str, str]) -> None:
    episode = play(ReAct(door), Talker(lambda seat: "Action: open"), EpisodeSpec("door/train/0"))
    ((conversation, _),) = replay(episode)
    expected: Conversation = (Message("system", ReAct(door).instructions), Message("user", "Knock 0 times."))
    assert conversation == expected
