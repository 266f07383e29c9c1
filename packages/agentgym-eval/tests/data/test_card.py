"""Tests of the data card of a collection, and of loading the files with `datasets`."""

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

ENV_A, ENV_B = "mine/First-v0", "mine/Second-v0"


def turn(observation: str, text: str, **changes: Any) -> Turn:
    default = Turn(observation, Reply(text), text, valid=True, reward=0.5, state_key="k")
    return replace(default, **changes)


def episode(number: int = 0, **changes: Any) -> Episode:
    turns = (turn("see", "go"), turn("seen", "on"))
    default = Episode(
        ENV_A, f"first/train/{number}", "train", "easy", 1, "somebody", 0, "Do.", turns, "end", "terminated", 1.0, True,
        seconds={"world": 0.25, "policy": 0.5}, agent="react",
    )  # fmt: skip
    return replace(default, **changes)


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


def test_card_matches_values_computed_by_hand() -> None:
    data_card = card(episode(), episode(), POOR, PLANNED, FAILED, episode(env=ENV_B))
    first, second = data_card.worlds
    assert (first.env, first.played, first.failed, first.kept, first.tasks) == (ENV_A, 5, 1, 4, 3)
    assert (first.kept_share, first.duplicates) == (0.8, 1)
    assert (first.success, first.score) == (0.75, 3.25 / 4)
    assert first.lengths.actions == Spread(2, 2, 2, 2)
    assert first.lengths.turns == Spread(2, 2, 2.25, 3)
    assert first.lengths.said == Spread(4, 4, 6, 12)
    length = len("Do." + "see" + "go" + "seen" + "on" + "end")
    assert first.lengths.characters == Spread(
        length, length, length + 2, length + 8
    )  # the observation of the plan counts once
    assert first.splits == {"test": 1, "train": 3}
    assert first.agents == {"react": 3, "react+plan": 1}
    assert first.categories == {"easy": 3, "hard": 1}
    assert first.stops == {"terminated": 3, "truncated": 1}
    assert first.kinds == {"act": 8, "plan": 1}
    assert (second.kept, second.duplicates) == (1, 0)
    assert (data_card.total.played, data_card.total.kept, data_card.total.tasks, data_card.total.duplicates) == (
        6,
        5,
        4,
        1,
    )


def test_card_distinguishes_kept_from_played_episodes() -> None:
    (env_card,) = card(episode(), POOR, FAILED, keep="success").worlds
    assert (env_card.success, env_card.success_played) == (1.0, 0.5)
    assert (env_card.score, env_card.score_played) == (1.0, 0.625)
    assert env_card.categories == {"easy": 1}
    (empty,) = card(POOR, keep="success").worlds
    assert (empty.kept, empty.success, empty.lengths.turns) == (0, None, None)
    (only_failed,) = card(FAILED).worlds
    assert (only_failed.success_played, only_failed.score_played) == (None, None)


def test_truncated_reply_adds_no_observation_to_the_length() -> None:
    truncated = episode(turns=(turn("see", "g", action=None),), final_observation="see", stop="length")
    assert card(truncated).total.lengths.characters == Spread(7, 7, 7, 7)


def test_only_identical_episodes_are_duplicates() -> None:
    def duplicates(**changes: Any) -> int:
        return card(episode(), episode(**changes)).total.duplicates

    assert duplicates(sample=1, policy="else", seconds={}) == 1
    assert duplicates(number=1) == 0
    assert duplicates(turns=(turn("see", "go"), turn("seen", "on!"))) == 0
    assert duplicates(turns=(turn("see", "go"), turn("other", "on"))) == 0
    assert duplicates(instructions="Don't.") == 0


# Written files.

GO: dict[str, Any] = {"type": "function", "function": {"name": "go", "parameters": {"far": {"type": "integer"}}}}
SAY: dict[str, Any] = {"type": "function", "function": {"name": "say", "parameters": {"what": {"enum": ["a", 1]}}}}
SAMPLED = Reply("go", "stop", Sample((1, 2), (3,), (-0.5,), 4, fresh=True))
WITH_USAGE = Reply("go", usage=TokenUsage(10, 3), seconds=1.5, finish_reason="tool_calls", reasoning="On.")
FIRST = [episode(), PLANNED, FAILED, POOR, episode(3, tools=(GO,))]
SECOND = [
    episode(4, env=ENV_B, tools=(SAY, GO)),
    episode(5, env=ENV_B, turns=(turn("|see", "go", reply=SAMPLED, loss=False), turn("|see", "go", reply=WITH_USAGE))),
]


