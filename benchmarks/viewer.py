"""Speed of the viewer with many episodes: indexing them, and listing them on pages.

    uv run python benchmarks/viewer.py --out viewer.json
    uv run python benchmarks/viewer.py --episodes 1000000 --out million.json

Synthetic episodes (a goal, turns of random words, sampled ids for half of them) are spread over training runs with a
file per step, in a temporary folder. The time of a page includes its query and its HTML.
"""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
from agentgym_envs import Episode, Reply, Turn
from agentgym_envs.episodes.episode import Sample
from agentgym_eval.viewer.index.filters import PAGE
from agentgym_eval.viewer.index.index import Index
from agentgym_eval.viewer.index.links import Links
from agentgym_eval.viewer.index.queries import Filters
from agentgym_eval.viewer.pages.lists import episodes_page, runs_page
from agentgym_eval.viewer.pages.site import Site
from harness import CallTimer, arguments, show, write_json

_VOCABULARY = 5_000
_EPISODES_PER_FILE = 500
_EPISODES_PER_RUN = 20_000
_CATEGORIES = ("depth-1", "depth-2", "depth-3", "depth-4")


@dataclass(frozen=True, slots=True)
class PageTime:
    """Milliseconds of one kind of page."""

    page: str
    median: float
    p95: float
    most: float


# Episodes.


def write_runs(folder: Path, episodes: int) -> int:
    """Write runs; return the number of bytes."""
    rng = np.random.default_rng(0)
    size = 0
    for begin in range(0, episodes, _EPISODES_PER_FILE):
        run = folder / f"run-{begin // _EPISODES_PER_RUN}"
        step = begin % _EPISODES_PER_RUN // _EPISODES_PER_FILE + 1
        (run / "rollouts").mkdir(parents=True, exist_ok=True)
        record = {"schema": "agentgym.train/2", "kind": "rl", "recipe": "synthetic", "config": {"model": "scratch"}}
        (run / "run.json").write_text(json.dumps(record))
        lines = [_episode(rng, begin + at).to_json() for at in range(min(_EPISODES_PER_FILE, episodes - begin))]
        size += (run / "rollouts" / f"step-{step:06d}.jsonl").write_text("".join(f"{line}\n" for line in lines))
    return size


