"""Record the session of docs/ten-commands.md: play its commands in tmux, in an empty folder, and write what they print.

Wheels of the packages are built from this checkout; their dependencies come from the package index that pip uses. With
`--print`, the page is printed instead of written. It needs tmux and uv.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import tempfile
import time
from itertools import pairwise
from pathlib import Path

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs/ten-commands.md"
COLUMNS, LINES, HISTORY = 120, 50, 5_000
TIMEOUT = 600.0
_BLOCK = re.compile(r"(?<=^```console\n).*?(?=^```$)", re.MULTILINE | re.DOTALL)
_TABLE = re.compile(r"(?<=^\| command \| seconds \|\n\|---\|---\|\n)(?:\|.*\n)*", re.MULTILINE)
_RC = """PS1='$ '
PROMPT_COMMAND='echo $? $EPOCHREALTIME >> "$LOG"'
"""


class Session:
    """A shell in a terminal of its own tmux server."""

    def __init__(self, folder: Path, wheels: Path) -> None:
        self.log = folder / "prompts.log"
        (folder / "bashrc").write_text(_RC)
        (folder / "work").mkdir()
        self._tmux = ["tmux", "-S", str(folder / "tmux"), "-f", "/dev/null"]
        ours = ("PYTHONPATH", "VIRTUAL_ENV", "TMUX")
        env = {name: value for name, value in os.environ.items() if name not in ours}
        env |= {"PIP_FIND_LINKS": str(wheels), "PIP_QUIET": "2", "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
        env |= {"VIRTUAL_ENV_DISABLE_PROMPT": "1", "LOG": str(self.log)}
        size = ["-x", str(COLUMNS), "-y", str(LINES), "-c", str(folder / "work")]
        shell = ["bash", "--rcfile", str(folder / "bashrc"), "-i"]
        start = ["start-server", ";", "set-option", "-g", "history-limit", str(HISTORY), ";", "new-session", "-d"]
        subprocess.run([*self._tmux, *start, *size, *shell], env=env, check=True)
        self._wait(1)

    def play(self, command: str) -> tuple[int, float]:
        """Type a command; return its exit code and duration in seconds."""
        before = len(self._prompts())
        subprocess.run([*self._tmux, "send-keys", "-l", command], check=True)
        began = time.time()
        subprocess.run([*self._tmux, "send-keys", "Enter"], check=True)
        self._wait(before + 1)
        code, ended = self._prompts()[-1].split()
        return int(code), float(ended) - began

    def screen(self) -> str:
        """Return everything that was typed and printed."""
        capture = ["capture-pane", "-p", "-J", "-S", f"-{HISTORY}"]
        shown = subprocess.run([*self._tmux, *capture], check=True, capture_output=True, text=True).stdout
        return "\n".join(line.rstrip() for line in shown.splitlines()).strip().removesuffix("$").rstrip() + "\n"

    def close(self) -> None:
        """End the shell and the server."""
        subprocess.run([*self._tmux, "kill-server"], check=True)

    def _prompts(self) -> list[str]:
        return self.log.read_text().splitlines() if self.log.exists() else []

    def _wait(self, prompts: int) -> None:
        deadline = time.monotonic() + TIMEOUT
        while len(self._prompts()) < prompts:
            if time.monotonic() > deadline:
                raise SystemExit(f"The command has not ended after {TIMEOUT:.0f} s:\n{self.screen()}")
            time.sleep(0.05)


def record(page: str, folder: Path) -> str:
    """Return the page with the output and the durations of its commands."""
    block = _BLOCK.search(page)
    assert block, "the page has a console block"
    commands = [line[2:] for line in block[0].splitlines() if line.startswith("$ ")]
    wheels = folder / "wheels"
    build = ["uv", "build", "--quiet", "--wheel", "--out-dir", str(wheels)]
    for package in ("agentgym-envs", "agentgym-eval"):
        subprocess.run([*build, "--package", package], cwd=ROOT, check=True)
    session = Session(folder, wheels)
    try:
        found = [session.play(command) for command in commands]
        shown = session.screen()
    finally:
        session.close()
    for (command, (code, _)), following in pairwise([*zip(commands, found, strict=True), None]):
        assert following is None or code == 0, f"{command} ended with {code}:\n{shown}"
    rows = [f"| `{command}` | {seconds:.1f} |" for command, (_, seconds) in zip(commands, found, strict=True)]
    rows.append(f"| all | {sum(seconds for _, seconds in found):.0f} |")
    page = _TABLE.sub(lambda _: "\n".join(rows) + "\n", page)
    return _BLOCK.sub(lambda _: shown, page)


def main() -> None:
    """Record the session and write the page."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--print", action="store_true", help="print the page instead of writing it")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        page = record(PAGE.read_text(encoding="utf-8"), Path(folder))
    if asked.print:
        print(page, end="")
    else:
        PAGE.write_text(page, encoding="utf-8")


if __name__ == "__main__":
    main()
