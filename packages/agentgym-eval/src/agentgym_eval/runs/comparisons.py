"""What `evaluate` and `compare` find out about runs: a report of each, and what sets them apart from the first.

Knows a run as episodes of a policy in a world. Knows no command line, and nothing about playing.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

from agentgym_envs import Episode, read_episodes

from agentgym_eval.metrics.comparison import Comparison, adjusted, compare
from agentgym_eval.metrics.summary import TaskKey, by_task, report, task_of
from agentgym_eval.reports.evaluated import Evaluated
from agentgym_eval.util.errors import UsageError, listed

_OWN = ("env", "policy", "tasks_sha256")  # settings in which runs differ as a matter of course


@dataclass(frozen=True, slots=True)
class EvaluatedRun:
    """The episodes of a run, and what they come to."""

    evaluated: Evaluated
    episodes: Sequence[Episode]


def against_first(played: Sequence[EvaluatedRun], seed: int) -> list[Comparison]:
    """Every policy against the first: in each world that both played, and over all worlds where there are several. The
    p-values are adjusted for the number of comparisons.
    """
    worlds = dict.fromkeys(run.evaluated.world for run in played)
    found = list[Comparison]()
    for world in worlds:
        runs = [run for run in played if run.evaluated.world == world]
        found += _pairs(runs, f" in {world}" if len(worlds) > 1 else "", seed)
    return adjusted(found + (_pairs(played, " in all worlds", seed) if len(worlds) > 1 else []))


def seed_by_seed(played: Sequence[EvaluatedRun], seed: int) -> list[Comparison]:
    """The second half of the runs against the first, run by run. The p-values are not adjusted: the pairs repeat one
    comparison.

    Raises:
        UsageError: when the halves aren't as many runs, two at least, of one world.
    """
    half, odd = divmod(len(played), 2)
    pairs = list(zip(played[:half], played[half:], strict=False))
    if odd or half < 2 or len({run.evaluated.world for run in played}) > 1:
        raise UsageError(
            "--against takes as many runs as stand before it, two at least, in one world and in the same order of "
            "training seeds: compare runs/a-0 runs/a-1 --against runs/b-0 runs/b-1."
        )
    names = [(a.evaluated.policy, b.evaluated.policy) for a, b in pairs]
    return [compare(a.episodes, b.episodes, names=n, seed=seed) for (a, b), n in zip(pairs, names, strict=True)]


def _pairs(runs: Sequence[EvaluatedRun], where: str, seed: int) -> list[Comparison]:
    by_policy: dict[str, list[Episode]] = defaultdict(list)
    for run in runs:
        by_policy[run.evaluated.policy] += run.episodes
    (first, ours), *others = by_policy.items()
    return [compare(ours, theirs, names=(first + where, name + where), seed=seed) for name, theirs in others]


def read_runs(paths: Sequence[Path], ks: Sequence[int], seed: int) -> list[EvaluatedRun]:
    """The runs that lie at `paths`: folders of `evaluate`, with one run or several, or files of episodes.

    A policy that played a task in more than one run is told apart by the path, or by the folder where that is one.

    Raises:
        UsageError: when there are fewer than two, one of them holds no episodes or can't be read, or `ks` asks for more
            attempts than any of them has.
    """
    files = {file: path for path in paths for file in _files(path)}
    if len(files) < 2:
        raise UsageError(f"It takes two runs to compare; here is {listed(list(map(str, files))) or 'none'}.")
    runs = {file: (_episodes(file), _settings(file)) for file in files}
    _check_powers(ks, [run for run, _ in runs.values()])
    policies = {file: settings.get("policy", _named(run, "policy")) for file, (run, settings) in runs.items()}
    names = _told_apart(policies, files, {file: set(map(task_of, run)) for file, (run, _) in runs.items()})
    return [_played(names[file], file, *runs[file], ks, seed) for file in files]


def _check_powers(ks: Sequence[int], runs: Iterable[Sequence[Episode]]) -> None:
    """Refuse a k that no run has the attempts for; where one of them does, the others' columns are empty."""
    most = max(len(attempts) for run in runs for attempts in [[], *by_task(run).values()])
    if max(ks, default=0) > most:
        raise UsageError(f"pass@{max(ks)} needs as many attempts at a task, and these runs have {most}: lower --k.")


