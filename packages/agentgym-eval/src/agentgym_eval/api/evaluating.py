"""`evaluate`, as a function; the command of this name plays with the same `evaluate_runs`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from os import PathLike
from typing import Unpack

from agentgym_envs import Policy, text_env

from agentgym_eval.api.options import AnyPolicy, EnvFactory, PlayOptions, named_env, named_policy, path_of, settings_of
from agentgym_eval.api.playing import Reporter, log_reporter, outside_loop, play, too_many_failed, warn
from agentgym_eval.api.report import Report
from agentgym_eval.metrics.comparison import Comparison
from agentgym_eval.metrics.failure_causes import Distances, EpisodeKey
from agentgym_eval.metrics.summary import report
from agentgym_eval.policies.policies import PolicyFactory
from agentgym_eval.reports import Evaluated, write_reports
from agentgym_eval.runs.comparisons import EvaluatedRun, against_first
from agentgym_eval.runs.oracle_distances import can_measure, measure_run
from agentgym_eval.runs.run import Run, open_runs
from agentgym_eval.runs.settings import EvaluateSettings, PlaySettings
from agentgym_eval.storage.provenance import versions
from agentgym_eval.storage.store import EPISODES
from agentgym_eval.util.errors import UsageError, WorldMissing, listed


def evaluate(
    policy: AnyPolicy,
    env: str | EnvFactory,
    *,
    out: str | PathLike[str],
    k: Sequence[int] = (),
    protocol: str | None = None,
    forensics: bool = False,
    tags: Sequence[str] = (),
    progress: bool = False,
    environment: Mapping[str, str] | None = None,
    **options: Unpack[PlayOptions],
) -> Report:
    """Evaluate a policy in an environment, as the command `evaluate` does, and write the report into the run folder.

    The same call again resumes an interrupted run, and extends a finished one to more `samples` or `tasks`. A run is
    identified by its settings and by the policy's name, not by its code: for a changed policy, give another `out`, or
    `overwrite=True`.

    Args:
        policy: An object with a `name` and a method `reply`, or a function with a name: it gets the context and returns
            the reply or its text, as a coroutine or not, and stays open. Or a name that `--policy` takes, such as
            `oracle`, `openai:MODEL`, `hf:PATH` or MODULE:NAME.
        env: A Gymnasium id, a short name such as `textcraft`, MODULE:ID, or a class or function that makes a `TextEnv`.
        out: The run folder, which is created.
        k: Values of k for pass@k and pass^k. Default: the powers of two from 1 up to `samples`.
        protocol: Evaluation settings of a paper, by name, such as `agentgym-rl`. They determine `split`, `tasks`,
            `samples`, `horizon`, `temperature` and `max_tokens` in the environment; other values of these are refused.
        forensics: Whether to replay unsuccessful episodes for the expert's distances, which tell more of their causes.
        tags: Tags of the run, by which the viewer groups and filters runs.
        progress: Whether to show the progress on stderr. Otherwise nothing is printed; the logger `agentgym_eval` gets
            warnings.
        environment: Environment variables for `openai:MODEL` (OPENAI_API_KEY, OPENAI_BASE_URL), such as `os.environ`.
            None are read by themselves.
        options: The other settings, with the names and defaults of the command's flags; see `PlayOptions`.

    Raises:
        UsageError: if the policy, the environment or a task doesn't exist, a setting is wrong (the message names the
            flag), the policy can't play the environment, or the folder holds another run.
        WorldMissing: a `UsageError`, if a package or program of the environment isn't installed.
        RunStopped: if the policy or the environment broke. The same call resumes the run.
        KeyboardInterrupt: on Ctrl-C. The same call resumes the run.
    """
    name, factory = named_policy(policy, options.get("endpoint"), environment or {})
    settings = settings_of(**options)

    def run(check: Callable[[], object]) -> Evaluation:
        with named_env(env) as world:
            own = {"policy": (name,), "env": (world,), "k": tuple(k), "out": path_of(out), "forensics": forensics}
            asked = EvaluateSettings(**own, protocol=protocol, tags=tuple(tags), **settings)
            return evaluate_runs(asked, {name: factory}, log_reporter(shows_progress=progress, check=check))

    evaluation = outside_loop(run)
    for problem in evaluation.problems:
        warn(problem)
    return Report(path_of(out), evaluation.title, evaluation.played[0])


@dataclass(frozen=True, slots=True)
class Evaluation:
    """What was played."""

    title: str
    played: Sequence[EvaluatedRun]
    """At least one run."""
    comparisons: Sequence[Comparison]
    """Of every policy with the first."""
    problems: Sequence[str]
    """A sentence for each run of which too many episodes failed."""
    incomplete: bool
    """Whether an environment was left out, because something isn't installed or a policy can't play it."""


def evaluate_runs(
    asked: EvaluateSettings, policies: Mapping[str, PolicyFactory | Policy], reporter: Reporter
) -> Evaluation:
    """Play all runs of the settings, and write their reports.

    Args:
        asked: The settings.
        policies: By name, each policy or what builds it.
        reporter: Where to report what happens.

    Raises:
        UsageError: if no policy can play any of the environments, or the expert's distances are asked for where they
            can't be measured; and as `open_runs`.
        RunStopped: as `play_runs`.
    """
    _check_folder(asked)
    played: list[EvaluatedRun] = []
    missing: dict[str, WorldMissing] = {}
    any_skipped = False

    def skip(world: PlaySettings, why: WorldMissing) -> None:
        if world.env not in missing:
            reporter.warn(f"Skipping {world.env}: {why}")
        missing[world.env] = why

    for policy, folders in asked.runs().items():
        with open_runs(folders, policies[policy], missing=skip if asked.several else None) as runs:
            if asked.forensics:
                _check_experts(runs)
            skipped = play(runs, reporter, several=asked.several)
            played += [_reported(asked, run) for run in runs if run not in skipped]
            any_skipped |= bool(skipped)
    if not played:
        raise UsageError("None of the policies can play any of the environments.")
    title = f"{asked.label} in {', '.join(asked.env)}, {asked.played_tasks}"
    comparisons = against_first(played, asked.seed)
    if asked.several:
        write_reports(asked.folder, [run.evaluated for run in played], comparisons, title=title)
    broke = "harness failed" if asked.harness.name else "environment broke"
    overall = [run.evaluated.report.overall for run in played]
    failed = [too_many_failed(metrics.failed, metrics.episodes, asked.max_failed, broke) for metrics in overall]
    return Evaluation(title, played, comparisons, list(filter(None, failed)), bool(missing) or any_skipped)


def _check_folder(asked: EvaluateSettings) -> None:
    """Refuse to mix a single run with several runs in a folder, because their reports have the same file names."""
    own = (asked.folder / "episodes.jsonl").exists()
    if asked.several and own:
        raise UsageError(f"{asked.folder} holds a single run; choose another --out for several runs.")
    if not (asked.several or own) and any(asked.folder.glob("*/episodes.jsonl")):
        raise UsageError(f"{asked.folder} holds several runs; choose another --out for a single run.")


def _check_experts(runs: Sequence[Run]) -> None:
    """Refuse to play environments whose distances were asked for and can't be measured."""
    without = list(dict.fromkeys(run.settings.env for run in runs if not can_measure(type(text_env(run.env)))))
    if without:
        raise UsageError(
            f"--forensics needs an expert that decides from the current state, which {listed(without)} "
            f"{'does' if len(without) == 1 else 'do'} not have; leave out --forensics or choose another --env."
        )


def _reported(asked: EvaluateSettings, run: Run) -> EvaluatedRun:
    """Compute and write the report of a finished run."""
    folder, usage, playing = run.store.folder, run.usage, run.settings
    about = {"task_set": run.task_set, "settings": asked.resolved(playing, folder), "versions": versions()}
    about |= {"usage": usage.to_dict(asked.endpoint.price)} if usage.requests else {}
    about |= {"protocol": run.protocol_note} if playing.protocol else {}
    distances = _distances(run) if asked.forensics else {}
    found = report(run.episodes, ks=asked.ks, seed=asked.seed, distances=distances)
    evaluated = Evaluated(playing.label, playing.env, found, about=about)
    write_reports(folder, [evaluated], title=f"{playing.label} in {playing.env}, {asked.played_tasks}")
    return EvaluatedRun(replace(evaluated, folder=folder), run.episodes, distances)


def _distances(run: Run) -> Mapping[EpisodeKey, Distances]:
    return measure_run(run.store.folder / EPISODES, run.episodes, text_env(run.env), run.settings.seed)
