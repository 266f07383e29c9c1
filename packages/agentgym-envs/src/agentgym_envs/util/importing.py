"""Imports of modules that a user names as MODULE:NAME, with helpful errors."""

from __future__ import annotations

import importlib
import traceback
from pathlib import Path
from types import ModuleType


def import_named(module: str, of: str) -> ModuleType:
    """Import and return the module called `module`.

    Args:
        module: The dotted name.
        of: The object that needs the module, for the error message, such as "the environment lamps:lamps/Lamps-v0".

    Raises:
        ValueError: if there is no such module, or its import raises any exception.
    """
    try:
        return importlib.import_module(module)
    except (Exception, SystemExit) as error:
        missing = isinstance(error, ModuleNotFoundError) and error.name == module.partition(".")[0]
        advice = " Install its package, or run the command in the folder that contains it." if missing else ""
        raise ValueError(f"The module of {of} can't be imported: {described(error)}.{advice}") from error


def described(error: BaseException) -> str:
    """Describe an error on one line.

    An error raised by imported code includes its type and location, such as `ZeroDivisionError: division by zero
    (mine.py, line 3)`. An error of the import system, such as a missing module, is only the message.
    """
    frames = traceback.extract_tb(error.__traceback__)
    frames = [frame for frame in frames if "importlib" not in frame.filename and frame.filename != __file__]
    if not frames:
        return str(error).rstrip(".") or type(error).__name__
    message = f"{type(error).__name__}: {error}".rstrip(".: ")
    return f"{message} ({Path(frames[-1].filename).name}, line {frames[-1].lineno})"
