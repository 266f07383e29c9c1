"""Importing the modules that a user names as MODULE:NAME, with errors that say what to do next."""

from __future__ import annotations

import importlib
import traceback
from pathlib import Path
from types import ModuleType


def import_named(module: str, of: str) -> ModuleType:
    """The module called `module`, which is imported.

    Args:
        module: Its name, with dots.
        of: What needs it, for the message, such as "the world lamps:lamps/Lamps-v0".

    Raises:
        ValueError: when there is no such module, or it can't be imported, whatever it raises.
    """
    try:
        return importlib.import_module(module)
    except (Exception, SystemExit) as error:
        raise ValueError(f"The module of {of} can't be imported: {described(error)}.") from error


def described(error: BaseException) -> str:
    """An error in a line. One of another package's code has its type and place, such as `ZeroDivisionError: division by
    zero (mine.py, line 3)`; one of the machinery of imports, such as that there is no such module, its message alone.
    """
    frames = traceback.extract_tb(error.__traceback__)
    frames = [frame for frame in frames if "importlib" not in frame.filename and frame.filename != __file__]
    if not frames:
        return str(error).rstrip(".") or type(error).__name__
    message = f"{type(error).__name__}: {error}".rstrip(".: ")
    return f"{message} ({Path(frames[-1].filename).name}, line {frames[-1].lineno})"
