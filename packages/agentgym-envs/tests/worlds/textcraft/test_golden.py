"""Tests of TextCraft's golden transcripts, which only change on purpose.

To rewrite `golden.txt`, run this file with `packages/agentgym-envs/tests` on `PYTHONPATH`.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from golden_transcripts import transcript

pytestmark = pytest.mark.quick

GOLDEN = Path(__file__).parent / "golden.txt"
SCRIPTS = {
    "textcraft/test/flower_pot": ["get 3 brick", "craft 1 flower pot using 3 brick"],
    "textcraft/test/red_sandstone_stairs": [
        "inventory",
        "get 6 red sandstone",
        "get 4 red sandstones",
        "craft 1 red sandstone using 4 red sand",
        "Get 24 red_sand.",
        "craft 5 red sandstone using 24 red sand",
        "craft 6 red sandstone using 24 red sand",
        "inventory",
        "craft 4 red sandstone stairs using 6 sand",
        "build some stairs",
        "craft 4 red sandstone stairs using 6 red sandstone",
    ],
    "textcraft/train/campfire": [
        "get 1 oak log",
        "get 1 spruce log",
        "get 1 dark oak log",
        "get 1 coal",
        "craft 1 campfire using 1 charcoal or coal, 3 logs, 3 stick",
        "craft 4 oak planks using 1 oak logs",
        "get 3 bamboo",
        "get 1 birch log",
        "craft 8 stick using 4 oak planks",
        "craft 1 campfire using 1 coal, 1 birch log, 2 logs, 3 stick",
    ],
}


def golden_text() -> str:
    return transcript("agentgym/TextCraft-v0", SCRIPTS)


def test_transcripts_match_the_golden_file() -> None:
    assert golden_text() == GOLDEN.read_text(encoding="utf-8")


if __name__ == "__main__":
    GOLDEN.write_text(golden_text(), encoding="utf-8")
