"""The page of `leaderboard.py`: its results, with the published ones."""

from __future__ import annotations

import json
import math
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import product
from pathlib import Path
from statistics import fmean
from typing import Any

from agentgym_eval.reports import Evaluated
from agentgym_eval.reports.plots import draw_curves
from agentgym_trainer.config import RLConfig
from agentgym_trainer.recipes import RECIPES
from agentgym_trainer.run.folder import RunFolder
from commands import TOOK, Training
from harness import markdown, show, write_report
from leaderboard_cells import BY_PAGE, KS, POLICIES, TASK_SETS, WORLDS, Cell, World, cells_of

Record = Mapping[str, Any]
"""The results of a policy in an environment, as in leaderboard.json."""

_NONE = "–"
PUBLISHED = {
    "Qwen2.5-3B-Instruct": (10, 13.5, 14, 52.2, 1),
    "Qwen2.5-7B-Instruct": (9.8, 18.8, 42, 66.7, 1.5),
    "Qwen2.5-72B-Instruct": (12, 26.5, 77, 88.9, 9.5),
    "GPT-4o": (16, 26.75, 83, 86.67, 21),
    "Gemini-2.5-Pro": (28, 36.5, 94, 87.77, 12.5),
    "o3": (34, 49.5, 93, 94.44, 41.5),
    "AgentGym-RL-3B": (18, 25.75, 75, 93.33, 22.5),
    "AgentGym-RL-7B": (22, 34, 89, 92.22, 50.5),
    "ScalingInter-7B": (26, 38.25, 91, 96.67, 57),
}
"""Success in percent, in the order of `WORLDS`: arXiv 2509.08755, without intervals and seeds."""

_PRETRAINED = {"sft": "SFT, sampled", "rl": "RL, sampled", "sft_greedy": "SFT, greedy", "rl_greedy": "RL, greedy"}
"""Columns of SmolLM2's results, by their names in the records."""

_EXAMPLE = ("TextCraft", POLICIES[-1])
"""The environment and the policy whose commands are on the page."""


def matrix(records: Sequence[Record], worlds: Sequence[World]) -> Iterator[dict[str, str]]:
    """Yield the measured success of each policy in some environments."""
    for policy in POLICIES:
        own = {record["name"]: _interval(record["success"]) for record in records if record["player"] == policy}
        if any(world.name in own for world in worlds):
            yield {"policy": policy, "source": "measured here"} | {w.name: own.get(w.name, _NONE) for w in worlds}


def published() -> Iterator[dict[str, str]]:
    """Yield the published success of each model in `WORLDS`."""
    for model, values in PUBLISHED.items():
        shown = {world.name: f"{percent:g}" for world, percent in zip(WORLDS, values, strict=True)}
        yield {"policy": model, "source": "published"} | shown


def details(records: Sequence[Record]) -> Iterator[dict[str, str]]:
    """Yield the other metrics of the measured policies."""
    for record in records:
        passed = record["pass_at"]
        yield {
            "environment": record["name"],
            "policy": record["player"],
            "tasks": str(record["tasks"]),
            "episodes": str(record["episodes"]),
            "failed": str(record["failed"]),
            "clusters": str(record["success"].get("clusters") or _NONE),
            "ICC": _NONE if record["icc"] is None else f"{record['icc']:.2f}",
            "score": _interval(record["score"]),
            **{f"pass@{k}": _interval(passed[str(k)]) if str(k) in passed else _NONE for k in KS[1:]},
            "turns": f"{record['turns']['mean']:.1f}",
        }


def by_page(records: Sequence[Record]) -> Iterator[dict[str, str]]:
    """Yield each policy's success on the pages of `BY_PAGE`."""
    own = {record["player"]: record["pages"] for record in records if record["name"] == BY_PAGE}
    for page in next(iter(own.values()), {}):
        yield {"page": f"`{page}`"} | {player: f"{pages[page] * 100:.1f}" for player, pages in own.items()}


