"""Tests of the habit `pictures`, which gives each of the newest observations its screenshot."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from agentgym_envs import Conversation, Episode, EpisodeSpec, play, play_many
from agentgym_envs.agents.agent import Agent
from agentgym_envs.agents.scaffold import Scaffold
from agentgym_envs.episodes.conversation import replay
from agentgym_envs.episodes.policy import estimate_tokens
from agentgym_envs.util.images import pixels
from agentgym_envs.util.screenshots import ScreenshotStore, element_boxes
from door_world import Door, registered_env
from recording_policy import RecordingPolicy


class PicturedDoor(Door):
    """Its screenshot is one pixel per knock, and one for the door."""

    def _info(self) -> dict[str, Any]:
        screenshot = np.full((2, self.knocks + 1, 3), 10 * self.knocks, np.uint8)
        return super()._info() | {"screenshot": screenshot, "element_boxes": {"1": [0, 0, 1, 2]}}


@pytest.fixture
def door() -> Iterator[gymnasium.Env[str, str]]:
    with registered_env(PicturedDoor) as env:
        yield env


def play_door(
    env: gymnasium.Env[str, str], agent: str, *, store: ScreenshotStore | None = None, horizon: int = 4
) -> tuple[Episode, list[Conversation]]:
    """Knock until the horizon, and return the episode and the conversations that the policy got."""
    policy = RecordingPolicy(lambda _: "knock")
    specs = [EpisodeSpec("door/train/5")]
    (episode,) = play_many(Agent.parse(agent).wrap(env), policy, specs, horizon=horizon, pictures=store)
    return episode, [conversation for conversation, _ in policy.seen]


def widths(conversation: Conversation) -> list[int | None]:
    """Return the widths of the pictures of the user messages."""
    return [
        pixels(message.picture.png).shape[1] if message.picture else None
        for message in conversation
        if message.role == "user"
    ]


@pytest.mark.parametrize(
    ("agent", "expected"),
    [
        ("bare", [[None], [None] * 2, [None] * 3, [None] * 4]),
        ("bare+pictures:1", [[1], [None, 2], [None, None, 3], [None, None, None, 4]]),
        ("bare+pictures", [[1], [1, 2], [None, 2, 3], [None, None, 3, 4]]),
        ("bare+pictures:9", [[1], [1, 2], [1, 2, 3], [1, 2, 3, 4]]),
    ],
)
def test_the_newest_observations_have_their_pictures(
    door: gymnasium.Env[str, str], agent: str, expected: list[list[int | None]]
) -> None:
    episode, seen = play_door(door, agent)
    assert list(map(widths, seen)) == expected
    assert episode.agent == agent
    plain, text = play_door(door, "bare")
    assert [[replace(message, picture=None) for message in each] for each in seen] == [list(each) for each in text]
    assert [turn.observation for turn in episode.turns] == [turn.observation for turn in plain.turns]


@pytest.mark.parametrize(
    ("agent", "expected"),
    [
        # A plan is asked for with the observation; the action follows in the same conversation.
        ("bare+plan+pictures:1", [[1], [1, None], [None, None, 2]]),
        # The summary of the third turn is followed by a conversation of the last action only.
        ("bare+window:1+pictures:2", [[1], [1, 2], [None, 2, 3], [3], [3, 4]]),
        # After two actions there would be three in a context of two; one is kept, with its picture.
        ("bare+window:2+pictures:2", [[1], [1, 2], [None, 2, 3], [None, None, 3, 4], [3, 4]]),
    ],
)
def test_pictures_stay_with_their_observations(
    door: gymnasium.Env[str, str], agent: str, expected: list[list[int | None]]
) -> None:
    _, seen = play_door(door, agent, horizon=5)
    assert list(map(widths, seen))[: len(expected)] == expected


def test_episode_refers_to_stored_pictures(door: gymnasium.Env[str, str], tmp_path: Path) -> None:
    store = ScreenshotStore(tmp_path / "pictures")
    episode, _ = play_door(door, "bare+pictures", store=store)
    restored = Episode.from_json(episode.to_json())
    assert restored == episode
    digests = [*(turn.picture for turn in restored.turns), restored.final_picture]
    paths = [store.get(digest) for digest in digests]
    assert [pixels(path.read_bytes()).shape[1] for path in paths if path] == [1, 2, 3, 4, 5]
    places = element_boxes(paths[2]) if paths[2] else None
    assert places is not None and (places.width, places.height, places.boxes["1"]) == (3, 2, (0.0, 0.0, 1.0, 2.0))
    assert len(list(store.folder.glob("*.png"))) == 5
    assert "base64" not in episode.to_json()


def test_replay_has_the_pictures_that_the_policy_got(door: gymnasium.Env[str, str]) -> None:
    for agent in ("bare+pictures", "bare+pictures:1+plan:2+window:2", "bare+retry+pictures"):
        episode, seen = play_door(door, agent)
        assert [conversation for conversation, _ in replay(episode, pictures=True)] == seen
        without = [conversation for conversation, _ in replay(episode)]
        assert all(message.picture is None for conversation in without for message in conversation)


def test_episodes_of_text_have_no_trace_of_pictures(door: gymnasium.Env[str, str], tmp_path: Path) -> None:
    episode, _ = play_door(door, "bare", store=ScreenshotStore(tmp_path / "pictures"))
    assert "picture" not in episode.to_json()
    assert not (tmp_path / "pictures").exists()


def test_environment_without_screenshots_fails_with_a_clear_error() -> None:
    with registered_env(Door) as env:
        episode = play(Agent.parse("bare+pictures").wrap(env), RecordingPolicy(lambda _: "knock"), retries=0)
    assert episode.failed
    assert "Make the environment with screenshot=True, or leave the habit pictures out" in (episode.error or "")


def test_pictures_count_as_tokens(door: gymnasium.Env[str, str]) -> None:
    counts: list[int] = []

    def reply(context: Any) -> str:
        counts.append(estimate_tokens(context))
        return "knock"

    for agent in ("bare", "bare+pictures:1"):
        play(Agent.parse(agent).wrap(door), RecordingPolicy(reply), EpisodeSpec("door/train/5"), horizon=1)
    assert counts[1] - counts[0] == 1_200


def test_name_of_the_habit() -> None:
    assert str(Scaffold(pictures=2)) == "+pictures"
    assert str(Scaffold(pictures=3)) == "+pictures:3"
    assert Scaffold.parse("react+pictures") == Scaffold(pictures=2)
    with pytest.raises(ValueError, match="needs an integer of at least 1"):
        Scaffold.parse("react+pictures:0")
