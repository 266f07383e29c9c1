"""The command `agentgym doctor`: says what is installed and works, with the commands that repair the rest.

Exit codes: 0 if nothing is broken (optional parts may be missing), 1 otherwise, 2 wrong usage. Each probe runs in a
process of its own, so that one that hangs or crashes is reported like any other.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterable, Iterator, Sequence
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
        found = list(_report(chosen, show=not asked.json))
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


def diagnose(probe: Probe) -> Finding:
    """Run a probe in a process of its own and return what it found, without secrets."""
    call = [sys.executable, "-c", _RUN, probe.function, *filter(None, [probe.argument])]
    process = subprocess.Popen(
        call, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, errors="replace", start_new_session=True
    )
    try:
        out, err = process.communicate(timeout=probe.seconds)
    except subprocess.TimeoutExpired:
        return Finding("broken", f"gave no answer within {probe.seconds:g} seconds")
    finally:
        with suppress(ProcessLookupError):  # also what the probe has started, such as a browser
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
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


def _report(probes: Sequence[Probe], *, show: bool) -> Iterator[tuple[Probe, Finding]]:
    """Yield the findings, and print each as soon as it is known."""
    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else _FILE_WIDTH
    column = max(len(probe.name) for probe in probes) + 10
    for probe in probes:
        finding = diagnose(probe)
        if show:
            remedy = f". Remedy: {finding.remedy}" if finding.remedy else ""
            text = f"{finding.text.rstrip('.')}{remedy}"
            first, *more = textwrap.wrap(text, max(width - column, 40), break_long_words=False, break_on_hyphens=False)
            write_lines(
                [f"{finding.status:<9}{probe.name:<{column - 9}}{first}", *(" " * column + each for each in more)]
            )
        yield probe, finding
