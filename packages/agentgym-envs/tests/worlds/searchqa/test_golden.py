"""Tests of SearchQA's golden transcripts, which only change on purpose.

To rewrite `golden.txt`, run this file with `packages/agentgym-envs/tests` on `PYTHONPATH`.
"""

from __future__ import annotations

from pathlib import Path

from golden_transcripts import transcript

GOLDEN = Path(__file__).parent / "golden.txt"
SCRIPTS = {
    "searchqa/test/1hop-city-country/0003": [
        "Where is it?",
        "<search></search>",
        "<search>Arāmbāgh country</search>",
        "<answer>It lies in India, I think</answer>",
    ],
    "searchqa/test/2hop-city-country-capital/0001": [],
    "searchqa/test/3hop-compare-city-population/0002": [],
}
"""Actions with mistakes, by task; the oracle finishes each episode that hasn't ended."""


def golden_text() -> str:
    return transcript("agentgym/SearchQA-v0", SCRIPTS)


def test_transcripts_match_the_golden_file() -> None:
    assert golden_text() == GOLDEN.read_text(encoding="utf-8")


if __name__ == "__main__":
    GOLDEN.write_text(golden_text(), encoding="utf-8")
