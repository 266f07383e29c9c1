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
from counting_policy import Counter, Entry
from counting_world import ENV, Count
from fake_endpoint import said, serving
from patience import eventually_async


def asked(goal: int | str = 3, **settings: Any) -> PlaySettings:
    return PlaySettings(env=ENV, policy="human", task=(f"count/test/{goal}",), **settings)


async def until(session: Session, holds: Callable[[Session], bool]) -> None:
    await eventually_async(lambda: holds(session))


def idle(session: Session) -> bool:
    return not session.state.playing


def test_a_person_s_actions_become_an_episode_like_any_other() -> None:
    game = Game(asked(1))
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


def test_a_game_that_is_left_keeps_what_was_played_and_counts_as_cut_short() -> None:
    game = Game(asked())
    game.reply("add")
    game.leave()
    episode = game.state().episode
    assert (episode.stop, episode.score, len(episode.turns)) == ("truncated", 0.0, 1)
    assert episode.final_observation == "Count: 1."


def test_what_else_an_agent_is_asked_is_asked_of_a_person_too() -> None:
    game = Game(asked(0, agent="react+plan"))
    assert game.state().reply_kind == "plan"
    assert "write down your plan" in game.state().prompt
    game.reply("I stop at once.")
    game.reply("stop")
    assert [turn.kind for turn in game.state().episode.turns] == ["plan", "act"]
    assert game.state().episode.turns[0].reply.text == "I stop at once."


