"""Games to read. They change only on purpose;
run this file with the folder above on `PYTHONPATH` to write `golden.txt` anew."""

from __future__ import annotations

from pathlib import Path

from golden_transcripts import transcript

GOLDEN = Path(__file__).parent / "golden.txt"
GAMES = {
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
"""Actions of a person who errs; the oracle brings each game to its end."""
ORACLES = [
    "babyai/test/PutNextLocal/1000001",
    "babyai/test/GoToSeqS5R2/1000003",
    "babyai/test/OpenDoorsOrderN2/1000002",
]


def played() -> str:
    return transcript("agentgym/BabyAI-v0", {**GAMES, **dict.fromkeys(ORACLES, ())})


def test_the_golden_games() -> None:
    assert played() == GOLDEN.read_text(encoding="utf-8")


if __name__ == "__main__":
    GOLDEN.write_text(played(), encoding="utf-8")
