"""Tests of prompts: files, functions and entry points that write the system message of an agent."""

from __future__ import annotations

import asyncio
import itertools
from contextlib import closing
from importlib.metadata import EntryPoint, EntryPoints
from pathlib import Path
from typing import Any

import pytest
from agentgym_envs import EnvPool, EpisodeSpec, Message, Policy, Reply, TurnContext, WorldSpec, make, play, play_pool
from agentgym_envs.agents import prompts
from agentgym_envs.agents.agent import Agent
from agentgym_envs.agents.formats import REPLY_FORMATS, ReAct
from agentgym_envs.agents.prompts import GROUP, find_prompt
from agentgym_envs.cli.listings import prompts as listed

CALLS = itertools.count()
TEMPLATE = "Be brief.\n\n{instructions}"
NOT_A_PROMPT = 7


class Shouting(ReAct):
    """A reply format with a system message of its own."""

    def full_instructions(self, instructions: str) -> str:
        return instructions.upper()


def shouted(instructions: str, format_instructions: str) -> str:
    return f"{instructions.upper()}|{format_instructions}"


def numbered(instructions: str, format_instructions: str) -> str:
    return f"{next(CALLS)}"


def only_one(instructions: str) -> str:
    return instructions


def nothing(instructions: str, format_instructions: str) -> Any:
    return None


def blank(instructions: str, format_instructions: str) -> str:
    return " \n"


def broken(instructions: str, format_instructions: str) -> str:
    raise KeyError("goal")


def test_templates_have_placeholders_and_other_braces_are_text(tmp_path: Path) -> None:
    path = tmp_path / "prompt.md"
    path.write_text('\n{instructions} {"a": {x}} {format_instructions}{instructions}\n\n', encoding="utf-8")
    prompt = find_prompt(str(path))
    assert prompt("{format_instructions} {x}", "F") == '{format_instructions} {x} {"a": {x}} F{format_instructions} {x}'
    path.write_text("Act.", encoding="utf-8")
    assert prompt("", "F") != "Act." == find_prompt(str(path))("I", "F")


def test_functions_are_called_once_for_the_same_texts() -> None:
    assert find_prompt(f"{__name__}:shouted")("go", "one line") == "GO|one line"
    prompt = find_prompt(f"{__name__}:numbered")
    assert prompt("a", "b") == prompt("a", "b") != prompt("b", "a")


def test_installed_packages_register_functions_and_templates(monkeypatch: pytest.MonkeyPatch) -> None:
    points = EntryPoints(
        [EntryPoint("loud", f"{__name__}:shouted", GROUP), EntryPoint("brief", f"{__name__}:TEMPLATE", GROUP)]
    )
    monkeypatch.setattr(prompts, "entry_points", lambda group: points.select(group=group))
    monkeypatch.setattr("agentgym_envs.cli.listings.entry_points", lambda group: points.select(group=group))
    assert find_prompt("loud")("go", "f") == "GO|f"
    assert find_prompt("brief")("go", "f") == "Be brief.\n\ngo"
    assert {"loud", "brief", "FILE", "MODULE:NAME"} == {entry.name for entry in listed()}
    with pytest.raises(ValueError, match=r"no prompt 'lodu'. Did you mean loud\? Installed are: brief, loud. .*u.md"):
        find_prompt("lodu")


@pytest.mark.parametrize(
    ("name", "complaint"),
    [
        ("", "no prompt ''. No package has installed any.* such as prompt.md, or a function MODULE:NAME"),
        ("no/such.md", "no prompt file no/such.md in /.*Give the path of a text file, a function MODULE:NAME"),
        ("/", "file / can't be read"),
        ("no_such_module:f", "prompt no_such_module:f can't be imported: .*Install its package, or run the command"),
        (f"{__name__}:shoutd", "has no 'shoutd'. Did you mean shouted"),
        (f"{__name__}:NOT_A_PROMPT", "is of type int: it must be a function"),
        (f"{__name__}:Shouting", "is of type ABCMeta: it must be a function"),
        (f"{__name__}:only_one", r"must take two arguments.*def only_one\(instructions, format_instructions\)"),
    ],
)
def test_what_is_no_prompt_is_explained(name: str, complaint: str) -> None:
    with pytest.raises(ValueError, match=f"(?s){complaint}"):
        find_prompt(name)


def test_unusable_files_are_explained(tmp_path: Path) -> None:
    path = tmp_path / "prompt.md"
    for content, complaint in (
        (b" \n", "has no text.* --no-instructions"),
        (b"\xff\xfe", "isn't UTF-8 text"),
        (b"{instuctions}", "has {instuctions}, which is no placeholder. Did you mean {instructions}"),
        (b"{format_instruction}", "Did you mean {format_instructions}"),
    ):
        path.write_bytes(content)
        with pytest.raises(ValueError, match=complaint):
            find_prompt(str(path))


@pytest.mark.parametrize(
    ("name", "complaint"),
    [
        ("nothing", "nothing returned no text, but None: return the system message"),
        ("blank", "returned an empty text"),
        ("broken", r"broken failed: KeyError: 'goal' \(test_prompts.py, line \d+\)"),
    ],
)
def test_functions_that_return_no_text_are_explained(name: str, complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        find_prompt(f"{__name__}:{name}")("I", "F")


@pytest.mark.parametrize("reply_format", REPLY_FORMATS)
def test_a_template_of_both_texts_is_the_agent_s_own_message(reply_format: str, tmp_path: Path) -> None:
    path = tmp_path / "same.txt"
    path.write_text("{instructions}\n\n{format_instructions}", encoding="utf-8")
    with closing(make("agentgym/TextCraft-v0")) as env:
        own = Agent.parse(reply_format).wrap(env)
        assert Agent.parse(reply_format).wrap(env, instructions=find_prompt(str(path))).instructions == own.instructions


def test_a_prompt_replaces_what_an_agent_writes() -> None:
    with closing(make("agentgym/TextCraft-v0")) as env:
        assert Shouting(env).instructions.isupper()
        assert Shouting(env, instructions="").instructions == ""
        assert Shouting(env, instructions=lambda own, form: f"{form}!").instructions == f"{ReAct.format_instructions}!"


class Waiting(Policy):
    """Waits in every turn."""

    name = "waiting"

    async def reply(self, context: TurnContext) -> Reply:
        assert context.conversation[0] == Message("system", "Go.")
        return Reply("Action: inventory")


async def _played_in_a_pool(env: Any, policy: Policy, spec: EpisodeSpec) -> list[Any]:
    with EnvPool(WorldSpec("agentgym/TextCraft-v0"), 1) as pool:
        return [episode async for episode in play_pool(pool, policy, [spec], env=env)]


def test_the_policy_gets_the_prompt_and_episodes_record_it() -> None:
    spec, policy = EpisodeSpec("textcraft/test/oak_button"), Waiting()
    with closing(Agent.parse("react").wrap(make("agentgym/TextCraft-v0"), instructions=lambda *_: "Go.")) as env:
        (pooled,) = asyncio.run(_played_in_a_pool(env, policy, spec))
        alone = play(env, policy, spec, horizon=2)
    assert pooled.instructions == alone.instructions == "Go."
