"""Tests of protocols, the evaluation settings of papers: what they play, what they refuse, and resuming under them."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import agentgym_eval
import pytest
from agentgym_envs import WORLDS, read_episodes
from agentgym_eval.cli.main import evaluate
from agentgym_eval.runs.protocols import PROTOCOLS, EnvSettings, Protocol, find_protocol
from agentgym_eval.runs.settings import EvaluateSettings, short_name
from agentgym_eval.util.errors import UsageError
from counting_world import ENV
from fake_endpoint import completion_answer, serve_endpoint

SMALL = Protocol(
    name="small",
    about="For tests.",
    source="https://example.org",
    envs={
        "textcraft": EnvSettings(tasks=3, horizon=2, max_tokens=40),
        "babyai": EnvSettings(tasks=4, horizon=3, max_tokens=20),
    },
)


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("agentgym_eval.runs.protocols.PROTOCOLS", {**PROTOCOLS, "small": SMALL})


def asked(**changes: Any) -> EvaluateSettings:
    return EvaluateSettings(**{"env": ("textcraft",), "policy": ("random",), "protocol": "agentgym-rl"} | changes)


def run_json(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "run.json").read_text())


def shown_note(folder: Path) -> str:
    return json.loads((folder / "report.json").read_text())["protocol"]


def test_the_settings_of_each_environment_are_those_of_the_paper() -> None:
    settings = asked(env=("webarena", "searchqa", "agentgym/TextCraft-v0", "BabyAI", "sciworld"))
    (played,) = settings.runs().values()
    numbers = {short_name(run.env): (run.tasks, run.horizon, run.max_tokens) for run in played.values()}
    assert numbers == {
        "webarena": (50, 15, 512),
        "searchqa": (400, 10, 512),
        "textcraft": (100, 30, 512),
        "babyai": (90, 20, 512),
        "sciworld": (200, 30, 200),
    }
    assert {(run.split, run.samples, run.temperature) for run in played.values()} == {("test", 1, 1.0)}


@pytest.mark.parametrize("protocol", PROTOCOLS.values(), ids=list(PROTOCOLS))
def test_protocols_have_known_environments_and_settings_that_are_defaults_of_flags(protocol: Protocol) -> None:
    assert set(protocol.envs) <= {short_name(world.id) for world in WORLDS}
    default = EvaluateSettings(env=("textcraft",), policy=("random",))
    assert (protocol.split, protocol.samples, protocol.temperature) == (
        default.split, default.samples, default.temperature,
    )  # fmt: skip
    assert find_protocol(protocol.name) is protocol


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"horizon": 20}, r"--horizon 20 contradicts --protocol agentgym-rl, in which textcraft has --horizon 30"),
        ({"tasks": 10}, "--tasks 10 contradicts .* textcraft has --tasks 100"),
        ({"samples": 4}, "--samples 4 contradicts .* textcraft has --samples 1"),
        ({"temperature": 0.0}, r"--temperature 0\.0 contradicts .* textcraft has --temperature 1\.0"),
        ({"split": "dev"}, "--split dev contradicts .* textcraft has --split test"),
        ({"max_tokens": 64}, "--max-tokens 64 contradicts .* textcraft has --max-tokens 512"),
        # The default of the flag, which the protocol doesn't have in SciWorld.
        ({"max_tokens": 512, "env": ("babyai", "sciworld")}, "--max-tokens 512 contradicts .* sciworld .* 200"),
        ({"task": ("textcraft/test/stick",)}, "--task can't be given with --protocol agentgym-rl"),
        ({"env": ("textcraft", ENV)}, r"has no settings for .*Count-v0\. Its environments are webarena, searchqa, "),
        ({"env": ("mine:mine/TextCraft-v0",)}, "has no settings for mine:mine/TextCraft-v0"),
        ({"protocol": "agentgym"}, "There is no protocol 'agentgym'. Did you mean agentgym-rl"),
    ],
)
def test_what_contradicts_a_protocol_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        asked(**changes)


def test_flags_that_agree_with_the_protocol_are_accepted() -> None:
    equal = asked(horizon=30, tasks=100, samples=1, temperature=1.0, split="test", max_tokens=512)
    assert equal.runs() == asked().runs()


def test_without_a_protocol_replies_have_512_tokens_and_run_json_is_as_before() -> None:
    (runs,) = asked(protocol=None).runs().values()
    (run,) = runs.values()
    assert run.max_tokens == 512
    assert "protocol" not in run.identity()


@pytest.mark.usefixtures("small", "api_key")
@pytest.mark.long
def test_a_model_is_played_with_the_settings_of_each_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    installed = (("textcraft", "babyai", "lamps"), {"rooms": "There is no package rooms."})
    monkeypatch.setattr("agentgym_eval.runs.environments.installed_worlds", lambda: installed)
    with serve_endpoint(lambda _: completion_answer("Action: look around")) as fake:
        arguments = ["--env", "all", *fake.flags, "--protocol", "small", "--out", str(tmp_path)]
        assert evaluate(arguments) == 0
        folders = {name: tmp_path / f"{name}-openai-tiny-1-test" for name in ("textcraft", "babyai")}
        # Three tasks of two turns in TextCraft, four tasks of three in BabyAI.
        tokens = Counter(request["max_tokens"] for request in fake.requests)
        assert tokens == {40: 6, 20: 12}
        assert {request["temperature"] for request in fake.requests} == {1.0}
        out, err = capsys.readouterr()
        assert "in textcraft, babyai, test split, protocol small" in out
        assert "rooms" not in err
        for text in (out, err, (tmp_path / "report.md").read_text(), (tmp_path / "report.html").read_text()):
            for number in ("2 turns, 40 tokens per reply, and 3", "3 turns, 20 tokens per reply, and 4"):
                assert f"{number} test tasks of this package, not the paper" in text
        for name, tasks, turns in (("textcraft", 3, 2), ("babyai", 4, 3)):
            episodes = list(read_episodes(folders[name] / "episodes.jsonl"))
            assert [(episode.sample, len(episode.turns)) for episode in episodes] == [(0, turns)] * tasks
            assert run_json(folders[name])["settings"]["protocol"] == "small"
        fake.requests.clear()
        assert evaluate(arguments) == 0  # resumes, and finds everything played
        assert not fake.requests


@pytest.mark.usefixtures("small", "api_key")
def test_a_budget_holds_for_all_environments_and_limits_together(tmp_path: Path) -> None:
    with serve_endpoint(lambda _: completion_answer("Action: look around")) as fake:
        flags = ["--env", "textcraft", "babyai", *fake.flags, "--protocol", "small", "--out", str(tmp_path)]
        assert evaluate([*flags, "--slots", "1", "--budget", "requests=10"]) == 3
        assert [request["max_tokens"] for request in fake.requests] == [40] * 6 + [20] * 4
        assert evaluate([*flags, "--slots", "1", "--budget", "requests=18"]) == 0
        assert len(fake.requests) == 18  # 6 in TextCraft and 12 in BabyAI, none twice


@pytest.mark.usefixtures("small")
def test_a_run_is_resumed_under_its_own_protocol_only(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    flags = ["--env", "textcraft", "--policy", "random", "--out", str(tmp_path)]
    same = ["--tasks", "3", "--horizon", "2", "--max-tokens", "40"]
    assert evaluate([*flags, "--protocol", "small"]) == 0
    assert evaluate([*flags, "--protocol", "small", *same]) == 0
    assert evaluate([*flags, *same]) == 2
    assert "was played with protocol 'small', not None" in capsys.readouterr().err
    assert evaluate([*flags, *same, "--overwrite"]) == 0
    assert evaluate([*flags, "--protocol", "small"]) == 2
    assert "was played with protocol None, not 'small'" in capsys.readouterr().err
    assert evaluate([*flags, *same, "--samples", "2"]) == 0  # a run without one can be extended as before


def test_all_tasks_are_played_if_there_are_fewer_than_in_the_paper(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    many = replace(SMALL, envs={"textcraft": EnvSettings(tasks=100, horizon=1, max_tokens=40)})
    monkeypatch.setattr("agentgym_eval.runs.protocols.PROTOCOLS", {"many": many})
    flags = ["--env", "textcraft", "--policy", "random", "--protocol", "many", "--options", "depth=(4,4)"]
    assert evaluate([*flags, "--out", str(tmp_path)]) == 0
    played = len(list(read_episodes(tmp_path / "episodes.jsonl")))
    assert 0 < played < 100
    sentence = f"all {played} test tasks of this package, fewer than the paper's own 100."
    assert sentence in capsys.readouterr().err
    assert shown_note(tmp_path).endswith(sentence)
    assert run_json(tmp_path)["resolved"]["tasks"] == played
    episodes = (tmp_path / "episodes.jsonl").read_bytes()
    assert evaluate([*flags, "--out", str(tmp_path)]) == 0
    assert (tmp_path / "episodes.jsonl").read_bytes() == episodes


@pytest.mark.usefixtures("small")
def test_item_ids_take_the_place_of_the_number_of_tasks(tmp_path: Path) -> None:
    items = tmp_path / "items.json"
    items.write_text(json.dumps([{"item_id": f"babyai_{number}"} for number in (0, 2)]))
    flags = ["--env", "babyai", "--policy", "random", "--protocol", "small", "--items", str(items)]
    assert evaluate([*flags, "--out", str(tmp_path / "run")]) == 0
    episodes = list(read_episodes(tmp_path / "run" / "episodes.jsonl"))
    assert [episode.task_id for episode in episodes] == [
        "babyai/train/GoToRedBallGrey/0", "babyai/train/GoToRedBallNoDists/0",
    ]  # fmt: skip
    assert all(episode.acts <= 3 for episode in episodes)
    assert shown_note(tmp_path / "run").endswith("20 tokens per reply, and the 2 tasks of --items; the paper has 4.")


@pytest.mark.usefixtures("small")
def test_the_function_takes_a_protocol(tmp_path: Path) -> None:
    report = agentgym_eval.evaluate("random", "babyai", out=tmp_path / "run", protocol="small")
    assert [len(list(report.episodes())), report.settings["protocol"], report.settings["horizon"]] == [4, "small", 3]
    assert report.title == "random in babyai, test split, protocol small"
    with pytest.raises(UsageError, match="--samples 2 contradicts --protocol small"):
        agentgym_eval.evaluate("random", "babyai", out=tmp_path / "other", protocol="small", samples=2)
    loaded = agentgym_eval.load_run(tmp_path / "run")
    assert loaded.settings["protocol"] == "small"


def test_other_task_sets_are_refused(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    flags = ["--env", "webarena", "--policy", "oracle", "--protocol", "agentgym-rl", "--out", str(tmp_path / "run")]
    assert evaluate([*flags, "--options", "task_set=webarena-verified"]) == 2
    err = capsys.readouterr().err
    assert "agentgym-rl has no settings for webarena with task_set=webarena-verified. Its environments are" in err
    assert "task_set=webarena-agentgym-rl" in err
    assert not (tmp_path / "run").exists()


def test_the_sentence_says_whose_tasks_they_are() -> None:
    def sentence(env: str, tasks: int, task_set: str = "", *, items: bool = False) -> str:
        found = find_protocol("agentgym-rl").sentence(env, tasks=tasks, task_set=task_set, items=items)
        assert found.startswith(f"Protocol agentgym-rl in {env}: ")
        return found.partition(": ")[2]

    limits = "15 turns, 512 tokens per reply, and"
    assert sentence("webarena", 50, "own sites") == f"{limits} 50 test tasks of this package, not the paper's own 50."
    assert sentence("webarena", 44, "webarena-agentgym-rl") == f"{limits} 44 of the paper's own 50 test tasks."
    assert sentence("webarena", 9, "webarena", items=True) == f"{limits} the 9 tasks of --items; the paper has 50."
