"""Games to read. They change only on purpose;
run this file with the folder above on `PYTHONPATH` to write `golden.txt` anew.
"""

from __future__ import annotations

from pathlib import Path

from golden_transcripts import transcript

GOLDEN = Path(__file__).parent / "golden.txt"
GAMES = {
    "searchqa/test/1hop-city-country/0003": [
        "Where is it?",
        "<search></search>",
        "<search>Arāmbāgh country</search>",
        "<answer>It lies in India, I think</answer>",
    ],
    "searchqa/test/2hop-city-country-capital/0001": [],
    "searchqa/test/3hop-compare-city-population/0002": [],
}
"""Actions of a person who errs; the oracle brings each game to its end, where there is one to come."""


def played() -> str:
    return transcript("agentgym/SearchQA-v0", GAMES)


def test_the_golden_games() -> None:
    assert played() == GOLDEN.read_text(encoding="utf-8")


if __name__ == "__main__":
    GOLDEN.write_text(played(), encoding="utf-8")
