"""JSON that anybody may have written: what can't be read is a ValueError, what no file can hold is mended."""

from __future__ import annotations

import json
import re
from typing import Any

_HALF = re.compile(r"\\u[dD][89a-fA-F]")


def parse(text: str) -> Any:
    """The value that a JSON text stands for. Halves of characters, which JSON can express and no file can hold, become
    question marks.

    Raises:
        ValueError: when it is none, is nested too deep, or has a number of thousands of digits; a `JSONDecodeError`
            in the first case alone.
    """
    try:
        value = json.loads(text)
        return _whole(value) if _HALF.search(text) else value
    except RecursionError as error:
        raise ValueError("it is nested too deep") from error
    except json.JSONDecodeError:
        raise
    except ValueError as error:
        raise ValueError("it has a number of too many digits") from error


def _whole(value: Any) -> Any:
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode()
    if isinstance(value, list):
        return [_whole(item) for item in value]
    if isinstance(value, dict):
        return {_whole(key): _whole(item) for key, item in value.items()}
    return value
