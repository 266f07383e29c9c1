"""Output of commands."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable


def write_lines(lines: Iterable[str]) -> None:
    """Write lines to stdout, or as many of them as its reader wants: `head` closes the pipe."""
    try:
        sys.stdout.writelines(f"{line}\n" for line in lines)
        sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
