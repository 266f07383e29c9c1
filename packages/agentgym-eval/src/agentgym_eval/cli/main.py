"""The commands `evaluate`, `collect` and `compare`.

Modules are imported where they are needed, heavy ones after the flags are parsed, so that `--help` is fast.
"""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

from agentgym_eval.cli.command import FAILED, USAGE, Session, print_stderr, run_command

if TYPE_CHECKING:
    from agentgym_eval.api.playing import Reporter
    from agentgym_eval.metrics.comparison import Comparison
    from agentgym_eval.metrics.seeds import AcrossSeeds
    from agentgym_eval.policies.endpoint.settings import EndpointSettings
    from agentgym_eval.policies.policies import PolicyFactory
    from agentgym_eval.runs.comparison_settings import CompareSettings
    from agentgym_eval.runs.comparisons import EvaluatedRun
    from agentgym_eval.runs.settings import CollectSettings, EvaluateSettings

_FILE_WIDTH = 180  # files and pipes have no width; the widest table fits into this one


def evaluate(argv: Sequence[str] | None = None) -> int:
    """Run the command `evaluate`, see `EvaluateSettings`. Returns the exit code."""
    from agentgym_eval.runs.settings import EvaluateSettings

    return run_command("evaluate", EvaluateSettings, _evaluate, argv, from_files=True)


def collect(argv: Sequence[str] | None = None) -> int:
    """Run the command `collect`, see `CollectSettings`. Returns the exit code."""
    from agentgym_eval.runs.settings import CollectSettings

    return run_command("collect", CollectSettings, _collect, argv, from_files=True)


def compare(argv: Sequence[str] | None = None) -> int:
    """Run the command `compare`, see `CompareSettings`. Returns the exit code."""
    from agentgym_eval.runs.comparison_settings import CompareSettings

    return run_command("compare", CompareSettings, _compare, argv)


def _evaluate(settings: EvaluateSettings, session: Session) -> int:
    from agentgym_envs.util.installation import command

    from agentgym_eval.api.evaluating import evaluate_runs
    from agentgym_eval.runs.trained_model import other_agent

    env = _worlds(settings.env, settings.protocol)
    asked = replace(settings, env=env, out=settings.out and _resolved(settings.out))
    if asked.detect is not None:
        return _plan(asked, asked.detect)
    policies = {policy: _policy_factory(policy, asked.endpoint) for policy in asked.policy}
    _warn_of_unused(asked.policy, session)
    for world in chain.from_iterable(folders.values() for folders in asked.runs().values()):
        if sentence := other_agent(world):
            print_stderr(sentence)
    session.folder = asked.folder
    evaluation = evaluate_runs(asked, policies, _reporter(session))
    _print(evaluation.played, evaluation.comparisons, evaluation.title)
    view = f"{command('view')} {shlex.quote(str(asked.folder))}"
    sys.stdout.write(f"The report and all episodes are in {asked.folder}; view them with: {view}\n")
    for problem in evaluation.problems:
        print_stderr(problem)
    return max(USAGE if evaluation.incomplete else 0, FAILED if evaluation.problems else 0)


def _plan(asked: EvaluateSettings, difference: float) -> int:
    from agentgym_eval.reports.plan import planned
    from agentgym_eval.runs.environments import choose_tasks, open_world

    folders = next(iter(asked.runs().values()))
    for folder, world in folders.items():
        with closing(open_world(world)) as env:
            tasks = choose_tasks(env, world)
        sys.stdout.writelines(f"{line}\n" for line in planned(tasks, difference, folder))
    return 0


def _resolved(out: Path) -> Path:
    """Resolve `..` in a path; otherwise creating it would also create the folders before the `..`."""
    return out.resolve() if ".." in out.parts else out


def _print(
    played: Sequence[EvaluatedRun], comparisons: Sequence[Comparison], title: str, across: AcrossSeeds | None = None
) -> None:
    from rich.console import Console

    from agentgym_eval.reports.terminal import print_report, print_runs

    console = Console(highlight=False, emoji=False, width=None if sys.stdout.isatty() else _FILE_WIDTH)
    runs = [run.evaluated for run in played]
    if len(runs) > 1:
        print_runs(runs, comparisons, title, console, across)
    else:
        task_set = runs[0].about["task_set"]
        print_report(runs[0].report, f"{title} of {task_set}" if task_set else title, console)


def _compare(settings: CompareSettings, _: Session) -> int:
    from agentgym_eval.api.comparing import compare as compare_runs

    found = compare_runs(
        settings.runs,
        against=settings.against,
        k=settings.k,
        seed=settings.seed,
        out=settings.out,
        forensics=settings.forensics,
    )
    for sentence in (sentence for report in found.runs for sentence in (*report.left_out, *report.notes)):
        print_stderr(sentence)
    _print([report.run for report in found.runs], found.comparisons, found.title, found.across_seeds)
    sys.stdout.writelines(f"{sentence}\n" for sentence in found.differing)
    if settings.out:
        sys.stdout.write(f"The report is in {_resolved(settings.out)}\n")
    return 0


def _collect(settings: CollectSettings, session: Session) -> int:
    from agentgym_eval.api.collecting import collect_episodes, problem

    asked = replace(settings, env=_worlds(settings.env), out=_resolved(settings.out))
    policy = _policy_factory(asked.policy, asked.endpoint)
    _warn_of_unused([asked.policy], session)
    session.folder = asked.folder
    card = collect_episodes(asked, policy, _reporter(session))
    for world in card.worlds:
        sys.stdout.write(f"{world.summary}\n")
    total = card.total
    failed = f"{total.failed} failed episodes left out"
    sys.stdout.write(f"Wrote {total.kept} of {total.played} episodes to {asked.out}; {failed}\n")
    if sentence := problem(asked, card):
        print_stderr(sentence)
        return FAILED
    return 0


def _worlds(named: Sequence[str], protocol: str | None = None) -> tuple[str, ...]:
    """Return the named environments, with `all` replaced by the installed ones, of a protocol if one is given; print
    which ones are missing and why.
    """
    from agentgym_eval.runs.environments import installed_worlds
    from agentgym_eval.runs.protocols import find_protocol
    from agentgym_eval.runs.settings import ALL, short_name

    if ALL not in named:
        return tuple(named)

    installed, missing = installed_worlds()
    wanted = find_protocol(protocol).envs if protocol else {*installed, *missing}
    for world in [world for world in missing if world in wanted]:
        print_stderr(f"Skipping {world}: {missing[world]}")
    short = [short_name(name) for name in named]
    others = [name for name in installed if name in wanted and name not in short]
    return tuple(name for asked in named for name in (others if asked == ALL else [asked]))


def _reporter(session: Session) -> Reporter:
    from agentgym_eval.api.playing import Reporter

    return Reporter(warn=print_stderr, say=print_stderr, shows_progress=True, opened=session.runs.extend)


def _warn_of_unused(policies: Sequence[str], session: Session) -> None:
    from agentgym_eval.cli.unused_flags import unused_flags

    for sentence in unused_flags(policies, session.arguments):
        print_stderr(sentence)


def _policy_factory(policy: str, endpoint: EndpointSettings) -> PolicyFactory:
    """Return the factory of a policy. Environment variables for endpoints are read only here."""
    from agentgym_eval.policies.policies import find_policy

    return find_policy(policy, endpoint=endpoint, environment=os.environ)
