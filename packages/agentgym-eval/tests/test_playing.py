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
from agentgym_eval.viewer.playing.table import Table
from counting_player import Counter, Entry
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
    game.say("add", "One is enough.")
    game.say("jump")
    standing = game.standing()
    assert (standing.over, standing.asked, standing.actions) == (False, "Say `add` or `stop`.", ("add", "stop"))
    game.say("stop")
    episode = game.standing().episode
    assert (episode.policy, episode.stop, episode.success, episode.agent) == ("human", "terminated", True, "react")
    assert episode.turns[0].reply.text == "Thought: One is enough.\nAction: add"
    assert [turn.valid for turn in episode.turns] == [True, False, True]
    assert len(list(replay(episode))) == 3
    with pytest.raises(UsageError, match="is over"):
        game.say("add")


def test_a_game_that_is_left_keeps_what_was_played_and_counts_as_cut_short() -> None:
    game = Game(asked())
    game.say("add")
    game.leave()
    episode = game.standing().episode
    assert (episode.stop, episode.score, len(episode.turns)) == ("truncated", 0.0, 1)
    assert episode.final_observation == "Count: 1."


def test_what_else_an_agent_is_asked_is_asked_of_a_person_too() -> None:
    game = Game(asked(0, agent="react+plan"))
    assert game.standing().wants == "plan"
    assert "write down your plan" in game.standing().asked
    game.say("I stop at once.")
    game.say("stop")
    assert [turn.kind for turn in game.standing().episode.turns] == ["plan", "act"]
    assert game.standing().episode.turns[0].reply.text == "I stop at once."


def test_a_task_can_be_named_by_its_number_or_drawn() -> None:
    numbered = PlaySettings(env=ENV, policy="human", task=("7",), split="test")
    assert Game(numbered).standing().episode.task_id == "count/test/7"
    drawn = {Game(PlaySettings(env=ENV, policy="human", split="train")).standing().episode.task_id for _ in range(40)}
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
        await session.say("add")
        await session.go_on("oracle", turns=1)
        await until(session, idle)
        assert not session.state.standing.over
        await session.go_on("oracle")
        await until(session, lambda session: session.state.standing.over and idle(session))
        session.close()
        return session

    standing = asyncio.run(played()).state.standing
    assert (standing.episode.policy, standing.episode.success) == ("human+oracle", True)
    assert standing.by == ("human", "oracle", "oracle", "oracle")
    assert standing.episode.acts == 4


def test_a_player_is_asked_with_the_whole_conversation_and_closed_at_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []

    async def thinking(seat: Any) -> None:
        seen.append(len(seat.conversation))

    player = Counter(thinking)
    monkeypatch.setattr(policies, "entry_points", lambda group: [Entry(player)])

    async def played() -> Session:
        session = await Session.open(asked(1))
        await session.say("add")
        await session.go_on("counter")
        await until(session, lambda session: session.state.standing.over and idle(session))
        session.close()
        return session

    session = asyncio.run(played())
    assert session.state.standing.episode.policy == "human+counter"
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
        await session.go_on("counter")
        await session.say("add")
        assert "stop it first" in session.state.notice
        assert session.state.playing == "counter"
        await session.stop()
        assert (session.state.playing, session.state.notice) == ("", "")
        await session.say("add")
        session.close()
        return session

    assert [turn.action for turn in asyncio.run(played()).state.standing.episode.turns] == ["add"]


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
        await session.go_on("counter")
        await session.stop()
        assert not session.state.playing
        loaded.set()
        await session.say("add")
        assert session.state.standing.episode.policy == "human"
        session.close()

    asyncio.run(played())


def test_a_model_behind_an_endpoint_goes_on_with_the_address_and_key_of_the_environment() -> None:
    with serving(lambda request: said("Thought: Enough.\nAction: stop")) as endpoint:
        environment = {"OPENAI_BASE_URL": endpoint.base_url, "OPENAI_API_KEY": "secret"}

        async def played() -> Session:
            session = await Session.open(asked(1), environment)
            await session.say("add")
            await session.go_on("openai:tiny-1", temperature=0.5)
            await until(session, lambda session: session.state.standing.over and idle(session))
            session.close()
            return session

        episode = asyncio.run(played()).state.standing.episode
    assert (episode.policy, episode.success) == ("human+openai:tiny-1", True)
    (request,) = endpoint.asked
    assert (request["temperature"], len(request["messages"])) == (0.5, 4)
    assert endpoint.keys == ["Bearer secret"]


@pytest.mark.parametrize(
    ("spec", "words"),
    [("orakle", "Did you mean oracle"), ("scripted:nowhere.txt", "can't be read"), ("counter", "broke: ZeroDivision")],
)
def test_a_policy_that_cannot_play_leaves_the_game_to_the_person(
    spec: str, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def broken(seat: Any) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(policies, "entry_points", lambda group: [Entry(Counter(broken))])

    async def played() -> str:
        session = await Session.open(asked(0))
        await session.go_on(spec)
        await until(session, idle)
        notice = session.state.notice
        await session.say("stop")
        assert session.state.standing.episode.success
        session.close()
        return notice

    assert words in asyncio.run(played())


def test_a_game_that_nobody_plays_is_left() -> None:
    async def played() -> bool:
        session = await Session.open(asked(), idle=0.02)
        await until(session, lambda session: session.state.standing.over)
        session.close()
        return session.state.standing.episode.stop == "truncated"

    assert asyncio.run(played())


def test_only_so_many_games_are_under_way_and_closing_ends_them_all(tmp_path: Path) -> None:
    async def played() -> None:
        table = Table(tmp_path, most=2)
        keys = [await table.open(asked(goal)) for goal in (0, 1)]
        with pytest.raises(UsageError, match="2 games are under way"):
            await table.open(asked(2))
        await table.sessions[keys[0]].leave()
        await table.open(asked(2))
        sessions = list(table.sessions.values())
        await table.close()
        assert all(session.state.standing.over for session in sessions)

    asyncio.run(played())


def test_games_that_cannot_be_opened_take_no_place(tmp_path: Path) -> None:
    async def played() -> None:
        table = Table(tmp_path, most=1)
        with pytest.raises(UsageError, match="no task"):
            await table.open(asked(99))
        await table.open(asked(1))
        await table.close()

    asyncio.run(played())


def test_saved_games_are_a_run_folder_in_which_attempts_are_numbered(tmp_path: Path) -> None:
    async def played() -> set[Path]:
        table, folders = Table(tmp_path), set[Path]()
        for _ in range(2):
            key = await table.open(asked(0))
            with pytest.raises(UsageError, match="still under way"):
                await table.save(key)
            await table.sessions[key].say("stop")
            folders |= {await table.save(key), await table.save(key)}
        await table.close()
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
    monkeypatch.setattr("agentgym_eval.viewer.playing.session._PARTING", 0.05)

    async def played() -> None:
        session = await Session.open(asked(0))
        playing = asyncio.create_task(session.say("stop"))
        await asyncio.to_thread(asked_for.wait)
        await asyncio.to_thread(session.close)
        assert not playing.done()
        answer.set()
        await playing

    asyncio.run(played())
