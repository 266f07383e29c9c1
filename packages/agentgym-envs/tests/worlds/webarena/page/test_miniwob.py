"""Tests on third-party pages: scripted agents that use our snapshots and actions solve tasks of MiniWoB++.

Only the HTML of the PyPI package `miniwob` is used.
"""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest
from agentgym_envs.worlds.webarena.browser.session import Session
from agentgym_envs.worlds.webarena.page.snapshot import Node
from dev_packages import require_packages
from page_agent import PageAgent, Run
from pages_server import Page, PagesServer

require_packages("miniwob")

CONTENT_TYPES = {
    ".html": "text/html",
    ".js": "text/javascript",
    ".css": "text/css",
    ".png": "image/png",
    ".gif": "image/gif",
}
EVERYDAY = ("click-button", "enter-text", "choose-list")


@cache
def files() -> dict[str, Page]:
    """Return MiniWoB's pages and the files that they load, by path."""
    spec = importlib.util.find_spec("miniwob")
    assert spec is not None and spec.origin is not None
    root = Path(spec.origin).parent / "html"
    paths = (path for part in ("miniwob", "core", "common") for path in root.joinpath(part).rglob("*"))
    return {
        f"/{path.relative_to(root).as_posix()}": Page(
            path.read_bytes(), headers={"Content-Type": CONTENT_TYPES[path.suffix]}
        )
        for path in paths
        if path.suffix in CONTENT_TYPES
    }


class MiniWobAgent(PageAgent):
    """An agent on a task of MiniWoB."""

    def start(self, task: str, seed: int) -> str:
        """Start an episode and return the instruction."""
        assert self.run(self.session.goto(f"http://shop.example/miniwob/{task}.html")) is None
        self.js(f"Math.seedrandom('{seed}'), core.EPISODE_MAX_TIME = 1e9, core.startEpisodeReal()")
        self.look()
        words: list[str] = []
        for line in self.text(whole=False).splitlines()[1:]:
            found = re.fullmatch(r"\s*\[\d+\] StaticText (['\"])(.*)\1", line)
            if found is None:
                break
            words.append(found[2])
        return " ".join(words)

    def act(self, action: str) -> None:
        assert self.do(action) is None, self.text()

    def visible(self, role: str, name: str | None = None) -> list[Node]:
        return [node for node in self.page.find(role, name) if node.visible]

    def click(self, role: str, name: str | None = None) -> None:
        self.act(f"click [{self.visible(role, name)[0].id}]")

    def type(self, index: int, text: str, role: str = "textbox") -> None:
        self.act(f"type [{self.visible(role)[index].id}] [{text}] [0]")

    def suggestion(self, start: str, end: str) -> Node:
        """Return the suggestion below a field."""
        below = self.page.nodes[self.visible("textbox")[0].id :]
        return next(n for n in below if n.visible and n.name.startswith(start) and n.name.endswith(end))

    @property
    def reward(self) -> float:
        return self.js("WOB_DONE_GLOBAL ? WOB_REWARD_GLOBAL : 0")


def quoted(instruction: str) -> list[str]:
    return [text.strip() for text in re.findall(r'"([^"]*)"', instruction)]


def click_button(agent: MiniWobAgent, instruction: str) -> None:
    agent.click("button", quoted(instruction)[0])


def click_link(agent: MiniWobAgent, instruction: str) -> None:
    word = quoted(instruction)[0]
    agent.act(f"click [{agent.visible('StaticText', word)[-1].id}]")


def click_checkboxes(agent: MiniWobAgent, instruction: str) -> None:
    for name in re.findall(r"Select (.*) and click", instruction)[0].split(", "):
        if name != "nothing":
            agent.click("checkbox", name)
    agent.click("button", "Submit")


def click_option(agent: MiniWobAgent, instruction: str) -> None:
    agent.click("radio", re.findall(r"Select (.*) and click", instruction)[0])
    agent.click("button", "Submit")


def enter_text(agent: MiniWobAgent, instruction: str) -> None:
    agent.type(0, quoted(instruction)[0])
    agent.click("button", "Submit")


def enter_password(agent: MiniWobAgent, instruction: str) -> None:
    for index in (0, 1):
        agent.type(index, quoted(instruction)[0])
    agent.click("button", "Submit")


def focus_text(agent: MiniWobAgent, instruction: str) -> None:
    agent.click("textbox")


def choose_list(agent: MiniWobAgent, instruction: str) -> None:
    option = re.findall(r"Select (.*) from the list", instruction)[0]
    agent.act(f"select_option [{agent.visible('combobox')[0].id}] [{option}]")
    agent.click("button", "Submit")


def login_user(agent: MiniWobAgent, instruction: str) -> None:
    for index, text in enumerate(quoted(instruction)[:2]):
        agent.type(index, text)
    agent.click("button", "Login")


