"""Games to read, on the embedded sites. They change only on purpose;
run this file with the folder above on `PYTHONPATH` to write `golden.txt` anew.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from golden_transcripts import transcript

GOLDEN = Path(__file__).parent / "golden.txt"
GAMES = {
    "webarena/test/135": ["look for the post office", "click [999]", "goto [http://example.org/]", "scroll [down]"],
    "webarena/test/81": [],
    "webarena/test/153": ["new_tab", "close_tab", "stop [I give up]"],
}
"""Actions of a person who errs; the oracle brings each game to its end, where there is one to come."""


def played() -> str:
    return transcript("agentgym/WebArena-v0", GAMES)


@pytest.mark.long
def test_the_golden_games(requires_browser: None) -> None:
    assert played() == GOLDEN.read_text(encoding="utf-8")


if __name__ == "__main__":
    GOLDEN.write_text(played(), encoding="utf-8")
