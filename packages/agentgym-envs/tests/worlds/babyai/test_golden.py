"""Tests of BabyAI's golden transcripts, which only change on purpose.

To rewrite `golden.txt`, run this file with `packages/agentgym-envs/tests` on `PYTHONPATH`.
"""

from __future__ import annotations

from pathlib import Path

from golden_transcripts import transcript

GOLDEN = Path(__file__).parent / "golden.txt"
SCRIPTS = {
    "babyai/test/GoToRedBall/1000000": [
        "go to red ball 1",
        "turn right",
        "open the box",
        "turn right",
        "turn right",
        "go to red ball 1",
    ],
    "babyai/test/KeyInBox/1000000": [
        "pickup purple box 1",
        "drop",
        "toggle",
        "turn left",
        "turn right",
        "turn right",
        "go to yellow locked door 1",
        "toggle and go through yellow locked door 1",
        "turn left",
        "turn left",
        "pick up yellow key 1",
        "turn right",
        "turn right",
        "toggle and go through yellow locked door 1",
    ],
}
"""Actions with mistakes, by task; the oracle finishes each episode."""
ORACLE_TASKS = [
    "babyai/test/PutNextLocal/1000001",
    "babyai/test/GoToSeqS5R2/1000003",
    "babyai/test/OpenDoorsOrderN2/1000002",
]


def golden_text() -> str:
    return transcript("agentgym/BabyAI-v0", {**SCRIPTS, **dict.fromkeys(ORACLE_TASKS, ())})


def test_transcripts_match_the_golden_file() -> None:
    assert golden_text() == GOLDEN.read_text(encoding="utf-8")


if __name__ == "__main__":
    GOLDEN.write_text(golden_text(), encoding="utf-8")
