"""Tests of the page with the messages that a model received for a turn."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from html import unescape
from pathlib import Path

import pytest
from agentgym_envs import (
    Conversation,
    EpisodeSpec,
    Policy,
    Reply,
    Sample,
    TokenUsage,
    Turn,
    TurnContext,
    make,
    play,
    play_many,
)
from agentgym_envs.agents.agent import Agent
from agentgym_envs.util.screenshots import ScreenshotStore
from agentgym_eval.util.tool_calls import plain
from agentgym_eval.viewer.index.index import Index
from agentgym_eval.viewer.server.export import export
from counting_world import ENV
from pictured_world import ENV as PICTURED
from viewer_runs import EVIL, GetPage, episode, write_evaluation_run


class Recording(Policy):
    """Adds one at each turn and records the conversations that it received."""

    name = "recording"

    def __init__(self) -> None:
        self.seen: list[Conversation] = []

    async def reply(self, context: TurnContext) -> Reply:
        self.seen.append(context.conversation)
        return Reply("Thought: on.\nAction: add" if context.kind == "act" else f"a {context.kind}")


@pytest.mark.parametrize("agent", ["react", "react+plan:2+window:2", "react+reflect:2+retry:1"])
def test_messages_are_those_that_the_policy_received(tmp_path: Path, get_page: GetPage, agent: str) -> None:
    env, policy = Agent.parse(agent).wrap(make(ENV)), Recording()
    played = play(env, policy, EpisodeSpec("count/test/7", split="test"), horizon=6)
    env.close()
    write_evaluation_run(tmp_path / "runs/eval", [played])
    assert len(policy.seen) == len(played.turns) > 5
    for number, conversation in enumerate(policy.seen):
        sent = json.loads(get_page(f"/messages/eval/episodes/0/{number}.json"))
        assert sent == {"messages": [{"role": each.role, "content": each.content} for each in conversation]}
    page = get_page(f"/messages/eval/episodes/0/{len(policy.seen) - 1}")
    assert all(message.content in unescape(page) for message in policy.seen[-1])
    messages = len(policy.seen[-1])
    assert page.count(" open><summary>") == (messages if messages <= 4 else 2)


def test_unknown_messages_are_not_made_up(tmp_path: Path, get_page: GetPage) -> None:
    plans = replace(episode(agent="react"), turns=tuple(replace(t, kind="plan") for t in episode().turns))
    unseen = replace(episode(sample=1), turns=tuple(replace(turn, action=None) for turn in episode().turns))
    unknown = episode(sample=2, agent="react+telepathy:3")
    write_evaluation_run(tmp_path / "runs/eval", [plans, unseen, unknown])
    for number, reason in enumerate(("played by a different agent", "another program", "telepathy")):
        assert reason in get_page(f"/messages/eval/episodes/{number}/0")
        assert reason in get_page(f"/messages/eval/episodes/{number}/0.json", 404)
    assert "no turn 2; it has 2" in get_page("/messages/eval/episodes/0/2", 404)


def test_tokens_of_a_turn_are_its_context_and_its_reply(tmp_path: Path, get_page: GetPage) -> None:
    samples = [
        Sample((1, 2), (3,), (-0.5,)), Sample((4,), (5, 6), (-0.1, -0.2), fresh=False), Sample((7,), (8,), (-0.3,)),
    ]  # fmt: skip
    turns = tuple(Turn("A room.", Reply("go", sample=each), "go", True, 0.0, "s") for each in samples)
    write_evaluation_run(tmp_path / "runs/eval", [replace(episode(), turns=turns)])
    shown = ["1 2 3", "1 2 3 4 5 6", "7 8"]
    for number, ids in enumerate(shown):
        flow = re.search(r'<p class="flow.*?</p>', get_page(f"/messages/eval/episodes/0/{number}"), re.DOTALL)
        assert flow is not None
        assert " ".join(re.sub(r"<[^>]*>", " ", flow[0]).split()) == ids


def test_endpoint_replies_have_usage_reasoning_and_cost(tmp_path: Path, get_page: GetPage) -> None:
    reply = Reply("go", usage=TokenUsage(1000, 100, 500), seconds=1.5, finish_reason="stop", reasoning=f"hm {EVIL}")
    turn = Turn("A room.", reply, "go", True, 0.0, "s")
    folder = write_evaluation_run(tmp_path / "runs/eval", [replace(episode(), turns=(turn, turn))])
    usage = {"requests": 2, "prompt_tokens": 2000, "cached_tokens": 1000, "completion_tokens": 200, "uncounted": 0}
    page = get_page("/messages/eval/episodes/0/1")
    assert "500 cached" in page and "1.50 s" in page and "finish reason stop" in page and "cost" not in page
    assert "hm &lt;script&gt;" in page and EVIL not in page
    (folder / "usage.json").write_text(json.dumps(usage | {"cost": 0.01, "price": [10, 20, 1]}))
    assert "cost 0.0075" in get_page("/messages/eval/episodes/0/1")  # (500 * 10 + 100 * 20 + 500 * 1) / 1e6
    assert "cost 0.0150" in get_page("/episode/eval/episodes/0")
    (folder / "usage.json").write_text(json.dumps(usage | {"price": [10, None]}))
    assert "cost" not in get_page("/messages/eval/episodes/0/1")


@pytest.mark.parametrize("settings", [{}, {"native_tools": False}])
def test_functions_are_sent_as_the_settings_say(tmp_path: Path, get_page: GetPage, settings: dict[str, bool]) -> None:
    """Settings need not come from the command line."""
    env = Agent.parse("function-call").wrap(make(ENV))
    played = play(env, Recording(), EpisodeSpec("count/test/7", split="test"), horizon=2)
    env.close()
    write_evaluation_run(tmp_path / "runs/eval", [played], settings={"env": ENV, "policy": "p", **settings})
    sent = json.loads(get_page("/messages/eval/episodes/0/0.json"))
    assert played.tools
    assert ("tools" in sent) is not bool(settings)


class Looking(Policy):
    """Acts without looking, and records what it got."""

    name = "looking"
    sees_pictures = True

    def __init__(self) -> None:
        self.seen: list[Conversation] = []

    async def reply(self, context: TurnContext) -> Reply:
        self.seen.append(context.conversation)
        return Reply("Action: add")


def test_messages_have_the_pictures_that_were_sent(get_page: GetPage, tmp_path: Path) -> None:
    env, policy = Agent.parse("react+pictures").wrap(make(PICTURED, screenshot=True)), Looking()
    store = ScreenshotStore(tmp_path / "runs" / "a" / "pictures")
    (recorded,) = play_many(env, policy, [EpisodeSpec("count/test/3")], horizon=4, pictures=store)
    write_evaluation_run(tmp_path / "runs" / "a", [recorded])
    shown = json.loads(get_page("/messages/a/episodes/0/3.json"))["messages"]
    assert shown == plain(policy.seen[3])
    urls = [message["content"][1]["image_url"]["url"] for message in shown if isinstance(message["content"], list)]
    page = get_page("/messages/a/episodes/0/3")
    assert re.findall(r'<img class="picture" src="([^"]+)"', page) == urls
    assert len(urls) == 2
    for path in store.folder.glob("*.png"):  # without the files, the text is still shown
        path.unlink()
    assert '<img class="picture"' not in get_page("/messages/a/episodes/0/3")


@pytest.mark.parametrize("agent", ["react", "react+plan:2+window:2", "react+reflect:2+retry:1"])
def test_exported_messages_of_all_turns_are_those_that_the_policy_received(tmp_path: Path, agent: str) -> None:
    env, policy = Agent.parse(agent).wrap(make(ENV)), Recording()
    played = play(env, policy, EpisodeSpec("count/test/7", split="test"), horizon=6)
    env.close()
    write_evaluation_run(tmp_path / "runs/eval", [played])
    index = Index(tmp_path / "runs", tmp_path / "index.sqlite")
    export(index, tmp_path / "out", 1)
    index.close()
    page = (tmp_path / "out/messages/eval/episodes/0.html").read_text(encoding="utf-8")
    assert "messages/eval/episodes/0.html#turn-1" in (tmp_path / "out/episode/eval/episodes/0.html").read_text()
    shown: list[list[tuple[str, str]]] = [[]]
    for number, section in enumerate(re.split(r'<section id="turn-\d+"', page)[1:]):
        repeated = re.search(r"Messages 1 to (\d+) of", section)
        own = re.findall(r'<details class="message (\w+)".*?<pre>(.*?)</pre>', section.split("<h3>")[0], re.DOTALL)
        before = shown[-1][: int(repeated[1]) if repeated else 0]
        shown.append([*before, *((role, unescape(content)) for role, content in own)])
        assert shown[-1] == [(each.role, each.content) for each in policy.seen[number]]
    assert len(shown) - 1 == len(policy.seen) > 5
    assert "Messages 1 to" in page
