"""What would take CI too long as a whole: it tries a share, whoever runs the long tests elsewhere tries all."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TypeVar

T = TypeVar("T")


def share(things: Sequence[T], one_in: int) -> Sequence[T]:
    """All of them; in CI the first of each `one_in`."""
    return things[:: one_in if "CI" in os.environ else 1]