def click_tab(agent: MiniWobAgent, instruction: str) -> None:
    agent.click("tab", re.findall(r"Tab #\d", instruction)[0])


def click_dialog(agent: MiniWobAgent, instruction: str) -> None:
    agent.click("button", "Close")


def click_test(agent: MiniWobAgent, instruction: str) -> None:
    agent.click("button", re.findall(r"button (\w+)", instruction)[0])


def search_engine(agent: MiniWobAgent, instruction: str) -> None:
    agent.type(0, quoted(instruction)[0])
    agent.click("button", "Search")
    rank = int(re.findall(r"(\d+)(?:st|nd|rd|th)", instruction)[0]) - 1
    if rank >= 3:
        agent.click("link", str(rank // 3 + 1))
    results = [node for node in agent.page.find("link") if node.name not in ("<", ">", "1", "2", "3")]
    agent.act(f"click [{results[rank % 3].id}]")


def use_autocomplete(agent: MiniWobAgent, instruction: str) -> None:
    start, *end = quoted(instruction)
    agent.type(0, start)
    agent.act(f"click [{agent.suggestion(start, ''.join(end)).id}]")
    agent.click("button", "Submit")


def click_menu(agent: MiniWobAgent, instruction: str) -> None:
    *menus, item = instruction.removeprefix("Select ").split(">")
    for menu in menus:
        agent.act(f"hover [{agent.visible('menuitem', menu)[0].id}]")
    agent.click("menuitem", item)


def button_delay(agent: MiniWobAgent, instruction: str) -> None:
    agent.click("button", "ONE")
    agent.act(f"wait [{re.findall('wait (.*) seconds', instruction)[0]}]")
    agent.click("button", "TWO")


def highlight_text(agent: MiniWobAgent, instruction: str) -> None:
    rank = int(re.findall(r"(\d)\w\w paragraph", instruction)[0]) - 1
    texts = [node for node in agent.visible("StaticText") if len(node.name.split()) >= 4]
    agent.act(f"select_text [{texts[-3:][rank].id}]")
    agent.click("button", "Submit")


def drag_box(agent: MiniWobAgent, instruction: str) -> None:
    small, large = (agent.visible("StaticText", name)[0].id for name in "sL")
    left, top, *_ = agent.page.nodes[large - 1].box or (0, 0)
    agent.act(f"drag [{small}] [{int(left) + 20},{int(top) + 20}]")
    agent.click("button", "Submit")


def navigate_tree(agent: MiniWobAgent, instruction: str) -> None:
    name = quoted(instruction)[0]
    for _ in range(20):
        matches = agent.visible("StaticText", name)
        if matches:
            agent.act(f"click [{matches[-1].id}]")
            return
        folders = [node for node in agent.visible("generic") if node.property("clickable")]
        agent.act(f"click [{folders[-1].id}]")
    raise AssertionError(agent.text())


def enter_date(agent: MiniWobAgent, instruction: str) -> None:
    agent.type(0, re.findall(r"\d+/\d+/\d+", instruction)[0], role="Date")
    agent.click("button", "Submit")


SOLVERS: dict[str, Callable[[MiniWobAgent, str], None]] = {
    "click-button": click_button,
    "click-link": click_link,
    "click-checkboxes": click_checkboxes,
    "click-option": click_option,
    "enter-text": enter_text,
    "enter-password": enter_password,
    "focus-text": focus_text,
    "choose-list": choose_list,
    "login-user": login_user,
    "click-tab": click_tab,
    "click-dialog": click_dialog,
    "click-test-2": click_test,
    "search-engine": search_engine,
    "use-autocomplete": use_autocomplete,
    "click-menu": click_menu,
    "button-delay": button_delay,
    "highlight-text-2": highlight_text,
    "drag-box": drag_box,
    "navigate-tree": navigate_tree,
    "enter-date": enter_date,
}


def play(server: PagesServer, session: Session, run: Run, task: str, seed: int) -> float:
    server.pages.update(files())
    agent = MiniWobAgent(server, session, run)
    instruction = agent.start(task, seed)
    assert agent.reward == 0
    SOLVERS[task](agent, instruction)
    return agent.reward


@pytest.mark.parametrize("task", EVERYDAY)
def test_scripted_agent_solves_the_task(server: PagesServer, session: Session, run: Run, task: str) -> None:
    assert play(server, session, run, task, 1) > 0


@pytest.mark.long
@pytest.mark.parametrize("seed", [2, 3])
@pytest.mark.parametrize("task", SOLVERS)
def test_scripted_agents_solve_all_tasks(server: PagesServer, session: Session, run: Run, task: str, seed: int) -> None:
    assert play(server, session, run, task, seed) > 0
