"""The data card of a collection: its figures, and that `datasets` loads the files exactly as they were written."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import datasets
import pytest
from agentgym_envs import Episode, Reply, Sample, TokenUsage, Turn, read_episodes
from agentgym_envs.episodes.episode import SCHEMA
from agentgym_eval.data.card import Card, Spread, make_card
from agentgym_eval.data.collection import Collection
from agentgym_eval.runs.settings import CollectSettings

pytestmark = pytest.mark.quick

A, B = "mine/First-v0", "mine/Second-v0"


def turn(observation: str, text: str, **changes: Any) -> Turn:
    made = Turn(observation, Reply(text), text, valid=True, reward=0.5, state_key="k")
    return replace(made, **changes)


def episode(number: int = 0, **changes: Any) -> Episode:
    turns = (turn("see", "go"), turn("seen", "on"))
    made = Episode(
        A, f"first/train/{number}", "train", "easy", 1, "somebody", 0, "Do.", turns, "end", "terminated", 1.0, True,
        seconds={"world": 0.25, "policy": 0.5}, agent="react",
    )  # fmt: skip
    return replace(made, **changes)


FAILED = episode(9, stop="failed", score=None, success=None, error="it broke")
POOR = episode(1, score=0.25, success=False, stop="truncated", category="hard")
PLANNED = episode(
    2,
    turns=(turn("see", "Plan: go", kind="plan", action=None), turn("see", "go"), turn("seen", "on")),
    agent="react+plan",
    split="test",
)


def card(*played: Episode, keep: str = "all") -> Card:
    return make_card(played, lambda e: not e.failed and (keep == "all" or e.success is True), {})


def test_the_figures_by_hand() -> None:
    made = card(episode(), episode(), POOR, PLANNED, FAILED, episode(env=B))
    first, second = made.worlds
    assert (first.env, first.played, first.failed, first.kept, first.tasks) == (A, 5, 1, 4, 3)
    assert (first.kept_share, first.duplicates) == (0.8, 1)
    assert (first.success, first.score) == (0.75, 3.25 / 4)
    assert first.lengths.actions == Spread(2, 2, 2, 2)
    assert first.lengths.turns == Spread(2, 2, 2.25, 3)
    assert first.lengths.said == Spread(4, 4, 6, 12)
    whole = len("Do." + "see" + "go" + "seen" + "on" + "end")
    assert first.lengths.characters == Spread(whole, whole, whole + 2, whole + 8)  # the plan is made on what is seen
    assert first.splits == {"test": 1, "train": 3}
    assert first.agents == {"react": 3, "react+plan": 1}
    assert first.categories == {"easy": 3, "hard": 1}
    assert first.stops == {"terminated": 3, "truncated": 1}
    assert first.kinds == {"act": 8, "plan": 1}
    assert (second.kept, second.duplicates) == (1, 0)
    assert (made.total.played, made.total.kept, made.total.tasks, made.total.duplicates) == (6, 5, 4, 1)


def test_what_is_kept_and_what_was_played_are_told_apart() -> None:
    (world,) = card(episode(), POOR, FAILED, keep="success").worlds
    assert (world.success, world.success_played) == (1.0, 0.5)
    assert (world.score, world.score_played) == (1.0, 0.625)
    assert world.categories == {"easy": 1}
    (nothing,) = card(POOR, keep="success").worlds
    assert (nothing.kept, nothing.success, nothing.lengths.turns) == (0, None, None)
    (broken,) = card(FAILED).worlds
    assert (broken.success_played, broken.score_played) == (None, None)


def test_half_a_reply_leads_to_no_observation() -> None:
    cut = episode(turns=(turn("see", "g", action=None),), final_observation="see", stop="length")
    assert card(cut).total.lengths.characters == Spread(7, 7, 7, 7)


def test_only_the_same_episode_is_a_duplicate() -> None:
    def duplicates(**changes: Any) -> int:
        return card(episode(), episode(**changes)).total.duplicates

    assert duplicates(sample=1, policy="else", seconds={}) == 1
    assert duplicates(number=1) == 0
    assert duplicates(turns=(turn("see", "go"), turn("seen", "on!"))) == 0
    assert duplicates(turns=(turn("see", "go"), turn("other", "on"))) == 0
    assert duplicates(instructions="Don't.") == 0


# On disk.

GO: dict[str, Any] = {"type": "function", "function": {"name": "go", "parameters": {"far": {"type": "integer"}}}}
SAY: dict[str, Any] = {"type": "function", "function": {"name": "say", "parameters": {"what": {"enum": ["a", 1]}}}}
SAMPLED = Reply("go", "stop", Sample((1, 2), (3,), (-0.5,), 4, fresh=True))
PAID = Reply("go", usage=TokenUsage(10, 3), seconds=1.5, finish_reason="tool_calls", reasoning="On.")
FIRST = [episode(), PLANNED, FAILED, POOR, episode(3, tools=(GO,))]
SECOND = [
    episode(4, env=B, tools=(SAY, GO)),
    episode(5, env=B, turns=(turn("|see", "go", reply=SAMPLED, loss=False), turn("|see", "go", reply=PAID))),
]


def collected(out: Path, *played: Episode, **changes: Any) -> CollectSettings:
    settings = CollectSettings(env=(A, B), policy="somebody", out=out, **changes)
    settings.folder.mkdir(parents=True)
    Collection(settings).write(played or [*FIRST, *SECOND])
    return settings


def rows_of(loaded: Any) -> list[Episode]:
    return [Episode.from_json(json.dumps(row)) for row in loaded]


@pytest.fixture
def load(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
    datasets.disable_progress_bars()

    def load(path: Path | str, name: str | None = None, **more: Any) -> Any:
        return datasets.load_dataset(str(path), name, cache_dir=str(tmp_path / "cache"), **more)

    return load


def test_a_folder_is_a_dataset_and_nothing_is_lost(tmp_path: Path, load: Any) -> None:
    collected(tmp_path / "demos")
    loaded = load(tmp_path / "demos")
    assert sorted(loaded) == ["test", "train"]
    assert rows_of(loaded["train"]) == [FIRST[0], POOR, FIRST[4], *SECOND]
    assert rows_of(loaded["test"]) == [PLANNED]
    assert set(loaded["train"]["schema"]) == {SCHEMA}
    second = load(tmp_path / "demos", "second")
    assert rows_of(second["train"]) == SECOND


def test_a_folder_of_one_world(tmp_path: Path, load: Any) -> None:
    collected(tmp_path / "demos", episode())
    assert rows_of(load(tmp_path / "demos", split="train")) == [episode()]
    assert datasets.get_dataset_config_names(str(tmp_path / "demos")) == ["default"]


def test_a_file_is_loaded_as_json_lines(tmp_path: Path, load: Any) -> None:
    collected(tmp_path / "demos.jsonl")
    loaded = load("json", data_files=str(tmp_path / "demos.jsonl"), split="train")
    assert rows_of(loaded) == list(read_episodes(tmp_path / "demos.jsonl"))


def test_the_card_lies_beside_the_file_with_a_header_for_it(tmp_path: Path, load: Any) -> None:
    settings = collected(tmp_path / "demos.jsonl", keep="success")
    assert not settings.folder.exists()
    assert 'load_dataset("json", data_files="demos.jsonl")' in (tmp_path / "demos.card.md").read_text()
    figures = json.loads((tmp_path / "demos.card.json").read_text())
    assert (figures["schema"], figures["episode_schema"]) == ("agentgym.card/1", SCHEMA)
    assert (figures["total"]["kept"], figures["total"]["success"]) == (5, 1.0)
    assert figures["settings"]["keep"] == "success"
    assert {"python", "agentgym-envs"} <= figures["versions"].keys()
    published = tmp_path / "published"
    published.mkdir()
    (tmp_path / "demos.card.md").rename(published / "README.md")
    (tmp_path / "demos.jsonl").rename(published / "demos.jsonl")
    assert len(load(published, split="train")) == 5


def test_the_page_shows_the_figures(tmp_path: Path) -> None:
    collected(tmp_path / "demos")
    text = (tmp_path / "demos/README.md").read_text()
    for row in (
        f"| {A} | 4 | 5 | 1 | 4 | 80.0% | 0 | 75.0% (75.0%) | 81.2% (81.2%) |",
        "| all | 6 | 7 | 1 | 6 |",
        f"| {A} | 2.0 (2, 2) | 2.2 (2, 3) |",
        "react 3, react+plan 1",
    ):
        assert row in text
    assert {len(re.findall(r"(?<!\\)\|", line)) for line in text.splitlines() if line.startswith("| mine/")} == {
        10,
        6,
        8,
    }


def test_nothing_kept_is_a_card_all_the_same(tmp_path: Path) -> None:
    collected(tmp_path / "none", POOR, keep="success")
    assert json.loads((tmp_path / "none/card.json").read_text())["total"]["kept"] == 0
    assert "configs: []" in (tmp_path / "none/README.md").read_text()


def test_every_field_of_an_episode_has_its_type_in_the_header(tmp_path: Path) -> None:
    collected(tmp_path / "demos", episode())
    header = (tmp_path / "demos/README.md").read_text().split("---\n")[1]
    for noun in (Episode, Turn, Reply, Sample):
        for name in noun.__dataclass_fields__:
            assert re.search(rf"\bname: {name}\b", header), name
