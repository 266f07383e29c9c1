"""Games to read. They change only on purpose;
run this file with the folder above on `PYTHONPATH` to write `golden.txt` anew.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from golden_transcripts import transcript

GOLDEN = Path(__file__).parent / "golden.txt"
GAMES = {
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
"""Actions of a person who errs; the oracle brings each game to its end, where there is one to come."""


def played() -> str:
    return transcript("agentgym/SciWorld-v0", GAMES)


@pytest.mark.long
def test_the_golden_games() -> None:
    assert played() == GOLDEN.read_text(encoding="utf-8")


if __name__ == "__main__":
    GOLDEN.write_text(played(), encoding="utf-8")
