"""Why trained models fail: causes before and after training, over-interaction, repetition, brute force against skill.

    uv run python benchmarks/forensics.py --runs runs
    uv run python benchmarks/forensics.py --report docs/results

The first command reads those evaluations of `STUDIES` that are there, below the folder of runs or committed, measures
the expert's distances by replaying them, and writes docs/results/forensics.json, which keeps the other studies. The
second writes the page from that file.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
from agentgym_envs import read_episodes
from agentgym_eval.metrics.comparison import Difference, compare, difference
from agentgym_eval.metrics.failure_causes import KINDS, LABELS, Distances, EpisodeKey, FailureCriteria, episode_key
from agentgym_eval.metrics.intervals import bootstrap
from agentgym_eval.metrics.summary import by_task, cluster_of, report
from agentgym_eval.runs.oracle_distances import DistanceMeter, can_measure, run_settings
from agentgym_eval.runs.recorded_env import client_options, recorded_class, recorded_seed
from forensics_metrics import BOUNDED, METRICS, Metric, Played, refusals
from harness import arguments, markdown, show, write_json, write_report

_CLONING = "smollm2/textcraft/cloning-seed-0/evaluations/test-0000{:02d}-sampled.jsonl"
_DAGGER = "smollm2/textcraft/dagger-seed-0/evaluations/test-0000{:02d}-sampled.jsonl"
_QUICKSTART = "readme-train/evaluations/test-0000{:02d}-sampled.jsonl"
_COMMITTED = f"{Path('docs/results/smollm2').resolve()}/{{}}-seed-0/evaluations/test-0000{{:02d}}-sampled.jsonl"
STUDIES: dict[str, tuple[str, str]] = {
    "quickstart, BabyAI": (_QUICKSTART.format(0), _QUICKSTART.format(75)),
    "SmolLM2 cloning, TextCraft": (_CLONING.format(0), _CLONING.format(45)),
    "SmolLM2 dagger, TextCraft": (_DAGGER.format(0), _DAGGER.format(60)),
    "SmolLM2, BabyAI": (_COMMITTED.format("babyai", 0), _COMMITTED.format("babyai", 45)),
    "SmolLM2, MiniWoB++": (_COMMITTED.format("miniwob", 0), _COMMITTED.format("miniwob", 30)),
}
"""Files with the episodes after imitation and after RL, by the name of the study; absolute if they are committed."""
_WITHIN = (2, 4, 6, 8, 10, 12, 15, 20, 25, 30)
_FILE = Path("docs/results/forensics.json")


def measured(file: Path) -> list[Played]:
    """Read the episodes of a file, and measure their distances if their environment's expert allows it."""
    episodes = sorted(read_episodes(file), key=lambda episode: (episode.task_id, episode.sample))
    env_class, settings = recorded_class(episodes[0].env), run_settings(file)
    assert env_class is not None
    if not can_measure(env_class):
        return [Played(episode, ()) for episode in episodes]
    env = env_class(**client_options(env_class, settings, episodes[0].env))
    meter = DistanceMeter(env, recorded_seed(settings))
    found = [Played(episode, meter.distances(episode)) for episode in episodes]
    env.close()
    return found


def record_of(before: Path, after: Path) -> dict[str, Any]:
    """Return what the page needs of a study."""
    sides = measured(before), measured(after)
    episodes = [[played.episode for played in side] for side in sides]
    distances = [_known(side) for side in sides]
    reports = [report(own, distances=known) for own, known in zip(episodes, distances, strict=True)]
    compared = compare(*episodes, names=("SFT", "RL"), distances=(distances[0], distances[1]))
    return {
        "environment": episodes[0][0].env,
        "split": episodes[0][0].split,
        "tasks": compared.tasks,
        "episodes": [len(own) for own in episodes],
        "failures": [sum(not each.success and not each.failed for each in own) for own in episodes],
        "unmeasured": [sum(not played.measured for played in side) for side in sides],
        "success": compared.to_dict()["success"],
        "causes": {kind: at.to_dict() for kind, at in compared.causes.items()},
        "away": FailureCriteria().away,
        "metrics": {name: _compared(*sides, metric, bounded=name in BOUNDED) for name, metric in METRICS.items()},
        "within": [
            {str(n): found.by_turns[n].to_dict() for n in _WITHIN if n <= max(found.by_turns)} for found in reports
        ],
        "refusals": [refusals(side) for side in sides] if "TextCraft" in episodes[0][0].env else [],
    }


