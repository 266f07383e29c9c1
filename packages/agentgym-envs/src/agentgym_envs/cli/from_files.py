"""The flags `--config` and `--like` of commands whose settings can come from a file or an earlier run."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Generic, TypeVar

from agentgym_envs.util.flag_markers import arg

_Settings = TypeVar("_Settings")


@dataclass(frozen=True)
class FromFiles(Generic[_Settings]):
    """The command line of a command whose settings can come from a file or an earlier run."""

    settings: Annotated[_Settings, arg(name="")]
    config: Annotated[Path | None, arg(metavar="FILE")] = None
    """JSON or TOML file with settings by the names of flags, with _ for -, such as max_tokens = 200, or a run.json.
    They replace those of --like, and flags replace them."""
    like: Annotated[Path | None, arg(metavar="RUN")] = None
    """Take the settings of the run in this folder of evaluate, or of this output of collect, which flags replace."""
