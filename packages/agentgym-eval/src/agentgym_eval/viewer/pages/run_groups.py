"""Groups of training runs that differ only in their seed, such as those of a sweep."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass

from agentgym_eval.viewer.index.runs import Run

_SEED = re.compile(r"[/_ -]?seed[_= -]?\d+", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class RunGroup:
    """Runs with the same settings and different seeds; or a single run."""

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
    return [RunGroup(_name(group), tuple(group)) for group in groups.values()]


def _name(runs: list[Run]) -> str:
    """Return the name that the runs share without the seed, such as `lr=1e-3` of `lr=1e-3_seed=0`."""
    if len(runs) == 1:
        return runs[0].name
    names = {_SEED.sub("", run.name) for run in runs}
    return names.pop() if len(names) == 1 and all(names) else f"{runs[0].name} and {len(runs) - 1} more"