def models(worlds: Sequence[World], runs: Path) -> Iterator[dict[str, str]]:
    """Yield recipes, size, gain by RL and CPU time of the small models that were trained."""
    for world in worlds:
        trainings = [Training(recipe, runs) for recipe in world.recipes]
        if not trainings or not all((training.path / TOOK).exists() for training in trainings):
            continue
        config = RECIPES[trainings[-1].recipe].config
        options = () if shlex.join(config.world.options) == world.options else config.world.options
        took = [json.loads((training.path / TOOK).read_text()) for training in trainings]
        yield {
            "world": world.name,
            "recipes": ", then ".join(f"`{recipe}`" for recipe in world.recipes),
            "parameters": f"{_parameters(trainings[-1].path / 'model'):,}",
            "the world it was trained in": ", ".join(options) or "as it is played",
            "RL": _learned(trainings[-1].path) if isinstance(config, RLConfig) else _NONE,
            "minutes of CPU": f"{sum(each['cpu_seconds'] for each in took) / 60:.0f}",
        }


_MODEL_COLUMNS = ("environment", "recipes", "parameters", "options in training", "before and after RL", "minutes")
"""Headings of `models`, whose own keys are those of the JSON file."""


def pretrained(records: Sequence[Record]) -> Iterator[dict[str, str]]:
    """Yield the mean results over seeds of the recipes `smollm2-*`, from the records of `smollm2.py`."""
    for world in dict.fromkeys(record["world"] for record in records):
        own = [record for record in records if record["world"] == world and record["method"] == "recipe"]
        row = {"recipe": f"`smollm2-{world}`", "seeds": str(len(own))}
        for name, column in _PRETRAINED.items():
            row[column] = f"{100 * fmean(record[name] for record in own):.1f}"
        yield row


def _means(records: Iterable[Record]) -> dict[str, list[float]]:
    """Return the means of success and turns by environment and policy, which tell whether a picture has the results."""
    return {
        f"{record['name']}, {record['player']}": [round(record[name]["mean"], 4) for name in ("success", "turns")]
        for record in records
    }


def _learned(run: Path) -> str:
    """Return success of the sampled episodes of the run's test tasks before and after RL, in percent."""
    played = json.loads(RunFolder(run).summary.read_text())["evaluations"]["test"]["sampled"]
    first, last = (played[str(step)]["success"]["mean"] for step in sorted(map(int, played)))
    return f"{first * 100:.1f} → {last * 100:.1f}"


def _parameters(model: Path) -> int:
    from safetensors import safe_open

    opened: Any = safe_open(model / "model.safetensors", framework="np")
    with opened as weights:
        shapes = [weights.get_slice(name).get_shape() for name in weights.keys()]  # noqa: SIM118, it is no mapping
    return sum(map(math.prod, shapes))


def _interval(found: Record) -> str:
    return f"{found['mean'] * 100:.1f} ({found['low'] * 100:.1f} to {found['high'] * 100:.1f})"


def write(cells: Sequence[Cell], runs: Path, folder: Path) -> None:
    """Write the page, its pictures and JSON.

    Args:
        cells: Policies in environments; a finished evaluation replaces the record of an earlier one.
        runs: Folder of the training runs.
        folder: Folder of the page and of the JSON file with earlier records, if any.

    Raises:
        SystemExit: If a cell has neither a finished evaluation nor a record.
    """
    file = folder / "leaderboard.json"
    before: dict[str, Any] = (
        json.loads(file.read_text(encoding="utf-8")) if file.exists() else {"measured": [], "models": []}
    )
    played = [cell for cell in cells if cell.played]
    known = {(record["name"], record["player"]): record for record in before["measured"]}
    known |= {(cell.world.name, cell.policy): cell.record for cell in played}
    if missing := [cell for cell in cells if (cell.world.name, cell.policy) not in known]:
        raise SystemExit(f"{missing[0].folder} has no report; run the script without --report first.")
    order = product([world.name for world in (*WORLDS, *TASK_SETS)], POLICIES)
    records = [known[key] for key in order if key in known]
    small = {row["world"]: row for row in (*before["models"], *models((*WORLDS, *TASK_SETS), runs))}
    measured, task_sets = [*matrix(records, WORLDS), *published()], [*matrix(records, TASK_SETS)]
    pages = [*by_page(records)]
    study = folder / "smollm2.json"
    smollm2 = json.loads(study.read_text(encoding="utf-8")) if study.exists() else []
    show("Success in percent, 95% intervals over clusters of tasks", measured)
    drawable = cells_of(WORLDS, runs)
    drawn = before.get("drawn", {})
    if all(cell.played for cell in drawable):
        (folder / "leaderboard").mkdir(parents=True, exist_ok=True)
        draw_curves(folder / "leaderboard", [Evaluated(cell.policy, cell.world.name, cell.report) for cell in drawable])
        drawn = _means(cell.record for cell in drawable)
    now = _means(records)
    older = [name for name, means in drawn.items() if now[name] != means]
    example = next((record for record in records if (record["name"], record["player"]) == _EXAMPLE), records[0])
    begun = {commit for record in records for commit in record["commit"].split(", ")}
    page = _PAGE.format(
        table=markdown(measured),
        task_sets=markdown(task_sets) if task_sets else "None is played yet.",
        details=markdown([*details(records)]),
        models=markdown([dict(zip(_MODEL_COLUMNS, row.values(), strict=True)) for row in small.values()]),
        differs="\n".join(f"- **{world.name}**: {world.differs}." for world in WORLDS),
        are="\n".join(f"- **{world.name}**: {world.differs}; {world.turns} turns." for world in TASK_SETS),
        turns=", ".join(f"{world.name} {world.turns}" for world in WORLDS),
        example=f"{example['name']}'s small model",
        pages=markdown(pages) if pages else "None is played yet.",
        pretrained=markdown([*pretrained(smollm2)]) if smollm2 else "None is trained yet.",
        commands="\n".join(example["commands"]),
        failed=sum(record["failed"] for record in records),
        commits=", ".join(sorted(begun)),
        episodes=sum(record["episodes"] for record in records),
        older=f"Earlier results than those of the table are drawn for {'; '.join(older)}." if older else "",
    )
    results = {
        model: dict(zip((world.name for world in WORLDS), values, strict=True)) for model, values in PUBLISHED.items()
    }
    record = {
        "measured": records,
        "models": [*small.values()],
        "drawn": drawn,
        "published": {"source": "arXiv 2509.08755", "success_percent": results},
    }
    write_report(folder, "leaderboard", page, record)


