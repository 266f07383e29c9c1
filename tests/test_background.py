"""Tests of runs of pytest in the background, where a shell makes processes ignore Ctrl-C."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

CONFTEST = Path(__file__).parent.parent / "conftest.py"
CODE = f"""
import os, runpy, signal, subprocess, sys
assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
runpy.run_path({str(CONFTEST)!r})
os.kill(os.getpid(), signal.SIGINT)
child = "import signal; print(signal.getsignal(signal.SIGINT) is signal.default_int_handler)"
sys.exit(subprocess.run([sys.executable, "-c", child]).returncode)
"""


def test_ctrl_c_reaches_subprocesses_but_not_the_tests() -> None:
    ignoring = ["sh", "-c", 'trap "" INT; exec "$0" -c "$1"', sys.executable, CODE]
    done = subprocess.run(ignoring, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "True\n"), done.stderr