def _known(side: Iterable[Played]) -> dict[EpisodeKey, Distances]:
    return {episode_key(played.episode): played.distances for played in side}


def _compared(before: Sequence[Played], after: Sequence[Played], metric: Metric, *, bounded: bool) -> dict[str, Any]:
    """Return the means of a metric before and after, each over its own tasks, and the difference on common tasks."""
    first, second = _by_task(before, metric), _by_task(after, metric)
    both = sorted(first.keys() & second.keys())
    clusters = {played.episode.task_id: cluster_of(played.episode) for played in (*before, *after)}
    values = [first[task] for task in both], [second[task] for task in both]
    at: Difference = difference(*values, [clusters[task] for task in both], bounded=bounded)
    means = [
        bootstrap(list(own.values()), [clusters[task] for task in own], np.random.default_rng(0)).to_dict()
        for own in (first, second)
    ]
    return {"means": means, "tasks": len(both), "difference": at.to_dict()}


def _by_task(side: Sequence[Played], metric: Metric) -> dict[str, float]:
    by_key = {episode_key(played.episode): played for played in side}
    found: dict[str, float] = {}
    for (_, task), attempts in by_task(played.episode for played in side).items():
        values = [value for episode in attempts if (value := metric(by_key[episode_key(episode)])) is not None]
        if values:
            found[task] = fmean(values)
    return found


# The page.


