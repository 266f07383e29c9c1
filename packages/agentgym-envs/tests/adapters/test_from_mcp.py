"""Tests of MCP servers as environments, with the real package: servers of tools, and servers of environments."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from agentgym_envs import EnvFault, make, play_many, text_env
from agentgym_envs.agents.agent import Agent
from agentgym_envs.core.registration import REMOTE
from agentgym_envs.episodes.recorder import EpisodeSpec
from agentgym_envs.server.app import build_app
from agentgym_envs.server.settings import Settings
from dev_packages import require_packages
from gymnasium.error import DependencyNotInstalled

require_packages("mcp")
from agentgym_envs.adapters.from_mcp import McpEnv
from door_policies import FunctionPolicy
from mcp_tools import almanac
from patience import PATIENCE
from uvicorn_threads import served

SERVER = shlex.join([sys.executable, str(Path(__file__).parent.parent / "mcp_tools.py")])
WORLD = shlex.join([sys.executable, "-m", "agentgym_envs.adapters.mcp", "textcraft"])
QUESTIONS = [
    {"id": "capital/norway", "question": "What is the capital of Norway?", "answer": "Oslo"},
    {
        "id": "capital/chile",
        "question": "And of Chile?",
        "answers": ["Santiago", "Santiago de Chile"],
        "split": "train",
    },
]


def shorter(record: Mapping[str, Any], answer: str, calls: list[dict[str, Any]]) -> float:
    """Score an answer by the number of calls."""
    return float(answer in record["answers"]) / (1 + len(calls))


def call(tool: str, **arguments: Any) -> str:
    return json.dumps({"name": tool, "arguments": arguments})


@pytest.fixture
def questions(tmp_path: Path) -> str:
    file = tmp_path / "capitals.jsonl"
    file.write_text("".join(json.dumps(question) + "\n" for question in QUESTIONS))
    return str(file)


@pytest.mark.long
def test_questions_are_answered_with_the_tools_of_a_server(questions: str) -> None:
    env = make(f"mcp:{SERVER}", questions=questions, timeout=PATIENCE)
    world = text_env(env)
    assert [task.id for task in world.tasks] == ["capital/chile", "capital/norway"]
    assert [function.name for function in world.functions] == ["look-up", "leave", "answer"]
    assert "An almanac of capitals." in world.instructions
    for _ in range(2):
        observation, info = env.reset(options={"task": "capital/norway"})
        assert (observation, info["available_actions"]) == ("What is the capital of Norway?", None)
        assert env.step(call("look-up", country="Norway"))[0] == "Oslo (look-up 1)"  # each episode has a new process
    for wrong in ("Oslo", call("look"), "[]", '{"name": 1}', call("look-up", country="Oz"), call("look-up")):
        _, reward, terminated, _, info = env.step(wrong)
        assert (reward, terminated, info["valid"]) == (0.0, False, False)
    _, reward, terminated, _, info = env.step(call("answer", text="oslo."))
    assert (reward, terminated, info["success"]) == (1.0, True, True)
    env.reset(options={"task": "capital/chile"})
    assert env.step(call("answer", text="Lima"))[4]["success"] is False
    env.reset(options={"task": "capital/chile"})
    with pytest.raises(EnvFault, match="MCP server"):
        env.step(call("leave"))
    assert env.reset(options={"task": "capital/chile"})[0] == "And of Chile?"
    env.close()
    env.close()


def test_lines_of_questions_end_at_line_feeds_alone(tmp_path: Path) -> None:
    file = tmp_path / "questions.jsonl"
    record = {"question": "one\u2028two\x85three", "answer": "x"}
    file.write_text(json.dumps(record, ensure_ascii=False) + "\n\n" + json.dumps(QUESTIONS[0]), encoding="utf-8")
    tasks = text_env(make(f"mcp:{SERVER}", questions=str(file))).tasks
    assert [task.id for task in tasks] == ["questions/1", "capital/norway"]
    assert tasks["questions/1"].payload["question"] == record["question"]


def test_a_server_over_http_and_a_reward_of_ones_own(questions: str) -> None:
    with served(almanac().streamable_http_app()) as url:
        env = make(f"mcp:{url}/mcp", questions=questions, reward=f"{__name__}:shorter", timeout=PATIENCE)
        agent = Agent.parse("function-call").wrap(env)
        replies = iter([call("look-up", country="Chile"), call("answer", text="Santiago")])
        (episode,) = play_many(agent, FunctionPolicy(lambda _: next(replies)), [EpisodeSpec("capital/chile")])
        env.close()
    assert (episode.stop, episode.score, episode.success) == ("terminated", 0.5, False)
    assert [turn.valid for turn in episode.turns] == [True, True]
    assert [tool["function"]["name"] for tool in episode.tools] == ["look-up", "leave", "answer"]


def connected(**status: Any) -> Any:
    """Return a connection whose tools are `reset` and `act`, which has a structured result."""
    tools = [SimpleNamespace(name=name, description="", input_schema={"type": "object"}) for name in ("reset", "act")]

    def called(name: str, _: Any) -> Any:
        return SimpleNamespace(is_error=False, structured_content=status if name == "act" else {}, content=[])

    return SimpleNamespace(tools=tools, instructions="", call=called, close=lambda: None)


@pytest.mark.parametrize(("reward", "success"), [(1.0, False), (2.0, True)])
def test_a_graded_answer_is_a_success_at_the_highest_grade(
    questions: str, monkeypatch: pytest.MonkeyPatch, reward: float, success: bool
) -> None:
    monkeypatch.setattr(McpEnv, "_connected", connected())
    monkeypatch.setattr(sys.modules[__name__], "shorter", lambda *_: reward)
    env = make(f"mcp:{SERVER}", questions=questions, reward=f"{__name__}:shorter", high=2)
    env.reset(options={"task": "capital/norway"})
    *_, info = env.step(call("answer", text="Oslo"))
    assert (info["score"], info["success"]) == (reward / 2, success)


@pytest.mark.parametrize(
    ("status", "flags"),
    [
        ({"done": True, "truncated": True}, (False, True)),
        ({"terminated": True, "truncated": True}, (True, False)),
        ({"done": True}, (True, False)),
        ({"truncated": True}, (False, True)),
        ({}, (False, False)),
    ],
)
def test_an_episode_that_a_server_truncates_is_not_terminated(
    monkeypatch: pytest.MonkeyPatch, status: dict[str, bool], flags: tuple[bool, bool]
) -> None:
    monkeypatch.setattr(McpEnv, "_connected", connected(**status))
    env = make(f"mcp:{SERVER}")
    env.reset(options={"split": "test"})
    _, _, *found, _ = env.step(call("act"))
    assert tuple(found) == flags


def test_the_tools_of_a_server_are_functions_over_http_and_in_python(questions: str) -> None:
    world = f"mcp:{SERVER}"
    with served(build_app(Settings(world=(world,), option=(f"{world}:questions={questions}",)))) as url:
        env = make(REMOTE, url=url, env=world)
        local = make(world, questions=questions)
        functions = env.get_wrapper_attr("functions")
        assert [each.schema for each in functions] == [each.schema for each in text_env(local).functions]
        agent = Agent.parse("code-act").wrap(env)
        assert "\nlook-up(country: str)\n" in agent.get_wrapper_attr("instructions")
        agent.reset(options={"task": "capital/norway"})
        assert agent.step("```python\nanswer('Oslo')\n```")[4]["success"] is True
        env.close()
        local.close()


def test_an_environment_that_is_served_has_seeds_as_tasks_and_its_own_score() -> None:
    env = make(f"mcp:{WORLD}", timeout=PATIENCE)
    local = make("agentgym/TextCraft-v0")
    task = text_env(env).tasks.test[0]
    assert task.payload == {"seed": 1_000_000}
    first, _ = env.reset(options={"task": task.id})
    assert first == local.reset(seed=1_000_000, options={"split": "test"})[0]
    assert "reset" not in [function.name for function in text_env(env).functions]
    assert env.step(call("get", amount=1))[4]["valid"] is False
    done, total, info = False, 0.0, dict[str, Any]()
    while not done:
        action = text_env(local).oracle()
        local.step(action)
        name, arguments = next(
            (function.name, arguments)
            for function in text_env(local).functions
            if (arguments := function.arguments(action)) is not None
        )
        _, reward, done, _, info = env.step(call(name, **arguments))
        total += float(reward)
    assert (total, info["success"]) == (1.0, True)
    env.close()
    local.close()


def test_no_arguments_of_an_agent_are_a_fault() -> None:
    """Otherwise an agent that is about to lose could have its episode left out of all results."""
    env = make(f"mcp:{WORLD}", timeout=PATIENCE)
    env.reset()
    for value in (
        '"\\ud83d"',
        *(depth * "[" + depth * "]" for depth in (98, 150, 200, 300)),
        "9" * 4000,
    ):
        action = f'{{"name": "get", "arguments": {{"item": {value}, "amount": 1}}}}'
        assert env.step(action)[4]["valid"] is False
    env.close()


@pytest.mark.parametrize(
    ("source", "options", "words"),
    [
        (SERVER, {"questions": "nowhere.jsonl"}, "can't be read"),
        (SERVER, {"reward": "json:nothing"}, "MODULE:FUNCTION"),
        (SERVER, {"timeout": 0.0}, "above 0"),
    ],
)
def test_wrong_options_are_refused(source: str, options: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        make(f"mcp:{source}", **options)


@pytest.mark.parametrize(
    ("line", "words"),
    [("{", "line 1"), ("[]", "question and answer"), ('{"question": "?", "split": "all"}', "train, dev, test")],
)
def test_damaged_files_of_questions_are_refused(line: str, words: str, tmp_path: Path) -> None:
    file = tmp_path / "questions.jsonl"
    file.write_text(line)
    with pytest.raises(ValueError, match=words):
        make(f"mcp:{SERVER}", questions=str(file))
    for content, message in (("", "has no question"), (f"{json.dumps(QUESTIONS[0])}\n" * 2, "a second question")):
        file.write_text(content)
        with pytest.raises(ValueError, match=message):
            make(f"mcp:{SERVER}", questions=str(file))


def test_servers_that_are_missing_or_have_no_tasks_are_named() -> None:
    missing = make("mcp:no-such-server --fast")
    with pytest.raises(DependencyNotInstalled, match="program no-such-server"):
        text_env(missing).check_dependencies()
    with pytest.raises(EnvFault, match="no-such-server --fast can't be reached"):
        missing.reset()
    toolbox = make(f"mcp:{SERVER}", timeout=PATIENCE)
    with pytest.raises(ValueError, match="questions=FILE"):
        toolbox.reset()
    toolbox.close()
