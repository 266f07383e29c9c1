"""Command lines of the commands without settings of their own."""

from __future__ import annotations

import argparse
import shutil
import textwrap
from collections.abc import Sequence

from agentgym_envs.util.installation import command, package_version


def command_parser(name: str, description: str, examples: Sequence[str]) -> argparse.ArgumentParser:
    """Return the parser of `agentgym NAME`, with `--version` and with examples in its help.

    Args:
        name: The command's name.
        description: What the command does.
        examples: Command lines after the name; an empty one is the command alone.
    """
    program = command(f"agentgym {name}", ours=False)
    shown = "\n".join(f"  {program} {example}".rstrip() for example in examples)
    about = textwrap.fill(description, shutil.get_terminal_size().columns - 2)
    result = argparse.ArgumentParser(
        prog=program,
        description=f"{about}\n\nExamples:\n{shown}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    result.add_argument("--version", action="version", version=package_version("agentgym-envs"))
    return result