_PAGE = """# Why trained models fail

```sh
uv run python benchmarks/forensics.py --runs runs
uv run python benchmarks/forensics.py --report docs/results
```

Every unsuccessful episode has [one cause](../evaluation.md#why-episodes-fail). Here are those of five training runs,
after imitation (SFT) and after RL, on the same tasks, sampled at temperature 1. The causes that need the expert are
included in BabyAI and TextCraft, where all episodes were replayed, without a deviation. In MiniWoB++ the expert doesn't
decide from the current state, so there are no distances, and what needs them is shown as –. Differences are paired by
task, with 95% intervals over tasks, or over levels and kinds of pages where there are at least ten of them (SmolLM2 in
BabyAI and MiniWoB++); p-values of causes are adjusted for their number (Holm).

{studies}

The quickstart is a model from scratch with at most 12 turns. The [runs of SmolLM2-135M](smollm2.md) have at most 10
turns in TextCraft, 12 in BabyAI and 8 in MiniWoB++. Those in TextCraft are of that page's superseded methods: `cloning`
(the first run, with the code of 9a18daed), and `dagger` (the run with DAgger, at 3f6ef929), which has a learning rate
of 1e-3 instead of 6e-4, and whose model RL made worse. The present recipe isn't among them. The quickstart's run isn't
one of [the three on its page](quickstart.md), whose seed 0 reached 0.958; its commit isn't recorded. In BabyAI and
MiniWoB++, the episodes are those committed in `docs/results/smollm2` (5e1adab3 and 3ea43f46): one attempt per task, in
BabyAI at every second task. The page of these runs has four attempts per task and all tasks, so its success differs;
over all of these, the gain in MiniWoB++ is just detected, and here it is not. There is one training seed each: the
intervals say how these models do on other tasks, not how another training run would end.

## Causes

{causes}

- In the quickstart, where the imitating model reaches the goal in half of its episodes, RL removes most of running out
  of turns and moving away, and all over-interaction. Of the 19 failures that are left, 8 are invalid actions.
- In the first run in TextCraft the failures are procedural: nearly all unsuccessful episodes end in commands that the
  environment rejects, before and after RL. RL makes such episodes rarer, and no other cause takes their place.
- In the run with DAgger, RL also removes 20 points of these, but 28 points of other failures take their place: the
  model uses up its turns with commands that are accepted and don't help, or passes by a goal that is in reach.
- SmolLM2 in BabyAI has invalid actions as the cause in 16 of 27 unsuccessful episodes after imitation and in none of 16
  after RL. No change of another cause is detected in these 50 tasks; the intervals are up to 41 points wide.
- In MiniWoB++ most failures are wrong final actions: 26 of 29 after imitation and 18 of 21 after RL. The last action
  ended the task on the page with less than the full reward, such as a click on another link or submitting the wrong
  checkboxes. Neither their change nor that of another cause is detected.
- No episode of these runs gave up.

Why TextCraft rejected the commands of unsuccessful episodes, as shares of them:

{refusals}

In the first run, unknown items, which are names copied wrongly, become rarer, and most of what remains is about
quantities: crafting before everything is gathered, and amounts that no multiple of the recipe gives. In the run with
DAgger, which got worse, it is the other way round.

## Over-interaction, repetition, brute force against skill

The AgentGym-RL paper ([2509.08755](https://arxiv.org/abs/2509.08755)) describes procedural failures, interaction beyond
what a task needs, and success by trying many actions where skill would need few. The same in numbers, per episode.
Distances are numbers of the expert's actions. *Left one action before the goal* is the share of attempts that failed
although the goal was one action away with more than one turn left, whatever their cause. Rows of failures and of
successes have only these episodes; their difference is over the tasks with such episodes on both sides, whose number is
in the last column.

Quickstart, BabyAI:

{metrics_0}

SmolLM2 cloning, TextCraft:

{metrics_1}

SmolLM2 dagger, TextCraft:

{metrics_2}

SmolLM2, BabyAI:

{metrics_3}

SmolLM2, MiniWoB++:

{metrics_4}

Success within a number of turns:

{within}

- **Skill rather than brute force in the quickstart.** After RL episodes are half as long and repeat less, and on tasks
  that both models solve they are 2.6 turns nearer to the expert's length. Within 4 turns the model gains 36 of the 47
  points that it gains within 12. It needs one turn less than the expert on average, which is careful about what it
  hasn't seen: the expert's length is a yardstick and not a lower bound.
- **No such change in the first run in TextCraft.** Success rises at every number of turns from 4 on, but successes
  take as many turns beyond the expert's as before, and the same share of them is direct. RL solves more tasks, and not
  by shorter ways.
- **Over-interaction marks the run that got worse.** There the attempts that fail with the goal one action away and
  turns left rise from 12% to 21%, and failures get further towards the goal than before. In the quickstart RL
  removes over-interaction; in the other runs with distances no change is detected (SmolLM2 in BabyAI: 22% to 6%,
  -0.16, -0.33 to +0.02).
- **Failures are decided early.** In TextCraft unsuccessful episodes go on for 7 to 8 of their 10 turns after they were
  first at their nearest, before and after RL, so a longer horizon alone would not help them. SmolLM2 in BabyAI goes on
  for 8 of 12 turns after imitation and for 7 after RL.
- **Repetition.** In the first run in TextCraft a third of the invalid commands were rejected before in the same
  episode, before and after RL. With DAgger, which shows what to do after a rejection, it is a fifth, and after RL a
  tenth.
- **Fewer invalid actions of SmolLM2 in BabyAI, and no shorter ways detected.** Invalid actions fall from 3.3 to 1.1 per
  episode (-2.12, -3.98 to -1.08), and episodes are 1.7 turns shorter (-1.72, -3.67 to -0.15). On the
  20 tasks that both models solve, no change of the turns beyond the expert's is detected (-0.50, -2.00 to +0.65).
- **Short episodes in MiniWoB++.** They have 1.9 turns after imitation and 1.8 after RL, of at most 8, with 0.01 and
  0.05 invalid and 0.15 and 0.10 repeated valid actions. No difference is detected in these rows.

## Limits

These are five runs of small models in three environments, with one seed each. SmolLM2's episodes in BabyAI and
MiniWoB++ are few, 50 and 96 before and after RL, so only large changes are detected there. Wrong final actions occur in
MiniWoB++ only, on pages that end with an action; tasks that ask for an answer in words, where agents may answer wrongly
or give up, are missing. In MiniWoB++ no failure ended at a budget, so the missing distances change no cause. Thresholds
are the defaults of `FailureCriteria`. An episode with invalid actions and over-interaction counts as the former; *left
one action before the goal* counts over-interaction whatever the cause is. The expert's distance in BabyAI depends on
what has been seen, so it can grow when the agent learns of an obstacle.
"""


def cause_rows(records: dict[str, Any]) -> list[dict[str, str]]:
    """Return a row for each cause in each study."""
    return [
        {
            "study": study,
            "cause": LABELS[kind],
            "after imitation": f"{record['causes'][kind]['first']:.1%}",
            "after RL": f"{record['causes'][kind]['second']:.1%}",
            "difference": _points(record["causes"][kind]),
        }
        for study, record in records.items()
        for kind in KINDS
        if kind in record["causes"]
    ]


