"""Steps per second of WebArena with and without waiting for short timers, on the same pages.

    uv run python benchmarks/webarena_waiting.py --out waiting.json

The oracle plays tasks of the embedded sites once. Its actions are then repeated in pairs of episodes, one with and one
without waiting for timers, in the same browser; only the ratio of each pair means something on a busy machine.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any

from agentgym_envs import make, text_env
from agentgym_envs.worlds.webarena.actions import grammar
from agentgym_envs.worlds.webarena.actions.action_types import Action, Stop
from agentgym_envs.worlds.webarena.actions.perform import perform
from agentgym_envs.worlds.webarena.browser.page_idle import IdleTimeouts
from agentgym_envs.worlds.webarena.episode_session import EpisodeSession
from agentgym_envs.worlds.webarena.page.observation import tree
from agentgym_envs.worlds.webarena.page.snapshot import Snapshot, take_snapshot
from agentgym_envs.worlds.webarena.tasks.site_backend import EmbeddedSites
from harness import Spread, arguments, show, write_json

_VIEWPORT = (1280, 720)
_TIMEOUT = 120.0  # seconds


@dataclass(frozen=True, slots=True)
class Pair:
    """Seconds of the same steps of one task."""

    task: str
    steps: int
    without: float
    waiting: float


def record(tasks: Sequence[str]) -> Iterator[tuple[Any, list[Action]]]:
    """Yield the payload of each task and the oracle's actions before `stop`."""
    env = make("agentgym/WebArena-v0")
    with closing(env):
        for task in tasks:
            env.reset(seed=0, options={"task": task})
            actions: list[Action] = []
            while not isinstance(action := grammar.parse(text := text_env(env).oracle()), Stop):
                assert not isinstance(action, str), action
                actions.append(action)
                env.step(text)
            yield text_env(env).tasks[task].payload, actions


async def observe(episode: EpisodeSession) -> Snapshot:
    """Return the page as an environment's step does."""
    await episode.session.settle()
    page = await take_snapshot(episode.session.tab)
    tree(page, False, 12_000)
    return page


async def play(episode: EpisodeSession, actions: Sequence[Action]) -> float:
    """Perform actions in an episode that has begun; return the seconds that it took."""
    page = await observe(episode)
    began = time.perf_counter()
    for action in actions:
        await perform(episode.session, page, action)
        page = await observe(episode)
    return time.perf_counter() - began


def measure(tasks: Sequence[str], repeats: int) -> list[Pair]:
    """Measure each task `repeats` times; the kind that goes first alternates."""
    pairs: list[Pair] = []
    kinds = {timers: EpisodeSession(EmbeddedSites(), _VIEWPORT, None, IdleTimeouts(timers=timers)) for timers in (0, 1)}
    for payload, actions in list(record(tasks)):
        for repeat in range(repeats):
            seconds: dict[int, float] = {}
            for timers in (0, 1) if repeat % 2 else (1, 0):
                episode = kinds[timers]
                episode.run(episode.begin(payload), _TIMEOUT)
                seconds[timers] = episode.run(play(episode, actions), _TIMEOUT)
                episode.end()
            pairs.append(Pair(payload["intent"], len(actions), seconds[0], seconds[1]))
            print(f"{len(pairs)}: {pairs[-1].without / pairs[-1].waiting:.2f}", flush=True)
    for episode in kinds.values():
        episode.close()
    return pairs


def main() -> None:
    """Measure and report."""
    parser = arguments(__doc__, "out", "repeats", repeats=2)
    parser.add_argument("--tasks", type=int, default=20, help="number of tasks, spread over the test split")
    settings = parser.parse_args()
    ids = text_env(make("agentgym/WebArena-v0")).tasks.test.ids
    pairs = measure(ids[:: max(1, len(ids) // settings.tasks)][: settings.tasks], settings.repeats)
    steps, without, waiting = (sum(getattr(pair, key) for pair in pairs) for key in ("steps", "without", "waiting"))
    ratios = Spread.of(pair.without / pair.waiting for pair in pairs if pair.steps)
    rows = {"without": without, "with": waiting}
    show("Waiting for timers", [{"timers": key, "steps/s": f"{steps / total:.2f}"} for key, total in rows.items()])
    print(f"\nRatio of the steps/s, with to without: {without / waiting:.3f} in all; by task and repetition {ratios}")
    write_json(settings.out, {"steps": steps, "ratio": without / waiting, "ratios": ratios, "pairs": pairs})


if __name__ == "__main__":
    main()
