"""The page of `smollm2.py`, from its records."""

from __future__ import annotations

import math
import shlex
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from agentgym_eval.metrics.seeds import over_seeds
from harness import markdown, write_report
from outcomes import picture

_SMOOTHED = 5  # updates

_PAGE = """# SmolLM2-135M learns in text environments

```sh
{commands}
```

SmolLM2-135M-Instruct on CPU cores, one thread per run, by the recipes `smollm2-*`: a few hundred episodes of the expert
are imitated (SFT), then a LoRA adapter trains with GRPO and ScalingInter-RL. All figures are success on the same test
tasks, which no decision in a run depends on, sampled at temperature 1 or greedy. The gain is RL less SFT of the sampled
episodes, paired by task, with a 95% interval over tasks or, in environments with kinds of tasks, over kinds; so are the
intervals of SFT and RL, which some of the first records don't have. For methods that train on given episodes, the
columns of RL are the model after that training. The hours are those of RL with its evaluations, on a machine with other
load.

The method `cloning` is the first version of TextCraft's recipe, with a first stage of 5 turns instead of 6, and without
the round of DAgger, which was added after a look at failed test episodes of that run: it repeats actions that the
environment refused. The method `dagger` is the second version, with that round, a learning rate of 1e-3 instead of
6e-4, and 60 updates in stages of 20 instead of 45 in stages of 15. DAgger made the imitating model better, and RL then
made it worse: success on dev tasks rose from 0.515 to 0.610 after 40 updates and fell to 0.412 after 60. At the
learning rate of 1e-3 the entropy of its replies had halved after 20 updates, and then most groups of episodes had equal
rewards, which teach nothing. The checkpoint after 40 updates, `checkpoints/best` of that run, was played on the test
tasks later: 0.516, which is +0.069 (+0.002 to +0.135) over SFT. The method `recipe` is the third version and what
`train smollm2-textcraft` does now: DAgger, with the learning rate and the updates of `cloning`. It was chosen when the
test results of the other two, all of seed 0, were known, so its gain with seed 0 may be a little too high. Seeds 1 and
2 had no part in that choice, but their test tasks are the same; their mean gain is 0.146. `METHODS` in the script has
the flags.

In BabyAI's seed 0 and in MiniWoB++, the test was played twice. The first time it was shorter for want of time, with one
sampled and one greedy episode of each of 60 and 96 tasks; the table has the second, which is that of the recipes.
Nothing was changed between the two. In MiniWoB++, success means the page's full reward here. While the model trained,
part of it counted as success, too, as it still does in the curve and in `summary.json`. The lower bound of its gain is
just above 0 (p = 0.02). Its recipe was changed once, after a look at dev tasks: with 120 demonstrations, a learning
rate of 6e-4 and batches of eight tasks, success on dev tasks rose only from 0.444 to 0.486 in 15 updates, and of the
last three of 29 updates two had only groups of equal rewards. That run was stopped, and its test tasks weren't played.

In SearchQA's seed 0, pass@4 was 0.290 before RL and 0.270 after it, so no gain in the number of questions that the
model can solve is detected. On dev tasks success peaked after 30 updates (0.331, from 0.156) and ended at 0.213.

SciWorld's tasks are of six types, which are too few to count as a sample of types: its intervals are over tasks, and
say nothing about other types. A single attempt succeeds more often after RL, but pass@4 was 0.889 before RL and 0.811
after it, so no gain in the number of tasks that the model can solve is detected, and neither is a greedy one: +0.011
(-0.120 to +0.142).

The method `dpo` starts from an imitating model of the same recipe and seed as `recipe`'s, made at a later commit: 0.393
instead of 0.448. So neither its result nor its gain can be compared with those of `recipe`. That model plays eight
episodes of each of 200 training tasks, and DPO compares better ones with worse ones of the same task, at most four
pairs of each task, in one pass of updates of 16 pairs. pass@4 rose from 0.604 to 0.736, and greedy success from 0.505
to 0.593, +0.088 (-0.013 to +0.189), which doesn't exclude 0. That the worse side is cut to as many turns as the better
one has was chosen by results of a [small model](from-data.md) on the same test goals. Its hours are without the
episodes of the pairs, which took 26 minutes.

The method `agentevol` starts from the imitating model of `dpo`, and trains three models from it: the first one imitates
299 episodes of the expert; then, twice, the latest model plays four episodes of 100 training tasks, and one success of
each task is added if the expert's episodes don't have it, which makes 334 and then 371. Its column of updates counts
these models; its hours leave out a part of the first exploration, before an interruption. On the test tasks the last
model is better than the start by all measures: pass@4 rose from 0.604 to 0.714, and greedy success from 0.505 to 0.637,
+0.132 (+0.038 to +0.226). But the first model, played on them later with `evaluate`, in float32 instead of bfloat16,
has already gained 0.093 (0.039 to 0.148), and the last one is 0.016 (-0.035 to +0.068) above it; pass@4 is 0.725 with
the first one. Only greedily is it the other way round: the first model has gained 0.011 (-0.062 to +0.084), and the
last one is 0.121 (0.040 to 0.202) above it. On dev tasks success was 0.390 at the start and 0.551, 0.515 and 0.507 with
the three models, and greedily 0.529 and 0.529, 0.500 and 0.500. So most of the gain comes from imitating the expert
once more, and whether the model's own successes helped is open.

The method `ppo` is the recipe's RL, but with PPO's advantages from a critic head, from the start of `dpo`. An update
trains on all episodes, with the values of the critic besides, and so takes about twice as long. pass@4 rose from 0.604
to 0.703, and greedy success from 0.505 to 0.571, +0.066 (-0.045 to +0.177), which doesn't exclude 0. The method
`gigpo`, with advantages normalized over the batch's tokens as in the recipe, is from the same start. pass@4 rose from
0.604 to 0.681, and greedy success to 0.604, +0.099 (-0.004 to +0.202). Its hours include a pause of about 13 minutes.
The method `rloo` is the same with the mean of a group's other episodes as the baseline. pass@4 rose from 0.604 to
0.659, and greedy success to 0.549, +0.044 (-0.080 to +0.168), which doesn't exclude 0. It was interrupted once. One
seed each doesn't rank them.

Recipes without results so far: {missing}. At commit {commits}; f5f3825e isn't in the history.
BabyAI's seed 1 was interrupted after 23 of its 45 updates and resumed at 05d0ded0, where the engine keeps fewer
contexts: updates and evaluations took at most 4.8 GB of memory from then on, and 7.0 before.

{table}

![Success during training](smollm2/curves.png)

Lines are success of the sampled training episodes, means of five updates, within the horizon of each stage; points are
success on dev tasks at the longest horizon, sampled. The last point of BabyAI's seed 0 is of one episode per task, the
others are of four. `uv run view docs/results/smollm2` shows the metrics of each environment's first run of `recipe`,
and an episode of test tasks (in BabyAI of every second) before and after RL.

Over the seeds of a method, with 95% t-intervals:

{seeds}
"""


