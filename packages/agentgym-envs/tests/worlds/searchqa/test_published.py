"""Tests of published question sets, from files and through `datasets`, and of their AgentGym ids."""

from __future__ import annotations

import builtins
import json
from pathlib import Path
from typing import Any

import datasets
import httpx
import pytest
from agentgym_envs import make, text_env
from agentgym_envs.worlds.searchqa import published
from agentgym_envs.worlds.searchqa.agentgym_ids import from_agentgym
from agentgym_envs.worlds.searchqa.published import PUBLISHED, Row, load
from gymnasium.error import DependencyNotInstalled


def write_set(folder: Path, name: str, **splits: list[tuple[str, list[str]]]) -> Path:
    (folder / name).mkdir(parents=True)
    for split, questions in splits.items():
        lines = [
            {"id": f"{split}_{i}", "question": question, "golden_answers": answers, "metadata": {}}
            for i, (question, answers) in enumerate(questions)
        ]
        text = "".join(json.dumps(line) + "\n" for line in lines)
        (folder / name / f"{split}.jsonl").write_text(text, encoding="utf-8")
    return folder


def test_sets_from_files_become_tasks(tmp_path: Path) -> None:
    write_set(tmp_path, "nq", train=[("who?", ["me"])], dev=[("when?", ["now"])], test=[("where?", ["here", "there"])])
    write_set(tmp_path, "hotpotqa", train=[("why?", ["so"])], dev=[("how?", ["thus"])])
    tasks = text_env(make("agentgym/SearchQA-v0", dataset=["hotpotqa", "nq"], data=tmp_path)).tasks
    assert tasks.train.ids == ["searchqa/train/hotpotqa/0", "searchqa/train/nq/0"]
    assert tasks.dev.ids == ["searchqa/dev/nq/0"]
    assert tasks.test.ids == ["searchqa/test/hotpotqa/0", "searchqa/test/nq/0"]  # hotpotqa's test split has no answers
    hotpot, nq = tasks.test
    assert (hotpot.category, hotpot.difficulty, hotpot.payload["question"]) == ("hotpotqa", 2, "how?")
    assert (nq.category, nq.difficulty, nq.payload["answers"]) == ("nq", 1, ["here", "there"])
    assert (nq.env, nq.split) == ("agentgym/SearchQA-v0", "test")
    assert tasks["searchqa/train/nq/0"].payload["question"] == "who?"


def test_custom_set_without_dev_split_takes_it_from_training(tmp_path: Path) -> None:
    questions = [(f"who is {number}?", ["me"]) for number in range(200)]
    write_set(tmp_path, "pubs", train=questions, test=[("where?", ["here"])])
    write_set(tmp_path, "inns", train=questions, dev=[("when?", ["now"])], test=[("where?", ["here"])])
    tasks = text_env(make("agentgym/SearchQA-v0", dataset=["pubs", "inns"], data=tmp_path)).tasks
    pubs_dev = [task_id for task_id in tasks.dev.ids if "/pubs/" in task_id]
    assert 5 < len(pubs_dev) < 40
    assert [task_id for task_id in tasks.dev.ids if "/inns/" in task_id] == ["searchqa/dev/inns/0"]
    assert len(tasks.train) == 400 - len(pubs_dev)
    assert all(tasks[task_id].split == "dev" for task_id in tasks.dev.ids)
    assert tasks[pubs_dev[0]].payload["question"] == f"who is {pubs_dev[0].rpartition('/')[2]}?"


def test_custom_set_needs_only_one_split(tmp_path: Path) -> None:
    write_set(tmp_path, "pubs", test=[(" where? ", ["here"])])
    tasks = text_env(make("agentgym/SearchQA-v0", dataset="pubs", data=str(tmp_path))).tasks
    assert [(task.category, task.payload["question"]) for task in tasks.test] == [("pubs", "where?")]
    assert len(tasks.train) == 0
    with pytest.raises(ValueError, match="no tasks in split 'train' under its options; use test"):
        make("agentgym/SearchQA-v0", dataset="pubs", data=str(tmp_path), retriever="http://127.0.0.1:1").reset()


def test_a_set_in_a_subfolder_becomes_tasks(tmp_path: Path) -> None:
    (tmp_path / "a/b").mkdir(parents=True)
    (tmp_path / "a/b/test.jsonl").write_text('{"question": "who?", "golden_answers": ["me"]}\n')
    (task,) = text_env(make("agentgym/SearchQA-v0", dataset="a/b", data=tmp_path)).tasks.test
    assert (task.id, task.payload["question"]) == ("searchqa/test/a/b/0", "who?")


