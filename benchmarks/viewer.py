"""How long the viewer takes to read many episodes, and to list them.

    uv run python benchmarks/viewer.py --out viewer.json
    uv run python benchmarks/viewer.py --episodes 1000000 --out million.json

Episodes are made up (a goal, six turns of invented words, sampled ids for half of them), spread over runs of training
with a file a step. Index and files lie in a temporary folder. A query is a whole page: asked, rendered, as HTML.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path

import numpy as np
from agentgym_envs import Episode, Reply, Turn
from agentgym_envs.episodes.episode import Sample
from agentgym_eval.viewer.index.index import Index
from agentgym_eval.viewer.index.links import Links
from agentgym_eval.viewer.index.queries import Filters
from agentgym_eval.viewer.pages.lists import episodes_page, runs_page
from agentgym_eval.viewer.pages.site import Site

_WORDS = 5_000
_A_FILE = 500
_A_RUN = 20_000
_CATEGORIES = ("depth-1", "depth-2", "depth-3", "depth-4")


@dataclass(frozen=True, slots=True)
class Took:
    """Milliseconds of one kind of page."""

    page: str
    median: float
    p95: float
    most: float


def make(folder: Path, episodes: int) -> int:
    """Write made-up runs. Returns how many bytes."""
    rng = np.random.default_rng(0)
    size = 0
    for begin in range(0, episodes, _A_FILE):
        run = folder / f"run-{begin // _A_RUN}"
        step = begin % _A_RUN // _A_FILE + 1
        (run / "rollouts").mkdir(parents=True, exist_ok=True)
        record = {"schema": "agentgym.train/2", "kind": "rl", "recipe": "made-up", "config": {"model": "scratch"}}
        (run / "run.json").write_text(json.dumps(record))
        lines = [_episode(rng, begin + at).to_json() for at in range(min(_A_FILE, episodes - begin))]
        text = "".join(f"{line}\n" for line in lines)
        size += (run / "rollouts" / f"step-{step:06d}.jsonl").write_text(text)
    return size


def _episode(rng: np.random.Generator, number: int) -> Episode:
    turns = int(rng.integers(1, 12))
    score = float(rng.choice([0.0, 0.25, 0.5, 1.0]))
    category = int(rng.integers(len(_CATEGORIES)))
    return Episode(
        env=("agentgym/TextCraft-v0", "agentgym/BabyAI-v0")[number // _A_FILE % 2],
        task_id=f"made/train/{number // 8}",
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
def _drawn() -> list[str]:
    """Words of which the n-th comes about 1/n as often as the first."""
    numbers = (np.exp(np.random.default_rng(1).random(1_000_000) * np.log(_WORDS + 1)) - 1).astype(np.int64)
    return [_word(int(number)) for number in numbers]


def _word(number: int) -> str:
    """Another word for each number; as in any language few begin alike."""
    return "".join("bdfgklmnprstvz"[number // 14**place % 14] + "aeiou"[number % 5] for place in range(4))


def _text(rng: np.random.Generator, words: int) -> str:
    start = int(rng.integers(len(_drawn()) - words))
    return " ".join(_drawn()[start : start + words])


def lists() -> dict[str, tuple[Filters, ...]]:
    """Lists that people ask for, by kind."""
    return {
        "all": (Filters(), Filters(page=2), Filters(page=7)),
        "far page": tuple(Filters(page=page) for page in (500, 1000, 1500)),
        "sorted": tuple(Filters(sort=sort) for sort in ("-score", "turns", "task", "run", "-step", "-invalid")),
        "sorted, far page": tuple(Filters(sort=sort, page=1000) for sort in ("-score", "turns", "task")),
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
        "common words": (
            Filters(text=_word(1)),
            Filters(text=f"{_word(2)} {_word(3)}", sort="-score"),
            Filters(text="b"),
        ),
    }


def measure(page: str, asks: list[Callable[[], object]], repeats: int) -> Took:
    """Each of the questions so many times."""
    times: list[float] = []
    for _ in range(repeats):
        for ask in asks:
            began = time.perf_counter()
            ask()
            times.append(1000 * (time.perf_counter() - began))
    return Took(page, *(round(float(np.quantile(times, at)), 1) for at in (0.5, 0.95, 1.0)))


def main() -> None:
    """Print a table and write JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--episodes", type=int, default=100_000)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--out", type=Path, default=Path("viewer.json"))
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name) / "runs"
        written = make(folder, asked.episodes)
        database = Path(name) / "index.sqlite"
        with closing(Index(folder, database)) as index:
            began = time.perf_counter()
            index.refresh()
            build = time.perf_counter() - began
            began = time.perf_counter()
            index.refresh()
            again = time.perf_counter() - began
            pages = _pages(Site(index, Links()), asked.repeats)
        size = database.stat().st_size
    figures = {
        "episodes": asked.episodes,
        "files_mb": round(written / 1e6, 1),
        "index_seconds": round(build, 1),
        "index_seconds_per_100k": round(build * 1e5 / asked.episodes, 1),
        "index_mb": round(size / 1e6, 1),
        "look_again_ms": round(1000 * again, 1),
    }
    for label, value in figures.items():
        print(f"{label:24} {value:>12,}")
    print(f"\n{'page, ms':24} {'median':>10} {'p95':>10} {'most':>10}")
    for took in pages:
        print(f"{took.page:24} {took.median:>10.1f} {took.p95:>10.1f} {took.most:>10.1f}")
    asked.out.write_text(json.dumps(figures | {"pages": [asdict(took) for took in pages]}, indent=2) + "\n")


def _pages(site: Site, repeats: int) -> list[Took]:
    took = [
        measure(label, [lambda each=each: episodes_page(site, each) for each in filters], repeats)
        for label, filters in lists().items()
    ]
    return [measure("runs", [lambda: runs_page(site)], repeats), *took]


if __name__ == "__main__":
    main()
