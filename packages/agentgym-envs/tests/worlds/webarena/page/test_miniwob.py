"""Pages that nobody here wrote: scripted players, who read our observations and answer in our grammar, reach the reward
of MiniWoB++'s tasks (the PyPI package `miniwob`, of which only the HTML is used).
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
from dev_packages import need
from page_agent import PageAgent, Run
from pages_server import Page, PagesServer

need("miniwob")

KINDS = {".html": "text/html", ".js": "text/javascript", ".css": "text/css", ".png": "image/png", ".gif": "image/gif"}
EVERYDAY = ("click-button", "enter-text", "choose-list")


@cache
def files() -> dict[str, Page]:
    """MiniWoB's pages and what they need, by path."""
    spec = importlib.util.find_spec("miniwob")
    assert spec is not None and spec.origin is not None
    root = Path(spec.origin).parent / "html"
    found = (path for part in ("miniwob", "core", "common") for path in root.joinpath(part).rglob("*"))
    return {
        f"/{path.relative_to(root).as_posix()}": Page(path.read_bytes(), headers={"Content-Type": KINDS[path.suffix]})
        for path in found
        if path.suffix in KINDS
    }


class Player(PageAgent):
    """Plays one task of MiniWoB's."""

    def start(self, task: str, seed: int) -> str:
        """Begin an episode; returns what is asked for."""
        assert self.run(self.session.goto(f"http://shop.example/miniwob/{task}.html")) is None
        self.js(f"Math.seedrandom('{seed}'), core.EPISODE_MAX_TIME = 1e9, core.startEpisodeReal()")
        self.look()
        said: list[str] = []
        for line in self.text(whole=False).splitlines()[1:]:
            found = re.fullmatch(r"\s*\[\d+\] StaticText (['\"])(.*)\1", line)
            if found is None:
                break
            said.append(found[2])
        return " ".join(said)

    def say(self, action: str) -> None:
        assert self.do(action) is None, self.text()

    def visible(self, role: str, name: str | None = None) -> list[Node]:
        return [node for node in self.page.find(role, name) if node.visible]

    def click(self, role: str, name: str | None = None) -> None:
        self.say(f"click [{self.visible(role, name)[0].id}]")

    def type(self, number: int, text: str, role: str = "textbox") -> None:
        self.say(f"type [{self.visible(role)[number].id}] [{text}] [0]")

    def suggestion(self, start: str, end: str) -> Node:
        """What is offered below a field, which takes a moment to appear."""
        for _ in range(10):
            below = self.page.nodes[self.visible("textbox")[0].id :]
            for node in below:
                if node.visible and node.name.startswith(start) and node.name.endswith(end):
                    return node
            self.look()
        raise AssertionError(self.text())

    @property
    def reward(self) -> float:
        return self.js("WOB_DONE_GLOBAL ? WOB_REWARD_GLOBAL : 0")


def quoted(asked: str) -> list[str]:
    return [text.strip() for text in re.findall(r'"([^"]*)"', asked)]


def click_button(player: Player, asked: str) -> None:
    player.click("button", quoted(asked)[0])


def click_link(player: Player, asked: str) -> None:
    word = quoted(asked)[0]
    player.say(f"click [{player.visible('StaticText', word)[-1].id}]")


def click_checkboxes(player: Player, asked: str) -> None:
    for name in re.findall(r"Select (.*) and click", asked)[0].split(", "):
        if name != "nothing":
            player.click("checkbox", name)
    player.click("button", "Submit")


def click_option(player: Player, asked: str) -> None:
    player.click("radio", re.findall(r"Select (.*) and click", asked)[0])
    player.click("button", "Submit")


def enter_text(player: Player, asked: str) -> None:
    player.type(0, quoted(asked)[0])
    player.click("button", "Submit")


def enter_password(player: Player, asked: str) -> None:
    for number in (0, 1):
        player.type(number, quoted(asked)[0])
    player.click("button", "Submit")


def focus_text(player: Player, asked: str) -> None:
    player.click("textbox")


def choose_list(player: Player, asked: str) -> None:
    option = re.findall(r"Select (.*) from the list", asked)[0]
    player.say(f"select_option [{player.visible('combobox')[0].id}] [{option}]")
    player.click("button", "Submit")


def login_user(player: Player, asked: str) -> None:
    for number, text in enumerate(quoted(asked)[:2]):
        player.type(number, text)
    player.click("button", "Login")


def click_tab(player: Player, asked: str) -> None:
    player.click("tab", re.findall(r"Tab #\d", asked)[0])


def click_dialog(player: Player, asked: str) -> None:
    player.click("button", "Close")


def click_test(player: Player, asked: str) -> None:
    player.click("button", re.findall(r"button (\w+)", asked)[0])


def search_engine(player: Player, asked: str) -> None:
    player.type(0, quoted(asked)[0])
    player.click("button", "Search")
    wanted = int(re.findall(r"(\d+)(?:st|nd|rd|th)", asked)[0]) - 1
    if wanted >= 3:
        player.click("link", str(wanted // 3 + 1))
    results = [node for node in player.page.find("link") if node.name not in ("<", ">", "1", "2", "3")]
    player.say(f"click [{results[wanted % 3].id}]")


def use_autocomplete(player: Player, asked: str) -> None:
    start, *end = quoted(asked)
    player.type(0, start)
    player.say(f"click [{player.suggestion(start, ''.join(end)).id}]")
    player.click("button", "Submit")


def navigate_tree(player: Player, asked: str) -> None:
    name = quoted(asked)[0]
    for _ in range(20):
        here = player.visible("StaticText", name)
        if here:
            player.say(f"click [{here[-1].id}]")
            return
        folders = [node for node in player.visible("generic") if node.property("clickable")]
        player.say(f"click [{folders[-1].id}]")
    raise AssertionError(player.text())


def enter_date(player: Player, asked: str) -> None:
    player.type(0, re.findall(r"\d+/\d+/\d+", asked)[0], role="Date")
    player.click("button", "Submit")


PLAYERS: dict[str, Callable[[Player, str], None]] = {
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
    "navigate-tree": navigate_tree,
    "enter-date": enter_date,
}


def play(server: PagesServer, session: Session, run: Run, task: str, seed: int) -> float:
    server.pages.update(files())
    player = Player(server, session, run)
    asked = player.start(task, seed)
    assert player.reward == 0
    PLAYERS[task](player, asked)
    return player.reward


@pytest.mark.parametrize("task", EVERYDAY)
def test_a_player_reaches_the_reward(server: PagesServer, session: Session, run: Run, task: str) -> None:
    assert play(server, session, run, task, 1) > 0


@pytest.mark.long
@pytest.mark.parametrize("seed", [2, 3])
@pytest.mark.parametrize("task", PLAYERS)
def test_players_reach_the_reward(server: PagesServer, session: Session, run: Run, task: str, seed: int) -> None:
    assert play(server, session, run, task, seed) > 0