def write(records: Sequence[dict[str, Any]], worlds: Sequence[str], folder: Path) -> None:
    """Write the page and its picture; it names those of the `worlds` that no record is of."""
    found = ", ".join(sorted({record["commit"] for record in records}))
    played = {record["world"] for record in records}
    missing = ", ".join(f"`smollm2-{world}`" for world in worlds if world not in played) or "none"
    seeds = rows_over_seeds(records)
    tables = {"table": markdown(rows(records)), "seeds": markdown(seeds) if seeds else "One seed each so far."}
    page = _PAGE.format(commands="\n".join(commands_of(records)), missing=missing, commits=found, **tables)
    write_report(folder, "smollm2", page)
    draw(records, folder / "smollm2" / "curves.png")


def commands_of(records: Sequence[dict[str, Any]]) -> list[str]:
    """Return the commands that run what the records are of: one for the methods of an environment with equal seeds."""
    seeds: dict[tuple[str, str], list[int]] = {}
    for record in records:
        seeds.setdefault((record["world"], record["method"]), []).append(record["seed"])
    methods: dict[tuple[str, tuple[int, ...]], list[str]] = {}
    for (world, method), own in seeds.items():
        methods.setdefault((world, tuple(own)), []).append(method)
    return [
        f"uv run --extra smollm2 python benchmarks/smollm2.py --worlds {world} "
        f"--methods {shlex.join(names)} --seeds {' '.join(map(str, own))}"
        for (world, own), names in methods.items()
    ]