def _told_apart(
    policies: Mapping[Path, str], paths: Mapping[Path, Path], tasks: Mapping[Path, Set[TaskKey]]
) -> dict[Path, str]:
    """The policy of each file, with a place behind it where several runs of the policy share a task."""
    files: dict[str, list[Path]] = defaultdict(list)
    for file, policy in policies.items():
        files[policy].append(file)
    names = dict(policies)
    for policy, own in files.items():
        if len(set[TaskKey]().union(*(tasks[file] for file in own))) < sum(len(tasks[file]) for file in own):
            one = len({paths[file] for file in own}) == 1
            names |= {file: f"{policy} ({file.parent if one else paths[file]})" for file in own}
    return names


def _played(
    policy: str, file: Path, episodes: list[Episode], settings: dict[str, Any], ks: Sequence[int], seed: int
) -> EvaluatedRun:
    fewest = min((len(attempts) for attempts in by_task(episodes).values()), default=1)
    powers = [2**i for i in range(fewest.bit_length())]
    found = report(episodes, ks=ks or powers, seed=seed)
    folder = file.parent if file.name == _EPISODES else file
    about = {"settings": settings} if settings else {}
    return EvaluatedRun(Evaluated(policy, _named(episodes, "env"), found, folder, about), episodes)


def differing(played: Sequence[EvaluatedRun]) -> Iterator[str]:
    """In which settings runs differ besides who plays where, a sentence for each."""
    known: Sequence[Mapping[str, Any]] = [found for run in played if (found := run.evaluated.about.get("settings"))]
    for name in dict.fromkeys(chain.from_iterable(known)):
        values = list(dict.fromkeys(json.dumps(settings.get(name)) for settings in known))
        if len(values) > 1 and name not in _OWN:
            yield f"They differ in {name}: {', '.join(values)}."


_EPISODES = "episodes.jsonl"


def _files(path: Path) -> list[Path]:
    if not path.is_dir():
        if path.exists():
            return [path]
        raise UsageError(f"There is no run at {path}; name a folder of `evaluate` or a file of episodes.")
    own = path / _EPISODES
    found = [own] if own.exists() else _in_order(path)
    if not found:
        here = sorted(str(file) for file in path.glob("evaluations/*.jsonl"))
        hint = f"Name one of its evaluations: {listed(here)}." if here else "Name a folder that `evaluate` wrote."
        raise UsageError(f"{path} holds no {_EPISODES}, and no folder in it does. {hint}")
    return found


def _in_order(path: Path) -> list[Path]:
    """The runs in a folder of several: as they were reported together, so that the first stays the first."""
    try:
        reported = [Path(run["folder"]).name for run in json.loads((path / "report.json").read_text())["runs"]]
    except (OSError, ValueError, KeyError, TypeError):
        reported = []
    places = {name: place for place, name in enumerate(reported)}
    found = sorted(file for file in path.glob(f"*/{_EPISODES}") if file.stat().st_size)  # else nothing was played
    return sorted(found, key=lambda file: places.get(file.parent.name, len(places)))


def _episodes(file: Path) -> list[Episode]:
    try:
        episodes = list(read_episodes(file))
    except (OSError, ValueError) as error:
        raise UsageError(f"{file} can't be read as episodes: {error}") from error
    if not episodes:
        raise UsageError(f"{file} holds no episodes; play some first.")
    return episodes


def _settings(file: Path) -> dict[str, Any]:
    """What the run beside the file says that it was played with; nothing where there is no run."""
    about = file.with_name("run.json")
    if file.name != _EPISODES or not about.exists():
        return {}
    try:
        return dict(json.loads(about.read_text(encoding="utf-8"))["settings"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UsageError(f"{about} can't be read: {error!r}") from error


def _named(episodes: Sequence[Episode], noun: str) -> str:
    return listed(list(dict.fromkeys(getattr(episode, noun) for episode in episodes)))
