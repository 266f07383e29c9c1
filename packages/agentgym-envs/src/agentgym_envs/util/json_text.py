"""Parsing of untrusted JSON: every failure is a ValueError, and lone surrogates are replaced."""

from __future__ import annotations

import json
import re
from typing import Any

_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")


def parse(text: str) -> Any:
    """Parse a JSON text. Lone surrogates, which JSON can express but UTF-8 can't, become question marks.

    Raises:
        ValueError: if the text is not JSON (a `JSONDecodeError`), is nested too deep, or has a number of thousands of
            digits.
    """
    try:
        value = json.loads(text)
        return _without_surrogates(value) if _SURROGATE.search(text) else value
    except RecursionError as error:
        raise ValueError("it is nested too deep") from error
    except json.JSONDecodeError:
        raise
    except ValueError as error:
        raise ValueError("it has a number of too many digits") from error


def _without_surrogates(value: Any) -> Any:
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode()
    if isinstance(value, list):
        return [_without_surrogates(item) for item in value]
    if isinstance(value, dict):
        return {_without_surrogates(key): _without_surrogates(item) for key, item in value.items()}
    return value
