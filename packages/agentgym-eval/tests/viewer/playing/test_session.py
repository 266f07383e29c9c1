"""Tests of playing sessions: games of a person, policies that take over, and saving."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from agentgym_envs import EnvFault, Feedback, read_episodes
from agentgym_envs.episodes.conversation import replay
from agentgym_eval.policies import policies
from agentgym_eval.runs.settings import PlaySettings
from agentgym_eval.util.errors import UsageError
from agentgym_eval.viewer.playing.game import Game
from agentgym_eval.viewer.playing.session import Session
from agentgym_eval.viewer.playing.table import SessionManager
from counting_policy import CountingPolicy, FakeEntryPoint
from counting_world import ENV, Count
from fake_endpoint import completion_answer, serve_endpoint
from patience import eventually_async


def game_settings(goal: int | str = 3, **settings: Any) -> PlaySettings:
    return PlaySettings(env=ENV, policy="human", task=(f"count/test/{goal}",), **settings)


async def wait_until(session: Session, condition: Callable[[Session], bool]) -> None:
    await eventually_async(lambda: condition(session))


def is_idle(session: Session) -> bool:
    return not session.state.playing


def test_actions_of_a_person_become_an_episode() -> None:
    game = Game(game_settings(1))
    game.reply("add", "One is enough.")
    game.reply("jump")
    state = game.state()
    assert (state.over, state.prompt, state.available_actions) == (False, "Say `add` or `stop`.", ("add", "stop"))
    game.reply("stop")
    episode = game.state().episode
    assert (episode.policy, episode.stop, episode.success, episode.agent) == ("human", "terminated", True, "react")
    assert episode.turns[0].reply.text == "Thought: One is enough.\nAction: add"
    assert [turn.valid for turn in episode.turns] == [True, False, True]
    assert len(list(replay(episode))) == 3
    with pytest.raises(UsageError, match="is over"):
        game.reply("add")


def test_abandoned_game_is_a_truncated_episode() -> None:
    game = Game(game_settings())
    game.reply("add")
    game.leave()
    episode = game.state().episode
    assert (episode.stop, episode.score, len(episode.turns)) == ("truncated", 0.0, 1)
    assert episode.final_observation == "Count: 1."


def test_person_is_prompted_for_plans_as_well() -> None:
    game = Game(game_settings(0, agent="react+plan"))
    assert game.state().reply_kind == "plan"
    assert "write down your plan" in game.state().prompt
    game.reply("I stop at once.")
    game.reply("stop")
    assert [turn.kind for turn in game.state().episode.turns] == ["plan", "act"]
    assert game.state().episode.turns[0].reply.text == "I stop at once."


def test_task_is_chosen_by_number_or_at_random() -> None:
    numbered = PlaySettings(env=ENV, policy="human", task=("7",), split="test")
    assert Game(numbered).state().episode.task_id == "count/test/7"
    task_ids = {Game(PlaySettings(env=ENV, policy="human", split="train")).state().episode.task_id for _ in range(40)}
    assert len(task_ids) > 1
    assert all(task_id.startswith("count/train/") for task_id in task_ids)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (game_settings("99"), "no task"),
        (PlaySettings(env=ENV, policy="human", task=("10",), split="test"), "10 test tasks"),
        (PlaySettings(env=ENV, policy="human", split="dev"), "no dev tasks"),
        (PlaySettings(env="textkraft", policy="human"), "Did you mean"),
        (game_settings(agent="reakt"), "no agent"),
        (game_settings(options=("colour=1",)), "colour"),
    ],
)
def test_invalid_settings_are_one_sentence_errors(settings: PlaySettings, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        Game(settings)


def test_env_fault_at_reset_opens_no_game() -> None:
    with pytest.raises(EnvFault, match="jammed"):
        Game(game_settings(3, options=("broken=(3,)",)))


def test_policy_continues_the_game_of_a_person() -> None:
    async def run_session() -> Session:
        session = await Session.open(game_settings(3))
        await session.reply("add")
        await session.hand_over("oracle", turns=1)
        await wait_until(session, is_idle)
        assert not session.state.game.over
        await session.hand_over("oracle")
        await wait_until(session, lambda session: session.state.game.over and is_idle(session))
        session.close()
        return session

    state = asyncio.run(run_session()).state.game
    assert (state.episode.policy, state.episode.success) == ("human+oracle", True)
    assert state.replied_by == ("human", "oracle", "oracle", "oracle")
    assert state.episode.acts == 4


def test_policy_gets_the_whole_conversation_and_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    conversation_lengths: list[int] = []

    async def record(context: Any) -> None:
        conversation_lengths.append(len(context.conversation))

    policy = CountingPolicy(record)
    monkeypatch.setattr(policies, "entry_points", lambda group: [FakeEntryPoint(policy)])

    async def run_session() -> Session:
        session = await Session.open(game_settings(1))
        await session.reply("add")
        await session.hand_over("counter")
        await wait_until(session, lambda session: session.state.game.over and is_idle(session))
        session.close()
        return session

    session = asyncio.run(run_session())
    assert session.state.game.episode.policy == "human+counter"
    assert conversation_lengths[0] == 4  # instructions, observation, the person's reply, observation
    assert policy.close_count == 1
    assert not policy.active


def test_blocked_policy_can_be_stopped_and_excludes_other_replies(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def block(context: Any) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr(policies, "entry_points", lambda group: [FakeEntryPoint(CountingPolicy(block))])

    async def run_session() -> Session:
        session = await Session.open(game_settings(1))
        await session.hand_over("counter")
        await session.reply("add")
        assert "stop it first" in session.state.notice
        assert session.state.playing == "counter"
        await session.stop()
        assert (session.state.playing, session.state.notice) == ("", "")
        await session.reply("add")
        session.close()
        return session

    assert [turn.action for turn in asyncio.run(run_session()).state.game.episode.turns] == ["add"]


def test_policy_can_be_stopped_while_it_is_loading(monkeypatch: pytest.MonkeyPatch) -> None:
    release = threading.Event()

    class SlowEntryPoint:
        name = "counter"

        def load(self) -> Any:
            release.wait()
            return lambda argument, **settings: CountingPolicy()

    monkeypatch.setattr(policies, "entry_points", lambda group: [SlowEntryPoint()])

    async def run_session() -> None:
        session = await Session.open(game_settings(1))
        await session.hand_over("counter")
        await session.stop()
        assert not session.state.playing
        release.set()
        await session.reply("add")
        assert session.state.game.episode.policy == "human"
        session.close()

    asyncio.run(run_session())


def test_endpoint_policy_uses_base_url_and_key_of_the_environment() -> None:
    with serve_endpoint(lambda request: completion_answer("Thought: Enough.\nAction: stop")) as endpoint:
        environment = {"OPENAI_BASE_URL": endpoint.base_url, "OPENAI_API_KEY": "secret"}

        async def run_session() -> Session:
            session = await Session.open(game_settings(1), environment)
            await session.reply("add")
            await session.hand_over("openai:tiny-1", temperature=0.5)
            await wait_until(session, lambda session: session.state.game.over and is_idle(session))
            session.close()
            return session

        episode = asyncio.run(run_session()).state.game.episode
    assert (episode.policy, episode.success) == ("human+openai:tiny-1", True)
    (request,) = endpoint.requests
    assert (request["temperature"], len(request["messages"])) == (0.5, 4)
    assert endpoint.keys == ["Bearer secret"]


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("orakle", "Did you mean oracle"),
        ("scripted:nowhere.txt", "can't be read"),
        ("counter", "The policy counter raised ZeroDivisionError (test_session.py, line"),
    ],
)
def test_failing_policy_returns_control_to_the_person(spec: str, message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async def fail(context: Any) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(policies, "entry_points", lambda group: [FakeEntryPoint(CountingPolicy(fail))])

    async def run_session() -> str:
        session = await Session.open(game_settings(0))
        await session.hand_over(spec)
        await wait_until(session, is_idle)
        notice = session.state.notice
        await session.reply("stop")
        assert session.state.game.episode.success
        session.close()
        return notice

    assert message in asyncio.run(run_session())


def test_idle_game_is_abandoned() -> None:
    async def run_session() -> bool:
        session = await Session.open(game_settings(), idle=0.02)
        await wait_until(session, lambda session: session.state.game.over)
        session.close()
        return session.state.game.episode.stop == "truncated"

    assert asyncio.run(run_session())


def test_number_of_games_is_limited_and_close_ends_all(tmp_path: Path) -> None:
    async def run_session() -> None:
        manager = SessionManager(tmp_path, most=2)
        keys = [await manager.open(game_settings(goal)) for goal in (0, 1)]
        with pytest.raises(UsageError, match="2 games are in progress"):
            await manager.open(game_settings(2))
        await manager.sessions[keys[0]].leave()
        await manager.open(game_settings(2))
        sessions = list(manager.sessions.values())
        await manager.close()
        assert all(session.state.game.over for session in sessions)

    asyncio.run(run_session())


def test_failed_games_do_not_count_towards_the_limit(tmp_path: Path) -> None:
    async def run_session() -> None:
        manager = SessionManager(tmp_path, most=1)
        with pytest.raises(UsageError, match="no task"):
            await manager.open(game_settings(99))
        await manager.open(game_settings(1))
        await manager.close()

    asyncio.run(run_session())


def test_saved_games_form_a_run_folder_with_numbered_attempts(tmp_path: Path) -> None:
    async def run_session() -> set[Path]:
        manager, folders = SessionManager(tmp_path), set[Path]()
        for _ in range(2):
            key = await manager.open(game_settings(0))
            with pytest.raises(UsageError, match="still in progress"):
                await manager.save(key)
            await manager.sessions[key].reply("stop")
            folders |= {await manager.save(key), await manager.save(key)}
        await manager.close()
        return folders

    (folder,) = asyncio.run(run_session())
    assert folder == tmp_path / "played" / "count-react-test-seed-0"
    assert [episode.sample for episode in read_episodes(folder / "episodes.jsonl")] == [0, 1]
    run = json.loads((folder / "run.json").read_text())
    assert run["schema"] == "agentgym.run/1"
    assert {name: run["settings"][name] for name in ("env", "policy", "seed", "options")} == {
        "env": "counting/Count-v0",
        "policy": "human",
        "seed": 0,
        "options": [],
    }


def test_hanging_environment_does_not_block_close(monkeypatch: pytest.MonkeyPatch) -> None:
    entered, release = threading.Event(), threading.Event()

    def blocking_act(env: Count, action: str) -> Feedback:
        entered.set()
        release.wait()
        return Feedback("At last.")

    monkeypatch.setattr(Count, "_act", blocking_act)
    monkeypatch.setattr("agentgym_eval.viewer.playing.session._CLOSE_TIMEOUT_S", 0.05)

    async def run_session() -> None:
        session = await Session.open(game_settings(0))
        reply = asyncio.create_task(session.reply("stop"))
        await asyncio.to_thread(entered.wait)
        await asyncio.to_thread(session.close)
        assert not reply.done()
        release.set()
        await reply

    asyncio.run(run_session())