def metric_rows(record: dict[str, Any]) -> list[dict[str, str]]:
    """Return a row for each metric of a study."""
    return [
        {
            "per episode": name,
            "after imitation": _mean(found["means"][0]),
            "after RL": _mean(found["means"][1]),
            "difference": _plain(found["difference"]),
            "tasks": str(found["tasks"]),
        }
        for name, found in record["metrics"].items()
    ]


def refusal_rows(records: dict[str, Any]) -> list[dict[str, str]]:
    """Return a row for each reason why TextCraft rejected commands of unsuccessful episodes."""
    return [
        {"study": study, "rejected because of": reason, "after imitation": f"{share:.0%}", "after RL": f"{later:.0%}"}
        for study, record in records.items()
        if record["refusals"]
        for (reason, share), later in zip(record["refusals"][0].items(), record["refusals"][1].values(), strict=True)
    ]


def turn_rows(records: dict[str, Any]) -> list[dict[str, str]]:
    """Return the success within each number of turns, a row for each study and phase."""
    return [
        {"study": f"{study}, {phase}"} | {str(n): f"{by[str(n)]['mean']:.2f}" if str(n) in by else "" for n in _WITHIN}
        for study, record in records.items()
        for phase, by in zip(("imitation", "RL"), record["within"], strict=True)
    ]


def study_rows(records: dict[str, Any]) -> list[dict[str, str]]:
    """Return a row for each study."""
    return [
        {
            "study": study,
            "split": record["split"],
            "tasks": str(record["tasks"]),
            "episodes": " / ".join(map(str, record["episodes"])),
            "failures": " / ".join(map(str, record["failures"])),
            "success after imitation": f"{record['success']['first']:.3f}",
            "after RL": f"{record['success']['second']:.3f}",
            "difference": _points(record["success"]),
        }
        for study, record in records.items()
    ]


def _points(at: dict[str, Any]) -> str:
    found, p = at["difference"], at["p_adjusted"]
    return f"{100 * found['mean']:+.1f} ({100 * found['low']:+.1f} to {100 * found['high']:+.1f}), p {p:.4f}"


def _plain(at: dict[str, Any]) -> str:
    found, p = at["difference"], at["p"]
    if p is None or found["low"] is None:
        return "–"
    return f"{found['mean']:+.2f} ({found['low']:+.2f} to {found['high']:+.2f}), p {p:.4f}"


def _mean(found: dict[str, Any]) -> str:
    mean, low, high = (math.nan if found[name] is None else found[name] for name in ("mean", "low", "high"))
    if math.isnan(mean):
        return "–"
    return f"{mean:.2f}" if math.isnan(low) else f"{mean:.2f} ({low:.2f} to {high:.2f})"


def main() -> None:
    """Measure all studies, or write the page from their record."""
    parser = arguments(__doc__, "report")
    parser.add_argument("--runs", type=Path, default=Path("runs"), help="folder with the runs")
    parser.add_argument("--studies", nargs="+", choices=list(STUDIES), help="which of them; all that are there if None")
    settings = parser.parse_args()
    records: dict[str, Any] = json.loads(_FILE.read_text(encoding="utf-8")) if _FILE.exists() else {}
    if settings.report is None:
        files = {study: [settings.runs / file for file in sides] for study, sides in STUDIES.items()}
        studies = settings.studies or [study for study in STUDIES if all(file.exists() for file in files[study])]
        found = {study: record_of(*files[study]) for study in studies}
        records = {study: (records | found)[study] for study in STUDIES if study in records | found}
        write_json(_FILE, records)
    elif records:
        tables = {"studies": study_rows(records), "causes": cause_rows(records), "within": turn_rows(records)}
        tables["refusals"] = refusal_rows(records)
        own = {f"metrics_{number}": metric_rows(record) for number, record in enumerate(records.values())}
        page = _PAGE.format(**{name: markdown(rows) for name, rows in (tables | own).items()})
        write_report(settings.report, "forensics", page)
    show("Studies", study_rows(records)) if records else print("No study is measured.")


if __name__ == "__main__":
    main()