def test_a_task_can_be_named_by_its_number_or_drawn() -> None:
    numbered = PlaySettings(env=ENV, policy="human", task=("7",), split="test")
    assert Game(numbered).state().episode.task_id == "count/test/7"
    drawn = {Game(PlaySettings(env=ENV, policy="human", split="train")).state().episode.task_id for _ in range(40)}
    assert len(drawn) > 1
    assert all(task_id.startswith("count/train/") for task_id in drawn)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        (asked("99"), "no task"),
        (PlaySettings(env=ENV, policy="human", task=("10",), split="test"), "10 test tasks"),
        (PlaySettings(env=ENV, policy="human", split="dev"), "no dev tasks"),
        (PlaySettings(env="textkraft", policy="human"), "Did you mean"),
        (asked(agent="reakt"), "no agent"),
        (asked(options=("colour=1",)), "colour"),
    ],
)
def test_what_cannot_be_played_is_said_in_a_sentence(settings: PlaySettings, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        Game(settings)


def test_a_world_that_does_not_come_up_is_no_game() -> None:
    with pytest.raises(EnvFault, match="jammed"):
        Game(asked(3, options=("broken=(3,)",)))


def test_a_policy_goes_on_from_where_the_person_was() -> None:
    async def played() -> Session:
        session = await Session.open(asked(3))
        await session.reply("add")
        await session.hand_over("oracle", turns=1)
        await until(session, idle)
        assert not session.state.game.over
        await session.hand_over("oracle")
        await until(session, lambda session: session.state.game.over and idle(session))
        session.close()
        return session

    state = asyncio.run(played()).state.game
    assert (state.episode.policy, state.episode.success) == ("human+oracle", True)
    assert state.replied_by == ("human", "oracle", "oracle", "oracle")
    assert state.episode.acts == 4


def test_a_player_is_asked_with_the_whole_conversation_and_closed_at_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []

    async def thinking(seat: Any) -> None:
        seen.append(len(seat.conversation))

    player = Counter(thinking)
    monkeypatch.setattr(policies, "entry_points", lambda group: [Entry(player)])

    async def played() -> Session:
        session = await Session.open(asked(1))
        await session.reply("add")
        await session.hand_over("counter")
        await until(session, lambda session: session.state.game.over and idle(session))
        session.close()
        return session

    session = asyncio.run(played())
    assert session.state.game.episode.policy == "human+counter"
    assert seen[0] == 4  # instructions, what the world showed, the person's reply, what came of it
    assert player.closed == 1
    assert not player.live


def test_a_policy_that_thinks_for_ever_can_be_stopped_and_meanwhile_nobody_else_plays(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def never(seat: Any) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr(policies, "entry_points", lambda group: [Entry(Counter(never))])

    async def played() -> Session:
        session = await Session.open(asked(1))
        await session.hand_over("counter")
        await session.reply("add")
        assert "stop it first" in session.state.notice
        assert session.state.playing == "counter"
        await session.stop()
        assert (session.state.playing, session.state.notice) == ("", "")
        await session.reply("add")
        session.close()
        return session

    assert [turn.action for turn in asyncio.run(played()).state.game.episode.turns] == ["add"]


def test_a_policy_that_is_being_loaded_can_be_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    loaded = threading.Event()

    class Heavy:
        name = "counter"

        def load(self) -> Any:
            loaded.wait()
            return lambda argument, **settings: Counter()

    monkeypatch.setattr(policies, "entry_points", lambda group: [Heavy()])

    async def played() -> None:
        session = await Session.open(asked(1))
        await session.hand_over("counter")
        await session.stop()
        assert not session.state.playing
        loaded.set()
        await session.reply("add")
        assert session.state.game.episode.policy == "human"
        session.close()

    asyncio.run(played())


def test_a_model_behind_an_endpoint_goes_on_with_the_address_and_key_of_the_environment() -> None:
    with serving(lambda request: said("Thought: Enough.\nAction: stop")) as endpoint:
        environment = {"OPENAI_BASE_URL": endpoint.base_url, "OPENAI_API_KEY": "secret"}

        async def played() -> Session:
            session = await Session.open(asked(1), environment)
            await session.reply("add")
            await session.hand_over("openai:tiny-1", temperature=0.5)
            await until(session, lambda session: session.state.game.over and idle(session))
            session.close()
            return session

        episode = asyncio.run(played()).state.game.episode
    assert (episode.policy, episode.success) == ("human+openai:tiny-1", True)
    (request,) = endpoint.asked
    assert (request["temperature"], len(request["messages"])) == (0.5, 4)
    assert endpoint.keys == ["Bearer secret"]


@pytest.mark.parametrize(
    ("spec", "words"),
    [("orakle", "Did you mean oracle"), ("scripted:nowhere.txt", "can't be read"), ("counter", "failed: ZeroDivision")],
)
def test_a_policy_that_cannot_play_leaves_the_game_to_the_person(
    spec: str, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def broken(seat: Any) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(policies, "entry_points", lambda group: [Entry(Counter(broken))])

    async def played() -> str:
        session = await Session.open(asked(0))
        await session.hand_over(spec)
        await until(session, idle)
        notice = session.state.notice
        await session.reply("stop")
        assert session.state.game.episode.success
        session.close()
        return notice

    assert words in asyncio.run(played())


def test_a_game_that_nobody_plays_is_left() -> None:
    async def played() -> bool:
        session = await Session.open(asked(), idle=0.02)
        await until(session, lambda session: session.state.game.over)
        session.close()
        return session.state.game.episode.stop == "truncated"

    assert asyncio.run(played())


def test_only_so_many_games_are_under_way_and_closing_ends_them_all(tmp_path: Path) -> None:
    async def played() -> None:
        manager = SessionManager(tmp_path, most=2)
        keys = [await manager.open(asked(goal)) for goal in (0, 1)]
        with pytest.raises(UsageError, match="2 games are in progress"):
            await manager.open(asked(2))
        await manager.sessions[keys[0]].leave()
        await manager.open(asked(2))
        sessions = list(manager.sessions.values())
        await manager.close()
        assert all(session.state.game.over for session in sessions)

    asyncio.run(played())


def test_games_that_cannot_be_opened_take_no_place(tmp_path: Path) -> None:
    async def played() -> None:
        manager = SessionManager(tmp_path, most=1)
        with pytest.raises(UsageError, match="no task"):
            await manager.open(asked(99))
        await manager.open(asked(1))
        await manager.close()

    asyncio.run(played())


def test_saved_games_are_a_run_folder_in_which_attempts_are_numbered(tmp_path: Path) -> None:
    async def played() -> set[Path]:
        manager, folders = SessionManager(tmp_path), set[Path]()
        for _ in range(2):
            key = await manager.open(asked(0))
            with pytest.raises(UsageError, match="still in progress"):
                await manager.save(key)
            await manager.sessions[key].reply("stop")
            folders |= {await manager.save(key), await manager.save(key)}
        await manager.close()
        return folders

    (folder,) = asyncio.run(played())
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


def test_a_world_that_hangs_does_not_keep_the_server_from_ending(monkeypatch: pytest.MonkeyPatch) -> None:
    asked_for, answer = threading.Event(), threading.Event()

    def held(world: Count, action: str) -> Feedback:
        asked_for.set()
        answer.wait()
        return Feedback("At last.")

    monkeypatch.setattr(Count, "_act", held)
    monkeypatch.setattr("agentgym_eval.viewer.playing.session._CLOSE_TIMEOUT_S", 0.05)

    async def played() -> None:
        session = await Session.open(asked(0))
        playing = asyncio.create_task(session.reply("stop"))
        await asyncio.to_thread(asked_for.wait)
        await asyncio.to_thread(session.close)
        assert not playing.done()
        answer.set()
        await playing

    asyncio.run(played())
