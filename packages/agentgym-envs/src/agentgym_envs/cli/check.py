"""The command `agentgym check`: checks an environment against the contract of `TextEnv`, rule by rule.

Exit codes: 0 all rules are kept, 1 otherwise, 2 wrong usage.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from agentgym_envs.cli.output import write_lines
from agentgym_envs.core.registration import full_id, look_here
from agentgym_envs.util.importing import described
from agentgym_envs.util.installation import command, package_version
from agentgym_envs.util.redaction import redacted

if TYPE_CHECKING:
    from agentgym_envs.checks.contract import Check

_FAILED, _USAGE, _INTERRUPTED = 1, 2, 130


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command and return the exit code."""
    asked = parser().parse_args(argv)

    import gymnasium
    from gymnasium.error import DependencyNotInstalled

    from agentgym_envs.checks.contract import contract_checks
    from agentgym_envs.core.registry import make, read_resolved, text_env

    if asked.folder is not None:
        sys.path.insert(0, str(asked.folder.resolve()))
    look_here()
    try:
        if asked.tasks < 1:
            raise ValueError(f"--tasks must be at least 1, not {asked.tasks}.")
        env = make(full_id(asked.env), **dict(map(read_resolved, asked.options)))
        world = text_env(env)
    except (ValueError, TypeError, ImportError, DependencyNotInstalled, gymnasium.error.Error) as error:
        sys.stderr.write(redacted(f"agentgym check: {error}\n"))
        return _USAGE
    write_lines([f"{asked.env}, the first {asked.tasks} tasks of each split:"])
    try:
        checks = contract_checks(env, tasks=asked.tasks, processes=not asked.no_processes)
        broken = sum(not _passes(check) for check in checks)
    except KeyboardInterrupt:
        return _INTERRUPTED
    finally:
        world.close()
    if broken:
        write_lines([f"{broken} of {len(checks)} rules are broken. docs/howto/add-a-world.md explains them."])
    else:
        write_lines([f"All {len(checks)} rules are kept."])
    return _FAILED if broken else 0


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    check = command("agentgym check", ours=False)
    result = argparse.ArgumentParser(
        prog=check,
        description="Check an environment against the contract that all environments follow: determinism, rewards, "
        "the expert, any text as an action, and equality in other processes.",
        epilog=f"examples: {check} lamps:lamps/Lamps-v0; {check} textcraft --tasks 2",
    )
    result.add_argument("env", metavar="MODULE:ID", help="the environment; MODULE is imported first")
    result.add_argument("--folder", type=Path, help="the folder with the module; default: the working folder")
    result.add_argument("--tasks", type=int, default=5, help="the number of tasks to play per split; default: 5")
    result.add_argument("--options", nargs="+", default=[], metavar="KEY=VALUE", help="options of the environment")
    result.add_argument("--no-processes", action="store_true", help="don't start other processes")
    result.add_argument("--version", action="version", version=package_version("agentgym-envs"))
    return result


def _passes(check: Check) -> bool:
    """Run a check and print its result."""
    started = time.monotonic()
    try:
        check.run()
    except AssertionError as error:  # Gymnasium's checks raise it, and ContractError is one
        reason = str(error) or described(error)
    except Exception as error:  # noqa: BLE001 - the environment may raise anything
        reason = described(error)
    else:
        write_lines([f"  ok      {check.name} ({time.monotonic() - started:.1f} s)"])
        return True
    write_lines([f"  broken  {check.name}:", f"          {redacted(' '.join(reason.split()))}"])
    return False
