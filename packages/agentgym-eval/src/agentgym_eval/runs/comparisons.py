"""Reports and comparisons of runs, for the commands `evaluate` and `compare`."""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path
from typing import Any

from agentgym_envs import Episode
from agentgym_envs.util.installation import command

from agentgym_eval.metrics.comparison import Comparison, adjusted, compare
from agentgym_eval.metrics.failure_causes import Distances, EpisodeKey, all_measured, episode_key
from agentgym_eval.metrics.summary import TaskKey, by_task, report, task_of
from agentgym_eval.reports.evaluated import Evaluated
from agentgym_eval.runs.oracle_distances import saved_distances
from agentgym_eval.storage.attempts import Attempts, read_attempts
from agentgym_eval.storage.distances import read_distances
from agentgym_eval.storage.store import RUN, expected_episodes
from agentgym_eval.util.errors import UsageError, listed

_OWN = ("env", "policy", "tasks_sha256", "tasks_before")  # settings in which compared runs differ by design


@dataclass(frozen=True, slots=True)
class EvaluatedRun:
    """The episodes of a run and its report."""

    evaluated: Evaluated
    episodes: Sequence[Episode]
    distances: Mapping[EpisodeKey, Distances] = field(default_factory=dict[EpisodeKey, Distances])
    """The expert's distances in unsuccessful episodes, if they were measured."""
    left_out: Sequence[str] = ()
    """A message for each line of its file that doesn't count: it is incomplete, or a later one has the same task and
    sample."""
    notes: Sequence[str] = ()
    """A sentence if the expert's distances were to be measured, and can't be, or can't be saved."""


def against_first(played: Sequence[EvaluatedRun], seed: int) -> list[Comparison]:
    """Compare every policy with the first: in each environment with the first that played it, and over all of them if
    common tasks are of several environments. The p-values are adjusted for the number of comparisons.
    """
    worlds = dict.fromkeys(run.evaluated.world for run in played)
    found = list[Comparison]()
    for world in worlds:
        runs = [run for run in played if run.evaluated.world == world]
        found += _pairs(runs, f" in {world}" if len(worlds) > 1 else "", seed)
    if len(worlds) > 1:
        pooled = _pairs(played, " in all environments", seed, over_all=True)
        found += [comparison for comparison in pooled if comparison.tasks]
    return adjusted(found)


def seed_by_seed(ours: Sequence[EvaluatedRun], theirs: Sequence[EvaluatedRun], seed: int) -> list[Comparison]:
    """Compare the runs of one training method with those of another, run by run. The p-values are not adjusted, because
    the pairs are repetitions of one comparison.

    Raises:
        UsageError: If the methods differ in the number of runs, have fewer than two, or are in several environments.
    """
    if len(ours) != len(theirs) or len(ours) < 2 or len({run.evaluated.world for run in (*ours, *theirs)}) > 1:
        raise UsageError(
            "--against takes as many runs as are named before it, at least two, in one environment and in the same "
            f"order of training seeds, not {len(theirs)} against {len(ours)}: {command('compare')} runs/a-0 runs/a-1 "
            "--against runs/b-0 runs/b-1."
        )
    return [
        compare(
            a.episodes,
            b.episodes,
            names=(a.evaluated.policy, b.evaluated.policy),
            seed=seed,
            distances=(a.distances, b.distances),
        )
        for a, b in zip(ours, theirs, strict=True)
    ]


def nothing_common(played: Sequence[EvaluatedRun]) -> str:
    """Return why no comparison of the runs has a task, as a sentence: the failed episodes of those that played a task
    of another run, or that no two runs played the same one.
    """
    tasks = [set(map(task_of, run.episodes)) for run in played]
    failures = [
        f"{overall.failed} of {overall.episodes} episodes of {at.policy} in {at.folder} failed, most often with "
        f"{next(iter(at.report.faults))}"
        for i, at in enumerate(run.evaluated for run in played)
        if (overall := at.report.overall).failed and any(tasks[i] & other for other in (*tasks[:i], *tasks[i + 1 :]))
    ]
    if not failures:
        return "These runs have no task in common; name runs of the same environment and split."
    return (
        f"At each task that these runs share, all episodes of one of them failed: {'; '.join(failures)}. Fix the "
        "causes, and start the failed runs over with --overwrite."
    )


def _pairs(runs: Sequence[EvaluatedRun], suffix: str, seed: int, *, over_all: bool = False) -> list[Comparison]:
    """Compare every policy of the runs with the first; with `over_all`, not those whose comparison in one environment
    is about the same tasks.
    """
    by_policy: dict[str, list[EvaluatedRun]] = defaultdict(list)
    for run in runs:
        by_policy[run.evaluated.policy].append(run)
    (first, ours), *others = by_policy.items()
    if over_all:
        others = [(name, theirs) for name, theirs in others if not _share_one_world(ours, theirs)]
    return [
        compare(
            _episodes_of(ours),
            _episodes_of(theirs),
            names=(first + suffix, name + suffix),
            seed=seed,
            distances=(_distances_of(ours), _distances_of(theirs)),
        )
        for name, theirs in others
    ]


