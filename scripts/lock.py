"""Convert `uv.lock` to the form that is committed: versions and dependencies, without registry addresses.

uv writes the address of the configured registry on every line, and no committed file may contain one. The committed
form keeps name, version, dependencies and markers of every package. Its wider `requires-python` makes uv complete the
lock on the first `uv run` or `uv sync`, with exactly these versions.

Run it after uv has changed the lock: `uv run scripts/lock.py` (with `--upgrade` to upgrade all packages first).
"""

import re
import subprocess
import sys
from pathlib import Path

LOCK = Path(__file__).parent.parent / "uv.lock"


def committed_form(lock: str) -> str:
    """Return the text of a lock file without registry addresses, files and hashes."""
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
