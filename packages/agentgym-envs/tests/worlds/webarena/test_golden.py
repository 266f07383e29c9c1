"""Tests of WebArena's golden transcripts on the embedded sites, which only change on purpose.

To rewrite `golden.txt`, run this file with `packages/agentgym-envs/tests` on `PYTHONPATH`.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from golden_transcripts import transcript

GOLDEN = Path(__file__).parent / "golden.txt"
SCRIPTS = {
    "webarena/test/140": ["look for the post office", "click [999]", "goto [http://example.org/]", "scroll [down]"],
    "webarena/test/81": [],
    "webarena/test/158": ["new_tab", "close_tab", "stop [I give up]"],
}
"""Actions with mistakes, by task; the oracle finishes each episode that hasn't ended."""


def golden_text() -> str:
    return transcript("agentgym/WebArena-v0", SCRIPTS)


@pytest.mark.long
def test_transcripts_match_the_golden_file(requires_browser: None) -> None:
    assert golden_text() == GOLDEN.read_text(encoding="utf-8")


if __name__ == "__main__":
    GOLDEN.write_text(golden_text(), encoding="utf-8")
