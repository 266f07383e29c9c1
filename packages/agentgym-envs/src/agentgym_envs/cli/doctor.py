"""The command `agentgym doctor`: says what is installed and works, with the commands that repair the rest.

Exit codes: 0 if nothing is broken (optional parts may be missing), 1 otherwise, 2 wrong usage. Each probe runs in a
process of its own, several at a time, so that one that hangs or crashes is reported like any other.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import shutil
import signal
import sys
import textwrap
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from pkgutil import resolve_name

from agentgym_envs.cli.agentgym import contributions
from agentgym_envs.cli.arguments import command_parser
from agentgym_envs.cli.output import write_lines
from agentgym_envs.util.diagnosis import Finding, Probe
from agentgym_envs.util.redaction import redacted

GROUP = "agentgym.probes"
_FAILED, _USAGE, _INTERRUPTED = 1, 2, 130
_RUN = "import sys; from agentgym_envs.cli.doctor import answer; answer(*sys.argv[1:])"
_MARK = "agentgym-finding:"
"""Precedes the finding in the output of a probe's process, which may print more."""
_FILE_WIDTH = 120
_AT_ONCE = min(max(os.cpu_count() or 1, 2), 8)
"""Processes at a time. Some take a gigabyte of memory, for torch."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command and return the exit code."""
    asked = parser().parse_args(argv)
    known = [probe for entry in contributions(GROUP).values() for probe in _probes(entry.load())]
    unknown = [name for name in asked.only if name not in [probe.name for probe in known]]
    if unknown:
        names = ", ".join(probe.name for probe in known)
        sys.stderr.write(f"agentgym doctor: There is no check {unknown[0]!r}. There are: {names}.\n")
        return _USAGE
    chosen = [probe for probe in known if not asked.only or probe.name in asked.only]
    try:
        found = asyncio.run(_report(chosen, show=not asked.json))
    except KeyboardInterrupt:
        return _INTERRUPTED
    if asked.json:
        records = [{"name": probe.name, **asdict(finding)} for probe, finding in found]
        write_lines([json.dumps(records, indent=2, ensure_ascii=False)])
    return _FAILED if any(finding.status == "broken" for _, finding in found) else 0


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    result = command_parser(
        "doctor",
        "Check what is installed and works. A line is ok, missing (optional) or broken, with the remedy.",
        ("", "--only java chromium", "--json"),
    )
    result.add_argument("--only", nargs="+", default=[], metavar="NAME", help="only these checks")
    result.add_argument("--json", action="store_true", help="print JSON")
    return result


async def diagnose(probe: Probe) -> Finding:
    """Run a probe in a process of its own and return what it found, without secrets."""
    call = [sys.executable, "-c", _RUN, probe.function, *filter(None, [probe.argument])]
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(*call, stdout=pipe, stderr=pipe, start_new_session=True)
    try:
        async with asyncio.timeout(probe.seconds):
            out, err = (text.decode(errors="replace") for text in await process.communicate())
    except TimeoutError:
        return Finding("broken", f"gave no answer within {probe.seconds:g} seconds")
    finally:
        with suppress(ProcessLookupError):  # also what the probe has started, such as a browser
            os.killpg(process.pid, signal.SIGKILL)
        await process.communicate()
    answers = [line.removeprefix(_MARK) for line in out.splitlines() if line.startswith(_MARK)]
    if not answers:
        last = (err.strip().splitlines() or [f"ended with exit code {process.returncode}"])[-1]
        return Finding("broken", redacted(last))
    finding = Finding(**json.loads(answers[-1]))
    return replace(finding, text=redacted(finding.text), remedy=redacted(finding.remedy))


def answer(function: str, *arguments: str) -> None:
    """Call the function of a probe and print its finding, for `diagnose`."""
    find: Callable[..., Finding] = resolve_name(function)
    sys.stdout.write(f"\n{_MARK}{json.dumps(asdict(find(*arguments)))}\n")


def _probes(provide: Callable[[], Iterable[Probe]]) -> Iterable[Probe]:
    return provide()


async def _report(probes: Sequence[Probe], *, show: bool) -> list[tuple[Probe, Finding]]:
    """Return the findings, and print each as soon as it and those before it are known."""
    free = asyncio.Semaphore(_AT_ONCE)

    async def diagnosed(probe: Probe) -> Finding:
        async with free:
            return await diagnose(probe)

    async with asyncio.TaskGroup() as group:
        tasks = [(probe, group.create_task(diagnosed(probe))) for probe in probes]
        if show:
            await _show(tasks)
    return [(probe, task.result()) for probe, task in tasks]


async def _show(tasks: Sequence[tuple[Probe, asyncio.Task[Finding]]]) -> None:
    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else _FILE_WIDTH
    column = max(len(probe.name) for probe, _ in tasks) + 10
    for probe, task in tasks:
        finding = await task
        remedy = f". Remedy: {finding.remedy}" if finding.remedy else ""
        text = f"{finding.text.rstrip('.')}{remedy}"
        first, *more = textwrap.wrap(text, max(width - column, 40), break_long_words=False, break_on_hyphens=False)
        write_lines([f"{finding.status:<9}{probe.name:<{column - 9}}{first}", *(" " * column + each for each in more)])
