"""Tests of the index of episodes: reading files, filters, facets, metrics and siblings."""

from __future__ import annotations

import json
import random
import sqlite3
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from agentgym_envs import Episode, Reply, Sample, Turn
from agentgym_eval.util.errors import UsageError
from agentgym_eval.viewer.index.index import Index, NotFound
from agentgym_eval.viewer.index.indexer import Indexer
from agentgym_eval.viewer.index.links import Address
from agentgym_eval.viewer.index.queries import Filters
from agentgym_eval.viewer.index.runs import EpisodeFile
from hypothesis import given
from hypothesis import strategies as st
from viewer_runs import episode, write_episodes, write_evaluation_run, write_training_run


@pytest.fixture
def index(tmp_path: Path) -> Iterator[Index]:
    (tmp_path / "runs").mkdir()
    index = Index(tmp_path / "runs", tmp_path / "index.sqlite")
    yield index
    index.close()


def tasks(index: Index, **filters: object) -> list[str]:
    return [row.task for row in index.list(Filters(sort="task", **filters)).rows]  # type: ignore[arg-type]


def test_episodes_are_read_back_from_their_file(index: Index) -> None:
    episodes = [episode(f"t/{number}", reply=f"wörd {number}") for number in range(3)]
    write_evaluation_run(index.root / "eval", episodes)
    index.refresh()
    assert [index.episode(Address("eval", "episodes", number)) for number in range(3)] == episodes
    assert json.loads(index.line(Address("eval", "episodes", 2))) == json.loads(episodes[2].to_json())
    with pytest.raises(NotFound, match="no episode 3"):
        index.episode(Address("eval", "episodes", 3))
    with pytest.raises(NotFound, match="Did you mean eval"):
        index.run("evla")


def test_growing_file_is_followed_up_to_the_last_complete_record(index: Index) -> None:
    path = write_evaluation_run(index.root / "eval", [episode("t/0")]) / "episodes.jsonl"
    index.refresh()
    line = episode("t/1").to_json().encode() + b"\n"
    other = episode("t/2").to_json().encode() + b"\n"
    for piece, count in ((line[:10], 1), (line[10:-1], 2), (line[-1:], 2), (other, 3)):
        with path.open("ab") as file:
            file.write(piece)
        index.refresh()
        assert index.list(Filters()).total == count
    assert [index.episode(Address("eval", "episodes", number)).task_id for number in range(3)] == ["t/0", "t/1", "t/2"]


def test_episodes_are_filtered_by_available_tokens(index: Index) -> None:
    sampled = Turn("A room.", Reply("go", sample=Sample((1,), (2,), (-0.1,))), "go", True, 0.0, "s")
    path = index.root / "step-000001.jsonl"
    write_episodes(
        path, [episode("t/0"), replace(episode("t/1"), turns=(sampled,)), replace(episode("t/2"), turns=(sampled,))]
    )
    index.refresh()
    assert (tasks(index, tokens="kept"), tasks(index, tokens="sampled")) == ([], ["t/1", "t/2"])
    line = '{"schema": "agentgym.tokens/2", "episode": 2, "task_id": "t/2"}\n'
    path.with_suffix(".tokens.jsonl").write_text(
        f'half\n{line}{{"episode": 1}}\n'
    )  # after the episodes, as in training
    index.refresh()
    assert (tasks(index, tokens="kept"), tasks(index, tokens="sampled")) == (["t/2"], ["t/1"])
    assert index.facets()["tokens"] == [("kept", 1), ("sampled", 1)]


def test_index_does_not_depend_on_how_a_file_grows(index: Index) -> None:
    content = b"".join(episode(f"t/{number:04d}").to_json().encode() + b"\n" for number in range(1100))
    path = index.root / "all.jsonl"
    draw = random.Random(0)
    cuts = sorted(draw.sample(range(len(content)), 4))
    for begin, end in zip([0, *cuts], [*cuts, len(content)], strict=True):
        with path.open("ab") as file:
            file.write(content[begin:end])
        index.refresh()
    assert index.list(Filters()).total == 1100
    assert index.episode(Address("all.jsonl", "all", 1099)).task_id == "t/1099"


