"""A reset hook for sites in the Docker containers of the package `webarena-verified`.

    python -m agentgym_envs.worlds.webarena.tasks.containers shopping gitlab

replaces the containers of these sites by new ones, on their default ports, and waits until they respond. Sites that
tasks don't change (the map, Wikipedia, the homepage) are left alone.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence

HOOK = (sys.executable, "-m", "agentgym_envs.worlds.webarena.tasks.containers")
"""The command of the hook, without the sites."""
_CHANGED_BY_TASKS = ("shopping", "shopping_admin", "reddit", "gitlab")
_TIMEOUT = 600  # seconds until a site has started; GitLab takes minutes


def main(sites: Sequence[str]) -> int:
    """Start new containers of `sites`, all at once. Returns 0, or the exit status of a start that failed."""
    command = (sys.executable, "-m", "webarena_verified", "env", "start", "--timeout", str(_TIMEOUT), "--site")
    started = [subprocess.Popen((*command, site)) for site in sites if site in _CHANGED_BY_TASKS]
    statuses = [process.wait() for process in started]
    return next(filter(None, statuses), 0)  # not the highest: that of a killed process is negative


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
