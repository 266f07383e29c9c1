"""Serve the embedded sites on an inherited listening socket until the owner process closes the pipe."""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import sys
import threading
from pathlib import Path

import uvicorn

from agentgym_envs.worlds.webarena.sites.server import Web


def main() -> None:
    """Serve until standard input ends, then delete the folder of databases, since a killed owner can't."""
    parser = argparse.ArgumentParser(prog="python -m agentgym_envs.worlds.webarena.sites", description=__doc__)
    parser.add_argument("--fd", type=int, required=True, help="listening socket, inherited")
    parser.add_argument("--episodes", type=Path, required=True, help="folder with a folder of databases per episode")
    arguments = parser.parse_args()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is handled by the owner
    threading.Thread(target=_end_with_owner, args=(arguments.episodes,), daemon=True).start()
    config = uvicorn.Config(
        Web(arguments.episodes), fd=arguments.fd, log_level="error", access_log=False, lifespan="off", ws="none"
    )
    uvicorn.Server(config).run()


def _end_with_owner(episodes: Path) -> None:
    sys.stdin.buffer.read()
    shutil.rmtree(episodes, ignore_errors=True)
    os._exit(0)


if __name__ == "__main__":
    main()