def write_collection(out: Path, *played: Episode, **changes: Any) -> CollectSettings:
    settings = CollectSettings(env=(ENV_A, ENV_B), policy="somebody", out=out, **changes)
    settings.folder.mkdir(parents=True)
    Collection(settings).write(played or [*FIRST, *SECOND])
    return settings


def rows_of(loaded: Any) -> list[Episode]:
    return [Episode.from_json(json.dumps(row)) for row in loaded]


@pytest.fixture
def load(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
    datasets.disable_progress_bars()

    def load_dataset(path: Path | str, name: str | None = None, **more: Any) -> Any:
        return datasets.load_dataset(str(path), name, cache_dir=str(tmp_path / "cache"), **more)

    return load_dataset


def test_folder_loads_as_a_dataset_without_loss(tmp_path: Path, load: Any) -> None:
    write_collection(tmp_path / "demos")
    loaded = load(tmp_path / "demos")
    assert sorted(loaded) == ["test", "train"]
    assert rows_of(loaded["train"]) == [FIRST[0], POOR, FIRST[4], *SECOND]
    assert rows_of(loaded["test"]) == [PLANNED]
    assert set(loaded["train"]["schema"]) == {SCHEMA}
    second = load(tmp_path / "demos", "second")
    assert rows_of(second["train"]) == SECOND


def test_folder_of_one_environment_loads_as_a_dataset(tmp_path: Path, load: Any) -> None:
    write_collection(tmp_path / "demos", episode())
    assert rows_of(load(tmp_path / "demos", split="train")) == [episode()]
    assert datasets.get_dataset_config_names(str(tmp_path / "demos")) == ["default"]


def test_file_loads_as_json_lines(tmp_path: Path, load: Any) -> None:
    write_collection(tmp_path / "demos.jsonl")
    loaded = load("json", data_files=str(tmp_path / "demos.jsonl"), split="train")
    assert rows_of(loaded) == list(read_episodes(tmp_path / "demos.jsonl"))


def test_card_of_a_file_has_a_valid_dataset_header(tmp_path: Path, load: Any) -> None:
    settings = write_collection(tmp_path / "demos.jsonl", keep="success")
    assert not settings.folder.exists()
    assert 'load_dataset("json", data_files="demos.jsonl")' in (tmp_path / "demos.card.md").read_text()
    record = json.loads((tmp_path / "demos.card.json").read_text())
    assert (record["schema"], record["episode_schema"]) == ("agentgym.card/1", SCHEMA)
    assert (record["total"]["kept"], record["total"]["success"]) == (5, 1.0)
    assert record["settings"]["keep"] == "success"
    assert {"python", "agentgym-envs"} <= record["versions"].keys()
    published = tmp_path / "published"
    published.mkdir()
    (tmp_path / "demos.card.md").rename(published / "README.md")
    (tmp_path / "demos.jsonl").rename(published / "demos.jsonl")
    assert len(load(published, split="train")) == 5


def test_card_page_shows_the_metrics(tmp_path: Path) -> None:
    write_collection(tmp_path / "demos")
    text = (tmp_path / "demos/README.md").read_text()
    for row in (
        f"| {ENV_A} | 4 | 5 | 1 | 4 | 80.0% | 0 | 75.0% (75.0%) | 81.2% (81.2%) |",
        "| all | 6 | 7 | 1 | 6 |",
        f"| {ENV_A} | 2.0 (2, 2) | 2.2 (2, 3) |",
        "react 3, react+plan 1",
    ):
        assert row in text
    assert {len(re.findall(r"(?<!\\)\|", line)) for line in text.splitlines() if line.startswith("| mine/")} == {
        10,
        6,
        8,
    }


def test_card_is_written_if_no_episode_is_kept(tmp_path: Path) -> None:
    write_collection(tmp_path / "none", POOR, keep="success")
    assert json.loads((tmp_path / "none/card.json").read_text())["total"]["kept"] == 0
    assert "configs: []" in (tmp_path / "none/README.md").read_text()


def test_header_has_a_type_for_every_field_of_an_episode(tmp_path: Path) -> None:
    write_collection(tmp_path / "demos", episode())
    header = (tmp_path / "demos/README.md").read_text().split("---\n")[1]
    for cls in (Episode, Turn, Reply, Sample):
        for name in cls.__dataclass_fields__:
            assert re.search(rf"\bname: {name}\b", header), name
