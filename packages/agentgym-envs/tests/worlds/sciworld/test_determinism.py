"""Tests that an episode is byte-identical alone, next to others in one JVM, in another JVM, and in another process."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from agentgym_envs.worlds.sciworld.env import SciWorld
from agentgym_envs.worlds.sciworld.tasks import kinds
from ci_subset import subset_in_ci

Episode = tuple[str, list[str]]
Transcript = list[Any]


def make_episode(name: str, turns: int) -> Episode:
    """Return the first test variation of a task, some aimless actions, and the oracle's first actions after them."""
    task = f"sciworld/test/{name}/{kinds()[name].variations('test')[0]}"
    env = SciWorld()
    env.reset(options={"task": task})
    actions = ["look around", "open door", "0", "inventory"]
    over = False
    for action in actions:
        env.step(action)
    while not over and len(actions) < turns:
        actions.append(env.oracle())
        over = env.step(actions[-1])[2]
    env.close()
    return task, actions


def replay(env: SciWorld, episode: Episode) -> Iterator[Any]:
    task, actions = episode
    yield env.reset(options={"task": task})
    for action in actions:
        yield env.step(action)


def play_alone(episode: Episode, **options: Any) -> Transcript:
    env = SciWorld(**options)
    transcript = list(replay(env, episode))
    env.close()
    return transcript


def play_interleaved(episodes: Sequence[Episode], **options: Any) -> list[Transcript]:
    envs = [SciWorld(**options) for _ in episodes]
    transcripts: list[Transcript] = [[] for _ in episodes]
    replays = [replay(env, episode) for env, episode in zip(envs, episodes, strict=True)]
    while any(results := [next(steps, None) for steps in replays]):
        for transcript, result in zip(transcripts, results, strict=True):
            transcript.extend([result] if result else [])
    for env in envs:
        env.close()
    return transcripts


def play_in_subprocess(episodes: Sequence[Episode]) -> list[Transcript]:
    code = (
        "import json, sys\nfrom agentgym_envs.worlds.sciworld.env import SciWorld\nworld = SciWorld()\n"
        "print(json.dumps([[world.reset(options={'task': t}), *map(world.step, a)] for t, a in json.load(sys.stdin)]))"
    )
    process = subprocess.run(
        [sys.executable, "-c", code], input=json.dumps(episodes), capture_output=True, text=True, check=True
    )
    return json.loads(process.stdout)


def check_episodes(names: Sequence[str], turns: int, *, jvms: Sequence[int]) -> None:
    episodes = [make_episode(name, turns) for name in names]
    expected = [play_alone(episode, patience=58.0) for episode in episodes]  # each in its own JVM
    for jvm_count in jvms:
        assert play_interleaved(episodes[::-1], jvms=jvm_count) == expected[::-1]
    assert play_in_subprocess(episodes) == json.loads(json.dumps(expected))


@pytest.mark.long
def test_episodes_are_identical_in_all_jvms_and_processes() -> None:
    check_episodes(subset_in_ci(list(kinds()), 15), 12, jvms=[1, 2])


@pytest.mark.long
def test_random_episodes_get_a_jvm_of_their_own() -> None:
    envs = [SciWorld() for _ in range(4)]
    for env, name in zip(envs, ("boil", "melt", "grow-fruit", "grow-fruit"), strict=True):
        env.reset(options={"task": f"sciworld/test/{name}/{kinds()[name].variations('test')[0]}"})
    boil, melt, *fruit = (env.jvm_pid for env in envs)
    assert boil == melt
    assert len({boil, *fruit}) == 3
    envs[2].reset(options={"task": "sciworld/test/boil/21"})
    assert envs[2].jvm_pid == boil
    for env in envs:
        env.close()