def rows(records: Sequence[dict[str, Any]]) -> list[dict[str, str]]:
    """Return a row for each run."""
    return [
        {
            "environment": record["world"],
            "method": record["method"],
            "seed": str(record["seed"]),
            "base": _with_interval(record, "base"),
            "SFT": _with_interval(record, "sft"),
            "RL": _with_interval(record, "rl"),
            "gain": _interval(record["gain"]["difference"]),
            "SFT, greedy": f"{record['sft_greedy']:.3f}",
            "RL, greedy": f"{record['rl_greedy']:.3f}",
            "updates": str(record["updates"]),
            "hours": f"{record['minutes'] / 60:.1f}",
        }
        for record in records
    ]


def rows_over_seeds(records: Sequence[dict[str, Any]]) -> list[dict[str, str]]:
    """Return a row for each environment and method with at least two seeds."""
    found: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for record in records:
        found.setdefault((record["world"], record["method"]), []).append(record)
    return [
        {
            "environment": world,
            "method": method,
            "seeds": str(len(own)),
            "SFT": f"{difference.first:.3f}",
            "RL": f"{difference.second:.3f}",
            "gain": _interval(difference.difference.to_dict()),
        }
        for (world, method), own in found.items()
        if len(own) > 1
        for difference in [over_seeds([one["sft"] for one in own], [one["rl"] for one in own])]
    ]


def draw(records: Sequence[dict[str, Any]], file: Path) -> None:
    """Draw success during training, a panel for each environment: a line for each run, and points for its evaluations
    on dev tasks.
    """
    # What trains on given episodes has none of its own at each update.
    drawn = [record for record in records if record["training"]]
    worlds = list(dict.fromkeys(record["world"] for record in drawn))
    size: Any = (12, 3.2 * math.ceil(len(worlds) / 3))
    with picture(file, math.ceil(len(worlds) / 3), 3, figsize=size, sharex=True, sharey=True, squeeze=False) as panels:
        for axes, world in zip(panels.flat, worlds, strict=False):
            for record in (record for record in drawn if record["world"] == world):
                training = record["training"]
                means = [fmean(training[max(0, step - _SMOOTHED) : step]) for step in range(1, len(training) + 1)]
                label = f"{record['method']}, seed {record['seed']}"
                (line,) = axes.plot(range(1, len(training) + 1), means, label=label)
                axes.plot([*map(int, record["dev"])], [*record["dev"].values()], "o", color=line.get_color())
            axes.set(title=world, xlabel="update", ylabel="success", ylim=(0, 1))
            axes.grid(alpha=0.15)
            axes.legend(frameon=False, fontsize=7)
            axes.label_outer()
        for axes in panels.flat[len(worlds) :]:
            axes.set_visible(False)


def _with_interval(record: dict[str, Any], name: str) -> str:
    """Return success with its interval, which the first records don't have."""
    found = record.get("intervals", {}).get(name)
    return f"{record[name]:.3f}" + (f" ({found[0]:.3f} to {found[1]:.3f})" if found else "")


def _interval(found: dict[str, float]) -> str:
    return f"{found['mean']:+.3f} ({found['low']:+.3f} to {found['high']:+.3f})"
