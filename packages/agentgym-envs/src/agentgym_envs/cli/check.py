"""The command `agentgym check`: checks an environment against the contract of `TextEnv`, rule by rule, and measures its
speed and difficulty.

Exit codes: 0 all rules are kept, 1 otherwise, 2 wrong usage. Warnings don't change the exit code.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agentgym_envs.cli.arguments import command_parser
from agentgym_envs.cli.output import write_lines
from agentgym_envs.core.registration import look_here
from agentgym_envs.util.importing import described
from agentgym_envs.util.redaction import redacted

if TYPE_CHECKING:
    import gymnasium

    from agentgym_envs.checks.contract import Check
    from agentgym_envs.checks.difficulty import DifficultyCurve, Level
    from agentgym_envs.checks.speed import Speed

_FAILED, _USAGE, _INTERRUPTED = 1, 2, 130


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command and return the exit code."""
    asked = parser().parse_args(argv)

    import gymnasium
    from gymnasium.error import DependencyNotInstalled

    from agentgym_envs.core.registry import make, read_resolved

    if asked.folder is not None:
        sys.path.insert(0, str(asked.folder.resolve()))
    look_here()
    try:
        _check_numbers(asked)
        env = make(asked.env, **dict(map(read_resolved, asked.options)))
    except (ValueError, TypeError, ImportError, DependencyNotInstalled, gymnasium.error.Error) as error:
        sys.stderr.write(redacted(f"agentgym check: {error}\n"))
        return _USAGE
    try:
        found = list(_rules(env, asked))
        kept = all(rule.kept for rule in found)
        measured = _measured(env, asked) if kept else {}
    except KeyboardInterrupt:
        return _INTERRUPTED
    finally:
        env.close()
    if asked.json:
        record = {"environment": asked.env, "rules": [asdict(rule) for rule in found], **measured}
        write_lines([json.dumps(record, indent=2, ensure_ascii=False)])
    return 0 if kept else _FAILED


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    result = command_parser(
        "check",
        "Check an environment against the contract that all environments follow: determinism, rewards, the expert, any "
        "text as an action, functions, and equality in other processes. Then measure its speed, and the success of "
        "random actions and of the expert by the difficulty of tasks.",
        ("lamps:lamps/Lamps-v0", "textcraft --tasks 2 --curve-tasks 40", "textcraft --json"),
    )
    result.add_argument("env", metavar="MODULE:ID", help="the environment; MODULE is imported first")
    result.add_argument("--folder", type=Path, help="the folder with the module; default: the working folder")
    result.add_argument("--tasks", type=int, default=5, help="the number of tasks to play per split; default: 5")
    result.add_argument("--options", nargs="+", default=[], metavar="KEY=VALUE", help="options of the environment")
    result.add_argument("--no-processes", action="store_true", help="don't start other processes")
    result.add_argument(
        "--curve-tasks",
        type=int,
        default=12,
        metavar="TASKS",
        help="the number of training tasks by which to show success by difficulty; 0: none; default: 12",
    )
    result.add_argument(
        "--curve-samples", type=int, default=4, metavar="EPISODES", help="random episodes of each; default: 4"
    )
    result.add_argument(
        "--curve-seconds", type=float, default=60, metavar="SECONDS", help="begin no more of them after; default: 60"
    )
    result.add_argument("--json", action="store_true", help="print JSON")
    return result


@dataclass(frozen=True, slots=True)
class _Rule:
    """A rule of the contract."""

    name: str
    kept: bool
    reason: str
    """Why the rule is broken; empty if it is kept."""


def _check_numbers(asked: argparse.Namespace) -> None:
    for name, least in (("tasks", 1), ("curve_tasks", 0), ("curve_samples", 0), ("curve_seconds", 0)):
        if (given := getattr(asked, name)) < least:
            raise ValueError(f"--{name.replace('_', '-')} must be at least {least}, not {given:g}.")


