"""Groups of training runs: those that differ only in their seed, such as those of a sweep, or those with a tag."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from agentgym_eval.viewer.index.runs import Run

_SEED = re.compile(r"[/_ -]?seed[_= -]?\d+", re.IGNORECASE)
_NUMBER = re.compile(r"[_= -]*(?<![/\d])\d+$")


@dataclass(frozen=True, slots=True)
class RunGroup:
    """Runs of which a chart shows the mean; or a single run."""

    name: str
    runs: tuple[Run, ...]


def seed_groups(runs: Iterable[Run]) -> list[RunGroup]:
    """Group runs whose recorded settings are equal except for `seed`, in the order of their first runs.

    Runs that recorded no settings stay alone. Of several runs with the same seed, each starts another group, because
    repetitions of a seed are not a sample of seeds.
    """
    groups: dict[tuple[str, int], list[Run]] = {}
    repeats: dict[tuple[str, str], int] = {}
    for run in runs:
        settings = {name: value for name, value in run.settings.items() if name != "seed"}
        key = json.dumps([run.kind, settings], sort_keys=True) if run.settings else run.slug
        seed = (key, json.dumps(run.settings.get("seed")))
        repeats[seed] = repeats.get(seed, 0) + 1
        groups.setdefault((key, repeats[seed]), []).append(run)
    shared = [_shared_name(group) for group in groups.values()]
    return [
        RunGroup(name if name and shared.count(name) == 1 else _first_name(group), tuple(group))
        for name, group in zip(shared, groups.values(), strict=True)
    ]


def tag_groups(runs: Sequence[Run]) -> list[RunGroup]:
    """Group runs by their tags, in alphabetical order: a run with several tags is in several groups. Tags of the same
    runs are one group, and each run without tags stays alone.
    """
    groups: dict[tuple[str, ...], list[str]] = {}
    for tag in sorted({tag for run in runs for tag in run.tags}):
        groups.setdefault(tuple(run.slug for run in runs if tag in run.tags), []).append(tag)
    by_slug = {run.slug: run for run in runs}
    tagged = [RunGroup(", ".join(tags), tuple(by_slug[slug] for slug in slugs)) for slugs, tags in groups.items()]
    return [*tagged, *(RunGroup(run.label, (run,)) for run in runs if not run.tags)]


def _shared_name(runs: list[Run]) -> str:
    """Return the name that the runs share without the seed, such as `lr=1e-3` of `lr=1e-3_seed=0`, or the beginning
    of their names before a number, such as `ppo` of `ppo-0`; empty if there is none.
    """
    if len(runs) == 1:
        return runs[0].label
    names = {_SEED.sub("", run.label) for run in runs}
    if len(names) == 1:
        return names.pop()
    names = {_NUMBER.sub("", run.label) for run in runs}
    return names.pop() if len(names) == 1 else ""


def _first_name(runs: list[Run]) -> str:
    return runs[0].label + (f" and {len(runs) - 1} more" if len(runs) > 1 else "")