@pytest.mark.parametrize("cut", [1, 700, 1103])
def test_last_line_of_an_attempt_counts_however_the_file_grows(index: Index, cut: int) -> None:
    won = [episode(f"t/{number % 550}", number // 550, reply="first") for number in range(1100)]
    failed = episode("t/7", 1, None, category="hard", reply="second")
    lines = [*won, failed, episode("t/8", 0, False, turns=5, reply="second"), episode("t/8", policy="other"), failed]
    path = write_episodes(index.root / "all.jsonl", lines[:cut])
    index.refresh()
    with path.open("a") as file:
        file.writelines(f"{each.to_json()}\n" for each in lines[cut:])
    index.refresh()
    (metrics,) = index.file_metrics()
    assert (metrics.episodes, metrics.failed, metrics.repeated, metrics.tasks) == (1101, 1, 3, 550)
    assert index.list(Filters()).total == 1101
    found = {task: index.tasks("all.jsonl", "all")["agentgym/Near-v0", task] for task in ("t/7", "t/8")}
    assert (found["t/7"].attempts, found["t/7"].failed, found["t/7"].success) == (2, 1, 1.0)
    assert (found["t/8"].attempts, found["t/8"].success, found["t/8"].turns) == (3, 2 / 3, 3.0)
    assert found["t/8"].first == 558
    facets = {name: dict(values) for name, values in index.facets().items()}
    assert (facets["category"], facets["stop"]["failed"]) == ({"easy": 1100, "hard": 1}, 1)
    assert facets["run"] == {"all.jsonl": 1101}
    assert index.list(Filters(text="second")).total == 2


def test_rollouts_of_one_task_and_sample_all_count(index: Index) -> None:
    run = write_training_run(index.root / "rl")
    write_episodes(run / "rollouts" / "step-000001.jsonl", [episode()] * 3)
    index.refresh()
    assert index.list(Filters(step=1)).total == 3


def test_interrupted_indexing_continues(index: Index, monkeypatch: pytest.MonkeyPatch) -> None:
    write_episodes(index.root / "all.jsonl", [episode(f"t/{number}") for number in range(1100)])
    add, batches = Indexer._add, list[int]()  # pyright: ignore[reportPrivateUsage]

    def fail_once(indexer: Indexer, *arguments: Any, once: bool) -> int:
        batches.append(1)
        if len(batches) == 2:
            raise sqlite3.OperationalError("database or disk is full")
        return add(indexer, *arguments, once=once)

    monkeypatch.setattr(Indexer, "_add", fail_once)
    with suppress(sqlite3.OperationalError):
        index.refresh()
    assert index.list(Filters()).total == 500
    index.refresh()
    assert index.list(Filters()).total == 1100


def test_replaced_or_truncated_file_is_reindexed(index: Index) -> None:
    path = write_episodes(index.root / "plain.jsonl", [episode("t/0"), episode("t/1", reply="xyzzy"), episode("t/2")])
    index.refresh()
    replacement = write_episodes(index.root / "fresh", [episode("t/7")])
    replacement.replace(path)
    index.refresh()
    assert tasks(index) == ["t/7"]
    assert tasks(index, text="xyzzy") == []
    write_episodes(path, [episode("t/8"), episode("t/9")])  # the same inode with other content
    index.refresh()
    assert tasks(index) == ["t/8", "t/9"]
    with path.open("r+b") as file:
        file.truncate(path.read_bytes().index(b"\n") + 1)
    index.refresh()
    assert tasks(index) == ["t/8"]
    path.unlink()
    index.refresh()
    assert index.list(Filters()).total == 0
    assert index.runs == []


def test_damaged_lines_are_counted_and_skipped(index: Index) -> None:
    path = write_evaluation_run(index.root / "eval", [episode("t/0")]) / "episodes.jsonl"
    wrong_type = json.loads(episode("t/5").to_json()) | {"category": ["a", "list"]}
    no_task = json.loads(episode("t/6").to_json()) | {"task_id": ""}
    with path.open("a") as file:
        file.write(f'not json\n{{"turns": 3}}\n\n{json.dumps(wrong_type)}\n{json.dumps(no_task)}\n[]\n')
        file.write(episode("t/1").to_json() + "\n")
    index.refresh()
    assert tasks(index) == ["t/0", "t/1"]
    assert index.run_metrics()["eval"].damaged == 5
    assert [index.episode(row.address).task_id for row in index.list(Filters(sort="task")).rows] == ["t/0", "t/1"]


def test_lone_surrogates_are_question_marks(index: Index) -> None:
    record = json.loads(episode("t/6", reply="\ud800 lone").to_json()) | {"env": "\ud800"}
    (index.root / "all.jsonl").write_text(json.dumps(record) + "\n")
    index.refresh()
    (row,) = index.list(Filters(text="lone")).rows
    assert (row.env, index.episode(row.address).turns[0].reply.text) == ("?", "? lone")


def test_version_changes_only_with_the_content(index: Index) -> None:
    write_evaluation_run(index.root / "eval", [episode()])
    index.refresh()
    before = index.version
    index.refresh()
    assert index.version == before
    write_episodes(index.root / "more.jsonl", [episode()])
    index.refresh()
    assert index.version != before


def test_slow_indexing_does_not_delay_the_next_refresh(index: Index, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [0.0]
    read = Indexer.index_file

    def slow_index_file(indexer: Indexer, run: str, file: EpisodeFile) -> None:
        clock[0] += 100
        read(indexer, run, file)

    monkeypatch.setattr("agentgym_eval.viewer.index.index.time.monotonic", lambda: clock[0])
    monkeypatch.setattr(Indexer, "index_file", slow_index_file)
    write_evaluation_run(index.root / "eval", [episode("t/0")])
    assert index.refresh() == 0.0
    assert (clock[0], index.list(Filters()).total) == (100, 1)


def test_index_on_disk_is_reused(index: Index, tmp_path: Path) -> None:
    path = write_evaluation_run(index.root / "eval", [episode("t/0")]) / "episodes.jsonl"
    index.refresh()
    with path.open("a") as file:
        file.write(episode("t/1").to_json() + "\n")
    second = Index(index.root, tmp_path / "index.sqlite")
    second.refresh()
    assert tasks(second) == tasks(index) == ["t/0", "t/1"]  # two viewers share the index
    index.refresh()
    assert tasks(index) == ["t/0", "t/1"]
    second.close()


@pytest.fixture
def varied(index: Index) -> Index:
    write_evaluation_run(
        index.root / "eval",
        [
            episode("t/0", turns=1, reply="open the red door"),
            episode("t/1", success=False, turns=5, reply="open the blue door", category="hard", difficulty=3),
            episode("t/2", success=None, turns=0, env="agentgym/Far-v0"),
        ],
    )
    write_training_run(index.root / "rl")
    index.refresh()
    return index


@pytest.mark.parametrize(
    ("query", "count"),
    [
        ({"run": "eval"}, 3),
        ({"env": "agentgym/Far-v0"}, 1),
        ({"success": "yes", "run": "eval"}, 1),
        ({"success": "no", "run": "eval"}, 1),
        ({"success": "failed"}, 1),
        ({"stop": "truncated", "run": "eval"}, 1),
        ({"category": "hard"}, 1),
        ({"difficulty": "3"}, 1),
        ({"turns_from": "1", "turns_to": "4", "run": "eval"}, 1),
        ({"step": "3"}, 4),
        ({"part": "rollouts"}, 16),
        ({"decoding": "sampled", "step": "0"}, 4),
        ({"task": "t/9"}, 16),
        ({"policy": "nobody"}, 0),
        ({"text": "red door"}, 1),
        ({"text": "door open"}, 2),
        ({"text": '"red door"'}, 1),
        ({"text": '"door red"'}, 0),
        ({"text": "bl"}, 1),
        ({"text": "bl door"}, 0),
        ({"text": "?!"}, 27),
    ],
)
def test_filters_match_the_expected_number_of_episodes(varied: Index, query: dict[str, str], count: int) -> None:
    filters = Filters.parse(query)
    assert varied.list(filters).total == count
    assert Filters.parse({name: str(value) for name, value in filters.query().items()}) == filters


@pytest.mark.parametrize(
    ("query", "sentence"),
    [
        ({"colour": "red"}, "no filter colour"),
        ({"tur_from": "1"}, "Did you mean turns_from"),
        ({"step": "many"}, "step must be a whole number, not many"),
        ({"page": "9" * 30}, "page must be a whole number"),
        ({"sort": "e.id; DROP TABLE files"}, "no sort column"),
        ({"success": "maybe"}, "yes, no, failed"),
        ({"page": "0"}, "page must be at least 1"),
    ],
)
def test_invalid_filters_are_one_sentence_errors(query: dict[str, str], sentence: str) -> None:
    with pytest.raises(UsageError, match=sentence):
        Filters.parse(query)


@given(st.text())
def test_no_search_text_breaks_a_query(text: str) -> None:
    Filters.parse({"text": text})


@pytest.mark.parametrize("text", ['"', "' OR 1=1", "NEAR(", "a AND", "*", "-x", "^a", "text:b", "(", '"a" "', "a\x00b"])
def test_special_characters_in_search_text_are_not_query_syntax(varied: Index, text: str) -> None:
    assert varied.list(Filters(text=text)).total >= 0


def test_sorting_and_paging_show_every_episode_once(varied: Index) -> None:
    for sort in ("", "-turns", "task", "-step", "run", "-score"):
        addresses = [
            row.address for page in range(1, 8) for row in varied.list(Filters(sort=sort, page=page, size=4)).rows
        ]
        assert len(addresses) == len(set(addresses)) == 27
    turns = [row.turns for row in varied.list(Filters(sort="-turns")).rows]
    assert turns == sorted(turns, reverse=True)
    steps = [row.step for row in varied.list(Filters(sort="step")).rows]
    assert steps[-3:] == [None] * 3


def test_facets_count_episodes(varied: Index) -> None:
    facets = varied.facets()
    assert facets["env"] == [("agentgym/Far-v0", 1), ("agentgym/Near-v0", 26)]
    assert dict(facets["run"]) == {"eval": 3, "rl": 24}
    assert dict(varied.facets("eval")["stop"]) == {"failed": 1, "terminated": 1, "truncated": 1}


def test_metrics_are_means_over_tasks_without_failed_attempts(index: Index) -> None:
    episodes = [episode("t/0", sample, sample < 1) for sample in range(4)] + [episode("t/1", 0, True, turns=4)]
    write_evaluation_run(index.root / "eval", [*episodes, episode("t/1", 1, None), episode("t/2", 0, None)])
    index.refresh()
    (metrics,) = index.file_metrics()
    assert (metrics.tasks, metrics.episodes, metrics.failed) == (3, 7, 2)
    assert (metrics.success, metrics.score, metrics.turns) == (0.625, 0.625, 3.0)
    assert index.success("eval", "episodes").tasks == 2
    assert index.run_metrics()["eval"].success == 0.625


def test_success_of_a_training_run_is_that_of_its_last_evaluation(varied: Index) -> None:
    assert varied.run_metrics()["rl"].success == 0.75


def test_success_of_a_complete_training_run_is_that_of_its_test(index: Index) -> None:
    run = write_training_run(index.root / "rl", split="dev")
    file = run / "evaluations/test-000001-sampled.jsonl"
    file.write_text(episode("t/7").to_json() + "\n")
    index.refresh()
    metrics = index.run_metrics()["rl"]
    assert (metrics.split, metrics.success) == ("test", 1.0)


def test_siblings_are_the_attempts_at_one_task_in_one_file(varied: Index) -> None:
    file = varied.run("rl").files[-1].slug
    rows = varied.siblings(Address("rl", file, 2))
    assert [row.address.number for row in rows] == [0, 1, 2, 3]


def test_equal_task_ids_of_two_environments_are_not_siblings(index: Index) -> None:
    write_evaluation_run(index.root / "eval", [episode("t/0"), episode("t/0", env="other/World-v0"), episode("t/0", 1)])
    index.refresh()
    assert [row.address.number for row in index.siblings(Address("eval", "episodes", 0))] == [0, 2]


def test_episodes_of_the_first_schema_are_read(index: Index) -> None:
    record = json.loads(episode().to_json())
    for turn in record["turns"]:
        for name in ("kind", "trial", "loss"):
            del turn[name]
    del record["agent"], record["tools"]
    (index.root / "old.jsonl").write_text(json.dumps(record | {"schema": "agentgym.episode/1"}) + "\n")
    index.refresh()
    read: Episode = index.episode(index.list(Filters()).rows[0].address)
    assert read.acts == 2


def test_folder_may_appear_later(tmp_path: Path) -> None:
    index = Index(tmp_path / "later", tmp_path / "index.sqlite")
    index.refresh()
    assert (index.runs, index.complete) == ([], True)
    write_evaluation_run(tmp_path / "later/a", [episode()])
    index.refresh()
    assert index.episodes_of("a") == 1
    index.close()


def test_turns_are_those_of_reports(index: Index) -> None:
    by_expert, own = episode().turns
    by_expert = replace(by_expert, reply=replace(by_expert.reply, expert=True), valid=False)
    write_evaluation_run(index.root / "backward", [episode(turns=2), replace(episode("t/2"), turns=(by_expert, own))])
    index.refresh()
    assert [row.turns for row in index.list(Filters(run="backward", sort="number")).rows] == [2, 1]
    assert [task.turns for task in index.tasks("backward", "episodes").values()] == [2, 1]


def test_episodes_without_an_environment_are_shown(index: Index) -> None:
    write_evaluation_run(index.root / "converted", [episode(env="")])
    index.refresh()
    assert index.episodes_of("converted") == 1