def _rules(env: gymnasium.Env[str, str], asked: argparse.Namespace) -> Iterator[_Rule]:
    """Check the rules, and print each as soon as it is checked."""
    from agentgym_envs.checks.contract import contract_checks

    say = _quiet if asked.json else write_lines
    say([f"{asked.env}, the first {asked.tasks} tasks of each split:"])
    checks = contract_checks(env, tasks=asked.tasks, processes=not asked.no_processes)
    broken = 0
    for check in checks:
        started = time.monotonic()
        reason = _broken(check)
        broken += bool(reason)
        if reason:
            say([f"  broken  {check.name}:", f"          {reason}"])
        else:
            say([f"  ok      {check.name} ({time.monotonic() - started:.1f} s)"])
        yield _Rule(check.name, not reason, reason)
    if broken:
        say(
            [
                f"{broken} of {len(checks)} rules are broken. docs/howto/add-a-world.md explains them.",
                "Speed and difficulty are measured once all rules are kept.",
            ]
        )
    else:
        say([f"All {len(checks)} rules are kept."])


def _broken(check: Check) -> str:
    """Run a check and return why it failed, or an empty string."""
    try:
        check.run()
    except AssertionError as error:  # Gymnasium's checks raise it, and ContractError is one
        reason = str(error) or described(error)
    except Exception as error:  # noqa: BLE001 - the environment may raise anything
        reason = described(error)
    else:
        return ""
    return redacted(" ".join(reason.split()))


def _measured(env: gymnasium.Env[str, str], asked: argparse.Namespace) -> dict[str, Any]:
    """Measure speed and difficulty, print them, and return them as JSON values."""
    from agentgym_envs.checks.difficulty import difficulty_curve
    from agentgym_envs.checks.speed import measure_speed

    say = _quiet if asked.json else write_lines
    record: dict[str, Any] = {"speed": None, "difficulty": None}
    warnings = list[str]()
    try:
        speed = measure_speed(env, tasks=asked.tasks)
        say([_speed(speed)])
        record["speed"] = asdict(speed)
        warnings += filter(None, [speed.warning])
        if asked.curve_tasks:
            curve = difficulty_curve(
                env, tasks=asked.curve_tasks, samples=asked.curve_samples, seconds=asked.curve_seconds
            )
            say(_table(curve, env, asked))
            record["difficulty"] = {
                "levels": [_level(level) for level in curve.levels],
                "total": _level(curve.total),
                "failed": curve.failed,
                "complete": curve.complete,
            }
            warnings += curve.warnings
    except Exception as error:  # noqa: BLE001 - the environment may raise anything
        warnings.append(f"The measurement ended early: {redacted(described(error))}")
    say(f"  warning  {warning}" for warning in warnings)
    return {**record, "warnings": warnings}


def _speed(speed: Speed) -> str:
    return (
        f"Speed: {1 / speed.reset_seconds:,.0f} resets/s, {1 / speed.step_seconds:,.0f} steps/s in one environment; "
        f"the longest of {speed.steps} steps took {speed.longest_step * 1000:,.1f} ms."
    )


def _level(level: Level) -> dict[str, Any]:
    return {
        "difficulty": [level.lowest, level.highest],
        "tasks": level.tasks,
        "random_episodes": len(level.random),
        "random_success": level.random_success,
        "oracle_episodes": len(level.oracle),
        "oracle_success": level.oracle_success,
        "oracle_actions": level.mean_oracle_actions,
    }


def _table(curve: DifficultyCurve, env: gymnasium.Env[str, str], asked: argparse.Namespace) -> Iterator[str]:
    total = curve.total
    turns = env.spec.max_episode_steps if env.spec else None
    yield (
        f"Success by difficulty, on {total.tasks} training tasks with {len(total.random)} random episodes "
        f"and {f'at most {turns} turns' if turns else 'no limit of turns'}:"
    )
    yield f"  {'difficulty':<14}{'tasks':>6}{'random':>9}{'oracle':>9}{'its actions':>14}"
    for level in [*curve.levels, total]:
        span = f"{level.lowest}" if level.lowest == level.highest else f"{level.lowest} to {level.highest}"
        actions = level.mean_oracle_actions
        yield (
            f"  {'all' if level is total else span:<14}{level.tasks:>6}{_share(level.random_success):>9}"
            f"{_share(level.oracle_success):>9}{'-' if actions is None else f'{actions:.1f}':>14}"
        )
    if asked.curve_samples and curve.complete and not total.random:
        yield "  No random episodes: the environment doesn't list its available actions."
    if not curve.complete:
        yield f"  Not all episodes were played within {asked.curve_seconds:g} s; --curve-seconds allows more."


def _share(share: float | None) -> str:
    return "-" if share is None else f"{share:.0%}"


def _quiet(_: object) -> None:
    """Print nothing, for `--json`."""
