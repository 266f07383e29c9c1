"""Tests of SciWorld's golden transcripts, which only change on purpose.

To rewrite `golden.txt`, run this file with `packages/agentgym-envs/tests` on `PYTHONPATH`.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from golden_transcripts import transcript

GOLDEN = Path(__file__).parent / "golden.txt"
SCRIPTS = {
    "sciworld/test/find-non-living-thing/225": [
        "look",
        "inventory",
        "go to moon",
        "open door to hallway",
        "go to hallway",
        "open door",
        "99",
        "open door",
        "1",
    ],
    "sciworld/test/lifespan-longest-lived/93": ["focus on agent"],
    "sciworld/test/power-component/15": ["task", "examine red light bulb"],
}
"""Actions with mistakes, by task; the oracle finishes each episode that hasn't ended."""


def golden_text() -> str:
    return transcript("agentgym/SciWorld-v0", SCRIPTS)


@pytest.mark.long
def test_transcripts_match_the_golden_file() -> None:
    assert golden_text() == GOLDEN.read_text(encoding="utf-8")


if __name__ == "__main__":
    GOLDEN.write_text(golden_text(), encoding="utf-8")
