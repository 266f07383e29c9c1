"""A game to read. It changes only on purpose;
run this file with the folder above on `PYTHONPATH` to write `golden.txt` anew."""

from __future__ import annotations

from pathlib import Path

import pytest
from golden_transcripts import transcript

pytestmark = pytest.mark.quick

GOLDEN = Path(__file__).parent / "golden.txt"
GAMES = {
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


def played() -> str:
    return transcript("agentgym/TextCraft-v0", GAMES)


def test_the_golden_game() -> None:
    assert played() == GOLDEN.read_text(encoding="utf-8")


if __name__ == "__main__":
    GOLDEN.write_text(played(), encoding="utf-8")
