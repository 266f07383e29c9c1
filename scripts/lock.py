"""Bring `uv.lock` into the form that is committed: versions and dependencies, no registry's address.

uv writes the address of the registry it happened to use on every line, and no committed file may name one. In the
committed form every package keeps its name, version, dependencies and markers; the wider `requires-python` tells uv
that the lock wants completing, which it does on the first `uv run` or `uv sync`, with exactly these versions.

Run it after uv has touched the lock: `uv run scripts/lock.py` (with `--upgrade`: newest versions first).
"""

import re
import subprocess
import sys
from pathlib import Path

LOCK = Path(__file__).parent.parent / "uv.lock"


def committed_form(lock: str) -> str:
    """The text of a lock file without registry addresses, files and hashes."""
    lock = re.sub(r'^requires-python = ">=3\.11.*"$', 'requires-python = ">=3.11"', lock, flags=re.MULTILINE)
    lock = re.sub(r'registry = "[^"]*"', 'registry = "pypi"', lock)
    lock = re.sub(r"^\[manifest\]\n(?:.+\n)*\n", "", lock, flags=re.MULTILINE)
    lock = re.sub(r"^sdist = \{.*\}\n", "", lock, flags=re.MULTILINE)
    return re.sub(r"^wheels = \[\n(?:    .*\n)*\]\n", "", lock, flags=re.MULTILINE)


def main() -> None:
    """Lock with uv, then rewrite the file."""
    subprocess.run(["uv", "lock", *sys.argv[1:]], check=True)
    LOCK.write_text(committed_form(LOCK.read_text()))
    print(f"{LOCK.name}: {LOCK.read_text().count('[[package]]')} packages, no addresses")


if __name__ == "__main__":
    main()