@pytest.mark.parametrize(
    "line", ["nonsense", '{"question": "who?"}', '{"question": "", "golden_answers": ["a"]}', "[]"]
    + [f'{{"question": "who?", "golden_answers": {answers}}}' for answers in ("[]", '"me"', "[3]", "null")],
)  # fmt: skip
def test_malformed_line_is_reported_with_its_number(tmp_path: Path, line: str) -> None:
    write_set(tmp_path, "nq", test=[("who?", ["me"])])
    with (tmp_path / "nq/test.jsonl").open("a") as file:
        file.write(f"\n{line}\n")
    with pytest.raises(ValueError, match=r"test\.jsonl, line 3, is not a question"):
        load("nq", tmp_path)


def test_missing_sets_are_reported(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"no questions in .*nq: a set is a folder with train\.jsonl"):
        load("nq", tmp_path)
    with pytest.raises(ValueError, match=r"no published set 'squad'; there are nq, triviaqa, .*data=FOLDER"):
        load("squad", None)


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that `datasets` reads like the repository on the hub."""
    folder = write_set(tmp_path / "hub", "bamboogle", test=[("who?", ["me", "I"]), ("when?", ["now"])])
    card = "configs:\n- config_name: bamboogle\n  data_files:\n  - split: test\n    path: bamboogle/test.jsonl\n"
    (folder / "README.md").write_text(f"---\n{card}---\n")
    monkeypatch.setattr(published, "HUB", str(folder))
    monkeypatch.setattr("agentgym_envs.util.hub._reachable", lambda url: True)
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "cache")
    load.cache_clear()
    yield folder
    load.cache_clear()


def test_sets_are_loaded_through_datasets(hub: Path) -> None:
    assert load("bamboogle", None) == {"test": (Row("who?", ("me", "I")), Row("when?", ("now",)))}


def test_without_a_network_the_folder_is_suggested(hub: Path) -> None:
    for file in hub.rglob("*.*"):
        file.unlink()
    with pytest.raises(OSError, match=r"bamboogle can't be downloaded from .* data=FOLDER"):
        load("bamboogle", None)


def test_without_a_network_the_hub_is_requested_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    requests: list[str] = []

    def fail_to_connect(url: str, **_: Any) -> None:
        requests.append(url)
        raise httpx.ConnectError("no network")

    monkeypatch.setattr(httpx, "head", fail_to_connect)
    monkeypatch.setattr("huggingface_hub.HfApi.hf_hub_download", lambda *_, **__: pytest.fail("the hub was requested"))
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path)
    monkeypatch.setattr("datasets.config.HF_HUB_OFFLINE", False)  # also where the environment says otherwise
    with pytest.raises(OSError, match=r"bamboogle can't be downloaded from .* data=FOLDER"):
        load("bamboogle", None)
    assert requests == [datasets.config.HF_ENDPOINT]
    assert not datasets.config.HF_HUB_OFFLINE


def test_missing_datasets_names_the_install_command(hub: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    original_import = builtins.__import__

    def import_without_datasets(name: str, *rest: Any) -> Any:
        if name == "datasets":
            raise ImportError(name)
        return original_import(name, *rest)

    monkeypatch.setattr(builtins, "__import__", import_without_datasets)
    with pytest.raises(DependencyNotInstalled, match="--package agentgym-envs --extra datasets"):
        load("bamboogle", None)


# The first and last item of every range in AgentGym's table.
RANGES = {
    (0, 3_609): "test/nq",
    (3_610, 14_922): "test/triviaqa",
    (14_923, 29_189): "test/popqa",
    (29_190, 36_594): "test/hotpotqa",
    (36_595, 49_170): "test/2wikimultihopqa",
    (49_171, 51_587): "test/musique",
    (51_588, 51_712): "test/bamboogle",
    (51_713, 130_880): "train/nq",
    (130_881, 221_327): "train/hotpotqa",
}


@pytest.mark.parametrize(("items", "tasks"), RANGES.items())
def test_agentgym_ids_map_to_task_ids(items: tuple[int, int], tasks: str) -> None:
    first, last = items
    assert from_agentgym(f"searchqa_{first}") == f"searchqa/{tasks}/0"
    assert from_agentgym(first) == f"searchqa/{tasks}/0"
    assert from_agentgym(f"searchqa_{last}") == f"searchqa/{tasks}/{last - first}"
    split, name = tasks.split("/")
    assert last - first + 1 == getattr(PUBLISHED[name], split)


@pytest.mark.parametrize("item", ["searchqa_221328", "searchqa_-1", "babyai_3", "searchqa_", -1, 221328])
def test_unknown_agentgym_ids_are_rejected(item: str | int) -> None:
    with pytest.raises(KeyError, match="its ids go from searchqa_0 to searchqa_221327"):
        from_agentgym(item)