def _share_one_world(ours: Sequence[EvaluatedRun], theirs: Sequence[EvaluatedRun]) -> bool:
    """Return whether two policies have common tasks, and all of them in one environment."""
    common = by_task(_episodes_of(ours)).keys() & by_task(_episodes_of(theirs)).keys()
    for world in dict.fromkeys(run.evaluated.world for run in ours):
        sides = [[run for run in side if run.evaluated.world == world] for side in (ours, theirs)]
        here = by_task(_episodes_of(sides[0])).keys() & by_task(_episodes_of(sides[1])).keys()
        if common and here == common:
            return True
    return False


def _episodes_of(runs: Sequence[EvaluatedRun]) -> list[Episode]:
    return [episode for run in runs for episode in run.episodes]


def _distances_of(runs: Sequence[EvaluatedRun]) -> dict[EpisodeKey, Distances]:
    return {key: known for run in runs for key, known in run.distances.items()}


def read_runs(paths: Sequence[Path], ks: Sequence[int], seed: int, *, forensics: bool = False) -> list[EvaluatedRun]:
    """Read the runs at `paths`: folders of `evaluate`, with one run or several, training runs, of which the last
    evaluation counts, or files of episodes.

    If several runs of a policy share a task, the path is added to the policy's name, or the run's folder if the path
    contains several runs. The expert's distances are those that were measured before, if all runs have them; with
    `forensics`, missing ones are measured, if all runs can be replayed, and written next to the episodes.

    Raises:
        UsageError: If there are fewer than two runs, if one has no episodes or can't be read, or if a k exceeds
            the attempts of every run.
    """
    files = files_of(paths)
    if len(files) < 2:
        raise UsageError(f"A comparison needs at least two runs, but got {listed(list(map(str, files))) or 'none'}.")
    attempts = {file: _attempts(file) for file in files}
    records = {file: _record(file) for file in files}
    runs = {file: each.episodes for file, each in attempts.items()}
    _check_options(ks, seed, runs.values())
    policies = {file: _policy(records[file], run) for file, run in runs.items()}
    names = _unique_names(policies, files, {file: set(map(task_of, run)) for file, run in runs.items()})
    known = {file: _distances(file, run, measured=forensics) for file, run in runs.items()}
    comparable = all_measured((_failures(run), known[file][0]) for file, run in runs.items())
    return [
        replace(
            _played(names[file], file, attempts[file], records[file], ks, seed, distances if comparable else {}),
            notes=list(filter(None, [note])),
        )
        for file, (distances, note) in known.items()
    ]


def files_of(paths: Sequence[Path]) -> dict[Path, Path]:
    """Return the files of the runs at `paths`, each with its path; a file that is named twice counts once.

    Raises:
        UsageError: If a path doesn't exist or has no episodes.
    """
    return {file: path for path in paths for file in _files(path)}


def _distances(file: Path, episodes: Sequence[Episode], *, measured: bool) -> tuple[dict[EpisodeKey, Distances], str]:
    """Return the expert's distances of a file, and what to say of them: nothing unless they are to be measured."""
    if not measured:
        return read_distances(file), ""
    found, note = saved_distances(file, episodes)
    if not all_measured([(_failures(episodes), found)]):
        note = (
            f"Causes are compared without the expert's distances, which can't be measured for all episodes of {file}: "
            "that needs an environment whose expert decides from the current state, replays that return the recorded "
            "observations, and one episode for each task and sample."
        )
    return found, note


def _failures(episodes: Sequence[Episode]) -> list[EpisodeKey]:
    return [episode_key(episode) for episode in episodes if not (episode.success or episode.failed)]


def read_run(path: Path, ks: Sequence[int], seed: int) -> EvaluatedRun:
    """Read one run: a folder of `evaluate` with one run, a training run's last evaluation, or a file of episodes.

    Raises:
        UsageError: If it has no episodes or can't be read, or if a k exceeds the attempts.
    """
    (file,) = _files(path)
    attempts, record = _attempts(file), _record(file)
    _check_options(ks, seed, [attempts.episodes])
    distances = read_distances(file)
    distances = distances if all_measured([(_failures(attempts.episodes), distances)]) else {}
    return _played(_policy(record, attempts.episodes), file, attempts, record, ks, seed, distances)


def _check_options(ks: Sequence[int], seed: int, runs: Iterable[Sequence[Episode]]) -> None:
    """Raise `UsageError` if no run has enough attempts for the largest k, or a value is too small."""
    if seed < 0 or any(k < 1 for k in ks):
        raise UsageError(f"seed must be 0 or more, and every k 1 or more, not seed {seed} and k {list(ks)}.")
    most = max(len(attempts) for run in runs for attempts in [[], *by_task(run).values()])
    if max(ks, default=0) > most:
        raise UsageError(
            f"pass@{max(ks)} needs {max(ks)} attempts at a task, but these runs have at most {most}; lower --k."
        )