def _episode(rng: np.random.Generator, number: int) -> Episode:
    turns = int(rng.integers(1, 12))
    score = float(rng.choice([0.0, 0.25, 0.5, 1.0]))
    category = int(rng.integers(len(_CATEGORIES)))
    return Episode(
        env=("agentgym/TextCraft-v0", "agentgym/BabyAI-v0")[number // _EPISODES_PER_FILE % 2],
        task_id=f"synthetic/train/{number // 8}",
        split="train",
        category=_CATEGORIES[category],
        difficulty=category + 1,
        policy="hf:model",
        sample=number % 8,
        instructions="",
        turns=tuple(_turn(rng, turn, sampled=number % 2 == 0) for turn in range(turns)),
        final_observation=_text(rng, 10),
        stop="terminated" if score == 1 else "truncated",
        score=score,
        success=score == 1,
    )


def _turn(rng: np.random.Generator, number: int, *, sampled: bool) -> Turn:
    ids = tuple(range(number * 12, number * 12 + 12))
    logprobs = tuple(-at / 97 for at in range(12))
    reply = Reply(_text(rng, 8), "stop", Sample(ids, ids, logprobs, 3, number == 0) if sampled else None)
    return Turn(_text(rng, 60 if number == 0 else 25), reply, reply.text, bool(rng.random() < 0.9), 0.0, "key")


@cache
def _words() -> list[str]:
    """Return words drawn by Zipf's law."""
    numbers = (np.exp(np.random.default_rng(1).random(1_000_000) * np.log(_VOCABULARY + 1)) - 1).astype(np.int64)
    return [_word(int(number)) for number in numbers]


def _word(number: int) -> str:
    """Return a different word for each number; as in natural languages, few have a common prefix."""
    return "".join("bdfgklmnprstvz"[number // 14**place % 14] + "aeiou"[number % 5] for place in range(4))


def _text(rng: np.random.Generator, words: int) -> str:
    start = int(rng.integers(len(_words()) - words))
    return " ".join(_words()[start : start + words])


# Pages.

PAGES: dict[str, tuple[Filters, ...]] = {
    "all": (Filters(), Filters(page=2), Filters(page=7)),
    "distant page": tuple(Filters(page=page) for page in (500, 1000, 1500)),
    "sorted": tuple(Filters(sort=sort) for sort in ("-score", "turns", "task", "run", "-step", "-invalid")),
    "sorted, distant page": tuple(Filters(sort=sort, page=1000) for sort in ("-score", "turns", "task")),
    "filtered": (
        Filters(success="yes"),
        Filters(stop="truncated", turns_from=5),
        Filters(category="depth-2", sort="-turns"),
        Filters(env="agentgym/BabyAI-v0", success="no", sort="-score"),
        Filters(step=10),
    ),
    "one run": (Filters(run="run-0"), Filters(run="run-0", sort="-score"), Filters(run="run-0", part="rollouts")),
    "rare words": (
        Filters(text=_word(4321)),
        Filters(text=f"{_word(4000)} {_word(12)}"),
        Filters(text=f'"{_word(9)} {_word(5)}"'),
    ),
    "frequent words": (
        Filters(text=_word(1)),
        Filters(text=f"{_word(2)} {_word(3)}", sort="-score"),
        Filters(text="b"),
    ),
}


def measure_page(name: str, pages: list[Callable[[], object]], repeats: int) -> PageTime:
    """Render the pages of a kind repeatedly."""
    times: list[float] = []
    for _ in range(repeats):
        for render in pages:
            began = time.perf_counter()
            render()
            times.append(1000 * (time.perf_counter() - began))
    return PageTime(name, *(round(float(np.quantile(times, at)), 1) for at in (0.5, 0.95, 1.0)))


def measure_index(index: Index, site: Site) -> tuple[float, float, float]:
    """Index the folder in a thread, as the server does.

    Returns:
        Seconds until a page lists 50 episodes; seconds until all are indexed; CPU seconds of that.
    """
    began, cpu = time.perf_counter(), time.process_time()
    with ThreadPoolExecutor(1) as executor:
        done = executor.submit(index.refresh)
        while len(index.list(Filters()).rows) < PAGE and not done.done():
            time.sleep(0.01)
        episodes_page(site, Filters())
        first = time.perf_counter() - began
        done.result()
    return first, time.perf_counter() - began, time.process_time() - cpu


def measure(episodes: int, repeats: int) -> tuple[dict[str, Any], list[PageTime]]:
    """Index synthetic episodes twice, and render pages of them."""
    timer = CallTimer()
    with tempfile.TemporaryDirectory() as name:
        folder, database = Path(name) / "runs", Path(name) / "index.sqlite"
        written = write_runs(folder, episodes)
        with closing(Index(folder, database)) as index:
            site = Site(index, Links())
            first, seconds, cpu = measure_index(index, site)
            timer("refresh", index.refresh)
            pages = [measure_page("runs", [partial(runs_page, site)], repeats)]
            for kind, filters in PAGES.items():
                pages.append(measure_page(kind, [partial(episodes_page, site, one) for one in filters], repeats))
        size = database.stat().st_size
    measured = {
        "episodes": episodes,
        "files_mb": round(written / 1e6, 1),
        "first_page_seconds": round(first, 2),
        "index_seconds": round(seconds, 1),
        "index_episodes_per_second": round(episodes / seconds),
        "index_cpu_seconds_per_1000": round(cpu * 1e3 / episodes, 3),
        "index_mb": round(size / 1e6, 1),
        "look_again_ms": round(1000 * timer.seconds["refresh"], 1),
    }
    return measured, pages


def main() -> None:
    """Measure, and write JSON."""
    parser = arguments(__doc__, "out", "repeats", out=Path("viewer.json"), repeats=5)
    parser.add_argument("--episodes", type=int, default=100_000, help="number of episodes")
    settings = parser.parse_args()
    measured, pages = measure(settings.episodes, settings.repeats)
    show("Index", [{"": name, "value": f"{value:,}"} for name, value in measured.items()])
    columns = ("median", "p95", "most")
    show("Milliseconds", [{"page": p.page} | {name: f"{getattr(p, name):.1f}" for name in columns} for p in pages])
    write_json(settings.out, measured | {"pages": pages})


if __name__ == "__main__":
    main()
