"""Tests of `collect`: data of one or several environments, filters, resuming and overwriting."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path

import pytest
from agentgym_envs import Reply, read_episodes
from agentgym_eval.cli.main import collect
from agentgym_eval.policies.policies import Random
from agentgym_eval.runs import run as running
from agentgym_eval.runs.run import open_runs, play_runs
from agentgym_eval.runs.settings import CollectSettings
from agentgym_eval.util.errors import UsageError
from counting_policy import CountingPolicy
from counting_world import ENV

TWO_ENVS = ["--env", ENV, "textcraft", "--policy", "oracle:0.3", "--tasks", "6", "--samples", "2"]


def read_replies(path: Path) -> list[tuple[str, int, tuple[str, ...]]]:
    return [(e.task_id, e.sample, tuple(turn.reply.text for turn in e.turns)) for e in read_episodes(path)]


def interrupt(*_: object) -> None:
    raise KeyboardInterrupt


def test_several_environments_are_collected_together(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert collect([*TWO_ENVS, "--out", str(tmp_path / "both")]) == 0
    out, err = capsys.readouterr()
    assert "counting/Count-v0: kept 12 of 12 played, 0 failed, " in out
    assert "agentgym/TextCraft-v0: kept 12 of 12 played" in out
    assert f"Wrote 24 of 24 episodes to {tmp_path / 'both'}" in out
    assert "24 episodes" in err
    files = sorted(str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file())
    assert files == ["both/README.md", "both/card.json", "both/count/train.jsonl", "both/textcraft/train.jsonl"]
    for name, env in (("count", ENV), ("textcraft", "textcraft")):
        arguments = ["--env", env, *TWO_ENVS[3:], "--out", str(tmp_path / f"{name}.jsonl")]
        assert collect(arguments) == 0
        assert read_replies(tmp_path / "both" / name / "train.jsonl") == read_replies(tmp_path / f"{name}.jsonl")


def test_episodes_in_one_file_are_ordered_by_environment(tmp_path: Path) -> None:
    assert collect([*TWO_ENVS, "--out", str(tmp_path / "both.jsonl")]) == 0
    assert [e.env for e in read_episodes(tmp_path / "both.jsonl")] == [
        *["counting/Count-v0"] * 12,
        *["agentgym/TextCraft-v0"] * 12,
    ]


def test_resumed_collection_equals_an_uninterrupted_one(tmp_path: Path) -> None:
    assert collect([*TWO_ENVS, "--out", str(tmp_path / "whole.jsonl")]) == 0
    resumed = tmp_path / "parts.jsonl"
    settings = CollectSettings(env=(ENV, "textcraft"), policy="oracle:0.3", tasks=6, samples=2, out=resumed)
    for count in (5, 10):
        with open_runs(settings.worlds()) as runs:
            episodes = play_runs(runs)
            for _ in range(count):
                next(episodes)
    assert collect([*TWO_ENVS, "--out", str(resumed)]) == 0
    assert read_replies(resumed) == read_replies(tmp_path / "whole.jsonl")
    assert not settings.folder.exists()


def test_environments_can_be_added_to_unfinished_work_but_not_removed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = ["--out", str(tmp_path / "both.jsonl")]
    settings = CollectSettings(env=(ENV,), policy="oracle:0.3", tasks=6, samples=2, out=tmp_path / "both.jsonl")
    with open_runs(settings.worlds()) as runs:
        assert len(list(play_runs(runs))) == 12
    assert collect(["--env", "textcraft", *TWO_ENVS[3:], *out]) == 2
    assert "holds unfinished work of another command (count): add its environments to --env" in capsys.readouterr().err
    assert collect([*TWO_ENVS, *out]) == 0
    assert "24 episodes, 12 of them already done" in capsys.readouterr().err


def test_one_policy_plays_all_environments_and_is_closed_once(tmp_path: Path) -> None:
    class StoppingPolicy(CountingPolicy):
        async def reply(self, context: object) -> Reply:
            return Reply("Action: stop")

    policy, seeds = StoppingPolicy(), list[int]()

    def factory(*, seed: int, **_: object) -> CountingPolicy:
        seeds.append(seed)
        return policy

    settings = CollectSettings(env=(ENV, "textcraft"), policy="counter", tasks=3, horizon=2, out=tmp_path / "data")
    with open_runs(settings.worlds(), factory) as runs:
        assert len(list(play_runs(runs))) == 6
        assert len(list(play_runs(runs))) == 0
    assert (seeds, policy.close_count) == ([0], 1)


def test_resumed_collection_uses_a_new_policy_seed(tmp_path: Path) -> None:
    seeds = list[int]()

    def factory(*, seed: int, **_: object) -> Random:
        seeds.append(seed)
        return Random()

    settings = CollectSettings(env=(ENV, "textcraft"), policy="random", tasks=2, horizon=2, out=tmp_path / "data")
    for _ in range(3):
        with open_runs(settings.worlds(), factory) as runs:
            next(iter(play_runs(runs)))
    assert seeds == [0, 1, 2]


def test_min_score_filters_episodes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    noisy = ["--env", ENV, "--policy", "oracle:0.3", "--samples", "3", "--min-score", "0.5"]
    assert collect([*noisy, "--out", str(tmp_path / "good.jsonl")]) == 0
    good = list(read_episodes(tmp_path / "good.jsonl"))
    assert 0 < len(good) < 36
    assert {e.score for e in good} == {1.0}
    nothing = ["--env", "textcraft", "--policy", "random", "--tasks", "2", "--horizon", "1", "--min-score", "0.01"]
    assert collect([*nothing, "--out", str(tmp_path / "none.jsonl")]) == 1
    assert "None of the 2 episodes matches --keep all and --min-score 0.01" in capsys.readouterr().err


def test_options_apply_to_all_environments_or_to_one(tmp_path: Path) -> None:
    def resolve_options(*pairs: str) -> list[tuple[str, ...]]:
        settings = CollectSettings(env=(ENV, "textcraft"), policy="random", out=tmp_path / "x", options=pairs)
        return [env_settings.options for env_settings in settings.worlds().values()]

    assert resolve_options("a=1", "count:b=x:y=z", f"{ENV}:c=3", "textcraft:depth=(2,3)") == [
        ("a=1", "b=x:y=z", "c=3"),
        ("a=1", "depth=(2,3)"),
    ]
    assert resolve_options("url=http://there") == [("url=http://there",)] * 2
    with pytest.raises(UsageError, match=r"babyai:levels is for babyai, which is not among the environments of --env"):
        resolve_options("babyai:levels=1")


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"env": ("textcraft", "agentgym/TextCraft-v0")}, "--env names textcraft twice"),
        ({"min_score": 1.5}, "--min-score must be between 0 and 1"),
        ({"env": ()}, "--env names no environment"),
        ({"out": Path("x.json")}, "use x.jsonl or name a folder"),
        ({"out": Path()}, "has no file name"),
        ({"out": Path("..")}, "has no file name"),
        ({"skip": True}, "give --items as well"),
    ],
)
def test_invalid_settings_are_rejected(changes: dict[str, object], sentence: str) -> None:
    with pytest.raises(UsageError, match=sentence):
        CollectSettings(**({"env": ("textcraft",), "policy": "random", "out": Path("x")} | changes))  # type: ignore[arg-type]


def test_unknown_second_environment_leaves_no_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert collect(["--env", ENV, "textkraft", "--policy", "oracle", "--out", str(tmp_path / "new")]) == 2
    assert "no environment 'textkraft'" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_named_tasks_are_assigned_to_their_environments(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    worlds = ["--env", ENV, "textcraft", "--policy", "oracle", "--out", str(tmp_path / "data")]
    named_tasks = ["count/test/3", "textcraft/train/bow", "count/train/1"]
    assert collect([*worlds, "--task", *named_tasks]) == 0
    task_ids = {
        str(p.relative_to(tmp_path / "data")): [e.task_id for e in read_episodes(p)] for p in tmp_path.rglob("*.jsonl")
    }
    assert task_ids == {
        "count/test.jsonl": ["count/test/3"],
        "count/train.jsonl": ["count/train/1"],
        "textcraft/train.jsonl": ["textcraft/train/bow"],
    }
    capsys.readouterr()
    for ids, sentence in (
        (["count/test/3"], "None of the 1 named tasks is of textcraft; remove it from --env"),
        (["count/test/3", "textcraft/test/9999"], "no task 'textcraft/test/9999'"),
        (
            ["count/test/33", "count/test/1", "count/test/34"],
            "2 of the 3 named tasks don't exist with these --env and --options: count/test/33, count/",
        ),
    ):
        assert collect([*worlds[:-1], str(tmp_path / "more"), "--task", *ids]) == 2
        assert sentence in capsys.readouterr().err


def test_a_link_is_refused_before_anything_is_played(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "folder")
    assert collect(["--env", ENV, "--policy", "oracle", "--tasks", "2", "--out", str(tmp_path / "link")]) == 2
    assert f"--out {tmp_path / 'folder'}" in "".join(capsys.readouterr().err.splitlines())
    assert [path.name for path in sorted(tmp_path.iterdir())] == ["folder", "link"]


def test_overwrite_replaces_only_output_of_collect(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    precious = tmp_path / "precious"
    precious.mkdir()
    few = ["--env", ENV, "--policy", "oracle", "--tasks", "2", "--out"]
    assert collect([*few, str(precious)]) == 0  # it was empty
    assert collect([*few, str(precious)]) == 2
    assert collect([*few, str(precious), "--samples", "2", "--overwrite"]) == 0
    assert len(read_replies(precious / "count/train.jsonl")) == 4
    (precious / "card.json").write_text('{"schema": "diary"}')
    capsys.readouterr()
    assert collect([*few, str(precious), "--overwrite"]) == 2
    assert "precious was not written by `collect`" in capsys.readouterr().err
    assert (precious / "count/train.jsonl").exists()


@pytest.mark.parametrize(
    ("user_file", "out"),
    [
        ("diary.txt", "diary.txt"),
        ("diary.jsonl", "diary.jsonl"),
        ("diary.card.md", "diary.jsonl"),
        ("diary.card.json", "diary.jsonl"),
        ("diary.jsonl/page", "diary.jsonl"),
        ("diary/page", "diary"),
        ("diary.partial/page", "diary"),
        ("diary.partial/photos/me", "diary"),
        ("diary.partial/count/me", "diary"),
    ],
)
def test_files_not_written_by_collect_are_kept(
    user_file: str, out: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / user_file
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("{}")
    few = ["--env", ENV, "--policy", "oracle", "--tasks", "2", "--out", str(tmp_path / out)]
    assert collect([*few, "--overwrite"]) == 2
    assert "was not written by `collect`; choose another --out" in capsys.readouterr().err
    assert path.read_text() == "{}"


@pytest.mark.parametrize("name", ["data", "data.jsonl"])
def test_old_data_is_kept_until_the_new_data_is_complete(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    few = ["--env", ENV, "--tasks", "2", "--out", str(tmp_path / name)]
    oracle = ["--policy", "oracle", "--samples", "2"]

    def episode_count() -> int:
        return sum(len(read_replies(path)) for path in tmp_path.rglob("*.jsonl") if ".partial" not in str(path))

    assert collect([*few, "--policy", "oracle"]) == 0
    assert collect([*few, "--policy", "scripted:nowhere", "--overwrite"]) == 2
    assert episode_count() == 2
    capsys.readouterr()
    assert collect([*few, *oracle]) == 2
    assert "exists already" in capsys.readouterr().err
    with monkeypatch.context() as patch:
        patch.setattr("agentgym_eval.data.collection.make_card", interrupt)
        assert collect([*few, *oracle, "--overwrite"]) == 130
    assert episode_count() == 2
    assert collect([*few, *oracle]) == 0  # as the interrupted command advised
    assert episode_count() == 4


def test_failed_command_without_episodes_leaves_no_files(tmp_path: Path) -> None:
    out = ["--tasks", "2", "--out", str(tmp_path / "data")]
    assert collect(["--env", ENV, "--policy", "random", "--options", "listed=False", *out]) == 2
    assert not list(tmp_path.iterdir())
    assert collect(["--env", "textcraft", "--policy", "oracle", *out]) == 0


def test_overwrite_replaces_the_card_of_a_file(tmp_path: Path) -> None:
    few = ["--env", ENV, "--policy", "oracle", "--tasks", "2", "--out", str(tmp_path / "data.jsonl")]
    assert collect(few) == 0
    assert collect([*few, "--samples", "2", "--overwrite"]) == 0
    assert json.loads((tmp_path / "data.card.json").read_text())["total"]["kept"] == 4
    assert len(read_replies(tmp_path / "data.jsonl")) == 4


@pytest.mark.parametrize("name", ["data", "data.jsonl"])
def test_collection_resumes_after_a_full_disk(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["--env", ENV, "--policy", "oracle", "--tasks", "3", "--out", str(tmp_path / name)]

    def disk_full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    for target, message in (
        ("agentgym_eval.storage.store.Store.append", "No episode has been played yet. Start over with: uv run collect"),
        ("agentgym_eval.data.collection.write_whole", "The episodes so far are kept in"),
    ):
        with monkeypatch.context() as patch:
            patch.setattr(target, disk_full)
            assert collect(arguments) == 1
        assert f"No space left on device. {message}" in capsys.readouterr().err
    assert collect(arguments) == 0


def test_interrupted_export_replays_no_episodes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    arguments = ["--env", ENV, "--policy", "oracle", "--tasks", "3", "--out", str(tmp_path / "data")]

    with monkeypatch.context() as patch:
        patch.setattr("agentgym_eval.data.collection.write_json", interrupt)
        assert collect(arguments) == 130
    assert not (tmp_path / "data").exists()
    with monkeypatch.context() as patch:
        patch.setattr(running, "play_many", lambda *_: pytest.fail("played again"))
        assert collect(arguments) == 0
    assert len(read_replies(tmp_path / "data/count/train.jsonl")) == 3
    assert json.loads((tmp_path / "data/card.json").read_text())["total"]["kept"] == 3


def test_card_contains_no_server_secrets(tmp_path: Path) -> None:
    secret_options = ("url=http://there", "token=open-sesame", "pause=0")
    settings = CollectSettings(env=(ENV,), policy="random", out=tmp_path / "x", options=secret_options)
    assert settings.resolved()["options"] == {ENV: ["pause=0"]}


def test_failing_environment_among_others_gives_exit_code_1(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    broken = ["--env", ENV, "textcraft", "--policy", "oracle", "--tasks", "12", "--options", "count:broken=(2,)"]
    assert collect([*broken, "--out", str(tmp_path / "data")]) == 1
    assert "1 of 12 episodes failed, more than --max-failed 0.05 allows" in capsys.readouterr().err
    assert len(list(read_episodes(tmp_path / "data/count/train.jsonl"))) == 11


def test_unplayable_environment_keeps_episodes_of_the_others(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = [
        "--policy",
        "random",
        "--tasks",
        "2",
        "--out",
        str(tmp_path / "out"),
        "--options",
        f"{ENV}:listed=False",
    ]
    worlds = ["textcraft", ENV]
    assert collect(["--env", *worlds, *arguments]) == 2
    err = capsys.readouterr().err
    kept = tmp_path / "out.partial"
    assert "lists no available actions here" in err
    assert f"What was played is kept in {kept}. Leave {ENV} out of --env, and the same command goes on there." in err
    assert collect(["--env", "textcraft", *arguments[:-2]]) == 0
    assert "2 episodes, 2 of them already done" in capsys.readouterr().err
    assert collect(["--env", ENV, *arguments[:-3], str(tmp_path / "alone"), *arguments[-2:]]) == 2
    assert "kept" not in capsys.readouterr().err