def _unique_names(
    policies: Mapping[Path, str], paths: Mapping[Path, Path], tasks: Mapping[Path, Set[TaskKey]]
) -> dict[Path, str]:
    """Return the policy of each file, with its path appended if several runs of the policy share a task."""
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
    policy: str,
    file: Path,
    attempts: Attempts,
    record: dict[str, Any],
    ks: Sequence[int],
    seed: int,
    distances: dict[EpisodeKey, Distances],
) -> EvaluatedRun:
    episodes = attempts.episodes
    fewest = min((len(attempts) for attempts in by_task(episodes).values()), default=1)
    powers = [2**i for i in range(fewest.bit_length())]
    found = report(episodes, ks=ks or powers, seed=seed, distances=distances)
    folder = file.parent if file.name == _EPISODES else file
    about = {name: record[name] for name in ("settings",) if name in record}
    total, count = expected_episodes(record), len(episodes)
    if total is not None and count < total:
        about["incomplete"] = f"{folder} is incomplete: {count:,} of {total:,} episodes have been played."
    evaluated = Evaluated(policy, _values(episodes, "env"), found, folder, about)
    return EvaluatedRun(evaluated, episodes, distances, attempts.left_out)


def differing(played: Sequence[EvaluatedRun]) -> Iterator[str]:
    """Yield a sentence for each setting in which runs differ, except policy, environment and tasks."""
    known: Sequence[Mapping[str, Any]] = [found for run in played if (found := run.evaluated.about.get("settings"))]
    for name in dict.fromkeys(chain.from_iterable(known)):
        values = list(dict.fromkeys(json.dumps(settings.get(name)) for settings in known))
        if len(values) > 1 and name not in _OWN:
            yield f"The runs differ in {name}: {', '.join(values)}."


_EPISODES = "episodes.jsonl"
_EVALUATION = re.compile(r"(step|test)-(\d+)-(sampled|greedy)\.jsonl$")
"""Name of a training run's evaluation: on dev tasks (step) or test tasks, the training step, and the decoding."""


def _files(path: Path) -> list[Path]:
    if not path.is_dir():
        if path.exists():
            return [path]
        raise UsageError(f"There is no run at {path}; name a folder of `evaluate` or a file of episodes.")
    own = path / _EPISODES
    found = [own] if own.exists() else _in_order(path) or _last_evaluation(path)
    if not found:
        raise UsageError(
            f"{path} has no episodes to compare: neither {_EPISODES} in it or in a folder in it, nor evaluations of a "
            "training run. Name a folder that `evaluate` or `train` wrote."
        )
    return found


def _last_evaluation(path: Path) -> list[Path]:
    """Return the evaluation that a training run ended with, if any, by the same `finality` as in the viewer."""
    found = [(file, each) for file in path.glob("evaluations/*.jsonl") if (each := _EVALUATION.match(file.name))]
    last = max(found, key=lambda pair: finality(pair[1][1], int(pair[1][2]), pair[1][3]), default=None)
    return [last[0]] if last else []


def finality(split: str, step: int, decoding: str) -> tuple[bool, int, bool, bool]:
    """Return a sort key of a training run's evaluations: the test of the final model last, then by step, where the test
    of the initial model follows the other evaluation of step 0, then sampled after greedy.

    A run that was stopped during its test may have played only the initial model.
    """
    return split == "test" and step > 0, step, split == "test", decoding == "sampled"


def _in_order(path: Path) -> list[Path]:
    """Return the runs in a folder of several, in the order of their common report."""
    try:
        reported = [Path(run["folder"]).name for run in json.loads((path / "report.json").read_text())["runs"]]
    except (OSError, ValueError, KeyError, TypeError):
        reported = []
    places = {name: place for place, name in enumerate(reported)}
    found = sorted(file for file in path.glob(f"*/{_EPISODES}") if file.stat().st_size)  # empty files have no episodes
    return sorted(found, key=lambda file: places.get(file.parent.name, len(places)))


def _attempts(file: Path) -> Attempts:
    try:
        attempts = read_attempts(file)
    except (OSError, ValueError) as error:
        raise UsageError(f"{file} can't be read as episodes: {error}") from error
    if not attempts.episodes:
        half = f" ({attempts.left_out[0]})" if attempts.left_out else ""
        raise UsageError(f"{file} has no episodes{half}; run `evaluate` first.")
    return attempts


def _record(file: Path) -> dict[str, Any]:
    """Return the `run.json` of the file's run; empty if it isn't part of one."""
    path = file.with_name(RUN)
    if file.name != _EPISODES or not path.exists():
        return {}
    try:
        record = dict(json.loads(path.read_text(encoding="utf-8")))
        if not isinstance(dict(record["settings"]).get("policy", ""), str):
            raise TypeError("the policy is no text")
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UsageError(f"{path} can't be read: {error!r}") from error
    return record


def _policy(record: Mapping[str, Any], episodes: Sequence[Episode]) -> str:
    """Return the policy of a run, as in its settings."""
    return record.get("settings", {}).get("policy", _values(episodes, "policy"))


def _values(episodes: Sequence[Episode], field: str) -> str:
    return listed(list(dict.fromkeys(getattr(episode, field) for episode in episodes)))