_PAGE = """# Leaderboard

```sh
uv run python benchmarks/leaderboard.py
uv run python benchmarks/leaderboard.py --report docs/results
```

Success in percent, with 95% intervals over clusters of tasks where we measured it. **Rows marked "published" are from
the paper** ([AgentGym-RL](https://arxiv.org/abs/2509.08755)), which gives neither intervals nor seeds. They were
measured in its environments; ours have the same names and kinds of tasks, but [differ](#what-differs-in-our-tasks). So
published and measured values aren't comparable; they show the range.

{table}

"oracle" is the environment's expert, "random" draws from the available actions (SearchQA lists none), and the small
models are [trained from scratch](#the-small-models) on one CPU thread, in two hours at most. The random policy is a
strong baseline for them: it draws from the available actions, whereas a model has to write them.

The horizon is that of the paper's last training stage: {turns}.
The oracle fails if that isn't enough, and in SearchQA if the passages aren't found; the environments' own limits are
[higher](../worlds.md). SciWorld was measured before commit 3dc02154, since which its expert takes a turn longer in
three lifespan tasks.

## Further task sets

{task_sets}

{are}

On each of the twelve pages, in percent:

{pages}

## A pretrained model

SmolLM2-135M-Instruct after imitating a few hundred episodes (SFT) and after RL, in percent. The tasks are those of its
recipes, most of which are easier than the ones above; the untrained model solves none. Intervals, gains and settings
are on [another page](smollm2.md).

{pretrained}

## Another model

A row of another model, with the paper's numbers of tasks, limits, samples and temperature, is one command
([protocols](../evaluation.md#protocols-of-papers)):

```sh
uv run evaluate --env all --policy openai:gpt-4o --protocol agentgym-rl --out runs/paper
```

## Success by turns and attempts

![Success against the number of allowed turns](leaderboard/turns.png)

The share is that of episodes that succeed within the allowed turns.

![pass@k and pass^k against k](leaderboard/k.png)

The share is that of tasks that at least one of k attempts solves (pass@k), or all of them (pass^k). {older}

## Other metrics

{details}

Clusters are the groups of similar tasks ([definition](../evaluation.md#intervals)) that intervals are over, and ICC is
the intra-class correlation of success: the share of its variance between tasks that lies between clusters.

Of {episodes:,} episodes, {failed:,} failed through a fault of the environment; they aren't in the means. The oracle and
a greedy model play every task once. The score, also in percent, includes partial success.

## The small models

{models}

They imitate experts' episodes of training tasks, with the reply format `bare` (a reply is an action) and without
instructions; but for RL in MiniWoB++, they weren't trained on anything else, not even English. They show what the
commands do on a laptop, not what language models can do: within minutes they learn the form of actions and frequent
sequences, but hardly to copy a name from the context. Those of TextCraft, BabyAI and SearchQA, with an hour or two of
one core, learn to copy: episodes have permuted names and other layouts ([TextCraft](textcraft-names.md)), colors, or
words of names; words are tokens. Smaller ones in BabyAI (128 wide, 3 layers, learning rate 3e-3), played on the same
tasks before, had 49.3, 53.0 and 54.5 sampled, and 48.0, 45.0 and 52.0 greedily, with 8,000, 16,000 and 32,000 episodes
(at commits dbef3d78+, 4e437f8f and f4d2fcac+; they have no record here). The larger one was chosen when these results
were known. Its minutes are by the clock, beside other runs: 5 for the episodes and 115 for the updates; it was
interrupted three times and resumed. A loss on all tokens didn't help the smaller one: of 8,000 episodes, 4,000 with
that loss and then the others with the loss on replies ended at a loss on replies of 0.28, and all with the loss on
replies at 0.22. SearchQA's learns to copy as well, with the words of names permuted in all episodes: first with one
passage for each search and all tokens in the loss, then with three passages and the loss on replies. On 60 dev tasks
with one passage, greedy success in the first stage was 0 after 1,500 updates, 0.067 after 2,000 and 0.100 after 2,503;
on 60 with three passages, the second stage took it from 0.017 to 0.133. Before, three settings with three passages from
the start had copied nothing in up to 400 updates. Its minutes are by the clock, beside other runs, and the runs had
these settings before they were recipes. SciWorld's learns from 782 episodes of the 20 tasks that the expert solves
within 30 turns. It finds rooms and objects and so reaches subgoals, which the [score](#other-metrics) counts, but has
learned much of its episodes by heart, and errs in states that they don't contain. No other setting was trained to its
end. The training run had played 20 of the test tasks at its end, and nothing was changed afterwards. Its minutes are by
the clock, beside other runs: 17 for the episodes, which `collect` played beforehand, and 34 for training. WebArena's
reaches its context limit of 4,096 tokens after a few pages (`length`). A model with figures before and after RL, on the
run's test tasks, learned by GRPO after the imitation. Each has one training seed, and the intervals are only over
tasks.

RL from the smaller BabyAI model with 32,000 episodes was tried once, with one seed: 60 updates of GRPO with batch
normalisation took 60 dev tasks from 0.517 to 0.583 of sampled episodes, a difference of +0.067 (-0.017 to +0.150, two
episodes of each task), and from 0.433 to 0.483 greedily. No gain is established.

```sh
uv run train quickstart --model runs/sft-babyai/model --warm-start.episodes 0 --world.env agentgym/BabyAI-v0 \
--world.options --horizon fixed --horizon.turns 20 --generation.max-tokens 24 --generation.max-context 4096 \
--optimizer.lr 5e-4 --algorithm.advantages.whiten --algorithm.kl.weight 0.01 --evaluation.tasks 60 \
--evaluation.samples 2 --evaluation.ks 1 --evaluation.every 20 --steps 60 --epochs 1
```

RL from SearchQA's model was tried once, too, with one seed and about three groups of different rewards in each of 60
updates of 16 groups: success went from 0.079 to 0.108 of sampled episodes and from 0.133 to 0.150 greedily on 60 dev
tasks, and on the 100 test tasks from 0.070 to 0.092, +0.022 (-0.011 to +0.056), and greedily from 0.170 to 0.170. No
gain is established.

```sh
uv run train quickstart --model runs/sft-searchqa/model --warm-start.episodes 0 --world.env agentgym/SearchQA-v0 \
--world.options --horizon fixed --horizon.turns 10 --generation.max-tokens 48 --generation.max-context 2048 \
--optimizer.lr 2e-4 --algorithm.advantages.whiten --algorithm.kl.weight 0.01 --evaluation.tasks 60 \
--evaluation.test-tasks 100 --evaluation.samples 4 --evaluation.ks 1 2 4 --evaluation.every 20 --steps 60 --epochs 1
```

More about TextCraft's models: [learning from data](from-data.md). In four of BabyAI's levels, a model that is then
trained by reinforcement learning gets much further: the [quickstart](quickstart.md).

## What differs in our tasks

{differs}

In all of them, success is exact, a failed episode isn't a score of 0, and no test task is a training task.

## The commands

The script runs ordinary commands, one after another, here at commit {commits}. All of them are in `leaderboard.json`
with their results. Those of {example} are

```sh
{commands}
```
"""
