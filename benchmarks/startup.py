"""Measure how long `agentgym` takes to start: CPU and wall time of commands that only print.

    uv run python benchmarks/startup.py --out runs/startup.json

Every command runs once to compile its modules, which is not measured, and then a number of times in a new process.
CPU time (user and system) depends less than wall time on what else the machine does.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from harness import Spread, arguments, show, write_json

COMMANDS = (
    "--help",
    "--version",
    "train --help",
    "evaluate --help",
    "compare --help",
    "view --help",
    "serve --help",
    "doctor --help",
    "list recipes",
    "--completion bash",
)


@dataclass(frozen=True, slots=True)
class Start:
    """Measurements of a command."""

    command: str
    cpu: Spread
    """Seconds."""
    wall: Spread
    """Seconds."""
    modules: int
    """Number of imported modules."""


def measure(program: Path, command: str, repeats: int, cache: str) -> Start:
    """Start a command repeatedly, with compiled modules in the folder `cache`."""
    env = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    env |= {"PYTHONPYCACHEPREFIX": cache}
    call = [str(program), *command.split()]
    profile = subprocess.run(call, env=env | {"PYTHONPROFILEIMPORTTIME": "1"}, capture_output=True, check=True)
    cpu, wall = list[float](), list[float]()
    for _ in range(repeats):
        began = time.perf_counter()
        process = subprocess.Popen(call, env=env, stdout=subprocess.DEVNULL)
        _, status, used = os.wait4(process.pid, 0)
        wall.append(time.perf_counter() - began)
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode:
            raise SystemExit(f"The command failed: {' '.join(call)}")
        cpu.append(used.ru_utime + used.ru_stime)
    return Start(command, Spread.of(cpu), Spread.of(wall), profile.stderr.count(b"import time:") - 1)


def main() -> None:
    """Measure all commands."""
    parser = arguments(__doc__, "out", "repeats", repeats=20)
    parser.add_argument(
        "--program", type=Path, default=Path(sys.executable).with_name("agentgym"), help="the program `agentgym`"
    )
    settings = parser.parse_args()
    with tempfile.TemporaryDirectory() as cache:
        found = [measure(settings.program, command, settings.repeats, cache) for command in COMMANDS]
    rows = [
        {"agentgym": each.command, "CPU s": str(each.cpu), "wall s": str(each.wall), "modules": str(each.modules)}
        for each in found
    ]
    show(f"Starting commands, {settings.repeats} times each: median (least to most)", rows)
    write_json(settings.out, found)


if __name__ == "__main__":
    main()
