"""Plays plans of the embedded sites over HTTP, without a browser: follows links, fills in forms and sends them.

Only what plans need of JavaScript is imitated: the box that ticks all, and the stock that is edited in its cell.
"""

from __future__ import annotations

import functools
import re
import secrets
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.parse import urlencode, urljoin, urlsplit, urlunsplit
from xml.etree.ElementTree import Element, TreeBuilder

from agentgym_envs.worlds.webarena.evaluation import database
from agentgym_envs.worlds.webarena.sites import store
from agentgym_envs.worlds.webarena.sites.directory import EPISODE_HEADER, PLACES, SESSION_COOKIE, SKIN_HEADER
from agentgym_envs.worlds.webarena.sites.server import Web
from starlette.testclient import TestClient

_VOID = {"br", "hr", "img", "input", "link", "meta", "path", "rect", "circle", "stop", "ellipse", "line", "use"}
_CONTROLS = {"input", "select", "textarea", "button"}
_INPUTS = {"checkbox": "checkbox", "radio": "radio", "search": "searchbox", "submit": "button", "hidden": ""}


def tasks_by_template() -> dict[str, list[dict[str, Any]]]:
    """Return the tasks that a database decides, by template."""
    found: dict[str, list[dict[str, Any]]] = {}
    for split in store.tasks().values():
        for task in split:
            if "database" in task["eval"]["eval_types"]:
                found.setdefault(task["template"], []).append(task)
    return found


class _Parser(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.builder = TreeBuilder()
        self.open: list[str] = []
        self.handle_starttag("root", [])

    def handle_starttag(self, tag: str, attrs: Sequence[tuple[str, str | None]]) -> None:
        self.builder.start(tag, {key: value or "" for key, value in attrs})
        self.open.append(tag)
        if tag in _VOID:
            self.handle_endtag(tag)

    def handle_startendtag(self, tag: str, attrs: Sequence[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in _VOID:
            self.handle_endtag(tag)

    def handle_endtag(self, tag: str) -> None:
        while tag in self.open:
            self.builder.end(closed := self.open.pop())
            if closed == tag:
                return

    def handle_data(self, data: str) -> None:
        self.builder.data(data)


@functools.lru_cache(256)
def _parse(text: str) -> Element:
    parser = _Parser()
    parser.feed(text)
    parser.handle_endtag("root")
    return parser.builder.close()


@dataclass(frozen=True)
class Post:
    """A request that may write."""

    url: str
    fields: tuple[tuple[str, str], ...] = ()


@dataclass
class Page:
    """A page with what was typed and ticked on it."""

    url: str
    root: Element
    parents: dict[Element, Element] = field(default_factory=dict)
    values: dict[Element, str] = field(default_factory=dict)
    ticked: set[Element] = field(default_factory=set)

    @classmethod
    def of(cls, url: str, text: str) -> Page:
        page = cls(url, _parse(text))
        page.parents = {child: parent for parent in page.root.iter() for child in parent}
        for element in page.root.iter():
            if element.tag == "textarea":
                page.values[element] = "".join(element.itertext()).removeprefix("\n")
            elif element.tag == "select":
                options = list(element.iter("option"))
                chosen = next((option for option in options if "selected" in option.attrib), options[0])
                page.values[element] = _value(chosen)
            elif element.tag == "input":
                page.values[element] = element.get("value", "")
                if "checked" in element.attrib:
                    page.ticked.add(element)
        return page

    def above(self, element: Element, tag: str) -> Element | None:
        """Return the nearest ancestor with a tag."""
        while (element := self.parents.get(element, self.root)) is not self.root:
            if element.tag == tag:
                return element
        return None

    def find(self, role: str, name: str) -> list[Element]:
        return [element for element in self.root.iter() if _role(element) == role and self.name(element) == name]

    def name(self, element: Element) -> str:
        """Return the accessible name."""
        if "aria-label" in element.attrib:
            return element.attrib["aria-label"]
        if element.tag in _CONTROLS - {"button"}:
            label = self.above(element, "label")
            return _text(label) if label is not None else element.get("placeholder", "")
        return _text(element) or element.get("title", "")

    def fields(self, form: Element, submitter: Element | None) -> tuple[tuple[str, str], ...]:
        """Return what the form sends."""
        sent: list[tuple[str, str]] = []
        for element in form.iter():
            name = element.get("name", "")
            if not name or "disabled" in element.attrib:
                continue
            if element.tag == "button":
                if element is submitter:
                    sent.append((name, element.get("value", "")))
            elif element.get("type") in ("checkbox", "radio"):
                if element in self.ticked:
                    sent.append((name, element.get("value", "on")))
            elif element in self.values:
                sent.append((name, re.sub(r"\r?\n", "\r\n", self.values[element])))
        return tuple(sent)


def _value(option: Element) -> str:
    return option.get("value", _text(option))


def _text(element: Element) -> str:
    return " ".join(" ".join(_pieces(element)).split())


def _pieces(element: Element) -> Iterator[str]:
    if element.get("aria-hidden") == "true" or element.tag in _CONTROLS - {"button"}:
        return
    yield element.get("aria-label", element.text or "") if element.tag == "svg" else element.text or ""
    for child in element:
        yield from _pieces(child)
        yield child.tail or ""


def _role(element: Element) -> str:
    match element.tag:
        case "a" if "href" in element.attrib:
            return "link"
        case "button":
            return "button"
        case "textarea":
            return "textbox"
        case "select":
            return "combobox"
        case "input":
            return _INPUTS.get(element.get("type", "text"), "textbox")
        case _:
            return ""


class Player:
    """A visitor in an episode of its own, signed in to the sites of a task unless `signed_in=False`."""

    def __init__(
        self, web: Web, root: Path, task: Mapping[str, Any], *, signed_in: bool = True, skin: str = "plain"
    ) -> None:
        self.task = task
        self._folder = root / secrets.token_hex(16)
        self._folder.mkdir()
        self.files: dict[str, Path] = {}
        self.clients: dict[str, TestClient] = {}
        for key, place in PLACES.items():
            if place.database:
                self.files[key] = self._folder / f"{place.database}.sqlite"
                if not self.files[key].exists():
                    shutil.copyfile(store.database(place.database), self.files[key])
            account = place.account if signed_in and key in task["sites"] else None
            cookies = {SESSION_COOKIE: account.session} if account else None
            headers = {EPISODE_HEADER: self._folder.name, SKIN_HEADER: skin}
            self.clients[place.host] = TestClient(web, base_url=place.url, headers=headers, cookies=cookies)
        self.posts: list[Post] = []
        """The writing requests so far."""
        self.pages: list[Page] = []
        """The pages of the active tab so far."""
        self.start(task)

    def start(self, task: Mapping[str, Any]) -> None:
        """Open the pages that a task starts with, each in a tab."""
        self._tabs: list[list[Page]] = []
        for url in task["start_url"].split(" |AND| "):
            self.pages = []
            self._tabs.append(self.pages)
            self.get(re.sub(r"__(\w+)__", lambda site: PLACES[site[1].lower()].url, url))
        self.pages = self._tabs[0]

    def close(self) -> None:
        shutil.rmtree(self._folder)

    def scores(self) -> bool:
        """Whether the databases are as the task wants them."""
        return database.score(self.task["eval"]["database"], self.files) == 1

    @property
    def page(self) -> Page:
        return self.pages[-1]

    def get(self, url: str) -> None:
        answer = self.clients[urlsplit(url).netloc].get(url)
        assert answer.status_code == 200, f"{url}: {answer.status_code}"
        self.pages.append(Page.of(str(answer.url), answer.text))

    def post(self, post: Post) -> int:
        """Send a request and return the status of the page that answers."""
        self.posts.append(post)
        body = urlencode(post.fields)
        headers = {"content-type": "application/x-www-form-urlencoded"}
        answer = self.clients[urlsplit(post.url).netloc].post(post.url, content=body, headers=headers)
        if answer.headers["content-type"].startswith("text/html"):
            self.pages.append(Page.of(str(answer.url), answer.text))
        return answer.status_code

    def play(self, plan: Iterable[Mapping[str, Any]]) -> None:
        """Take the steps of a plan."""
        for step in plan:
            match step["do"]:
                case "goto":
                    self.get(step["url"])
                case "tab":
                    self.pages = self._tabs[step["index"]]
                case "back":
                    self.pages.pop()
                case "stop":
                    return
                case _:
                    self._act(step)

    def _act(self, step: Mapping[str, Any]) -> None:
        page = self.page
        name: str = step["name"]
        if name.startswith(("Edit stock of ", "Stock of ")):
            self._stock(page, name, step.get("text"))
            return
        found = page.find(step["role"], name)
        assert len(found) > step["nth"], f"{step} is not on {page.url}"
        element = found[step["nth"]]
        match step["do"], step["role"]:
            case "click", "link":
                self.get(urljoin(page.url, element.attrib["href"]).partition("#")[0])
            case "click", "button":
                form = page.above(element, "form")
                if form is not None and element.get("type") != "button":
                    self._send(form, element)
            case "click", "checkbox":
                self._tick(page, element)
            case "click", "radio":
                same = {other for other in page.ticked if other.get("name") == element.get("name")}
                page.ticked -= same
                page.ticked.add(element)
            case "type", _:
                page.values[element] = step["text"]
                form = page.above(element, "form")
                if step["enter"] and form is not None:
                    self._send(form, next((b for b in form.iter("button") if b.get("type") != "button"), None))
            case "select", _:
                options = {_text(option): _value(option) for option in element.iter("option")}
                page.values[element] = options[step["option"]]
            case unknown:
                raise ValueError(f"Steps of the kind {unknown} can't be played.")

    def _tick(self, page: Page, box: Element) -> None:
        boxes = {box}
        if box.get("class") == "all":
            form = page.above(box, "form")
            assert form is not None
            boxes |= {other for other in form.iter("input") if other.get("name") == "selected"}
        page.ticked = page.ticked - boxes if box in page.ticked else page.ticked | boxes

    def _stock(self, page: Page, name: str, text: str | None) -> None:
        """Edit the stock in a cell of the list of products."""
        product = name.removeprefix("Edit stock of ").removeprefix("Stock of ")
        cell = next(cell for cell in page.root.iter("span") if product.startswith(cell.get("data-of", "?")))
        if text is not None:
            self.post(Post(urljoin(page.url, f"/products/{cell.attrib['data-id']}/stock"), (("stock", text),)))

    def _send(self, form: Element, submitter: Element | None) -> None:
        page = self.page
        url, fields = urljoin(page.url, form.get("action") or page.url), page.fields(form, submitter)
        if form.get("method", "get").lower() == "post":
            self.post(Post(url, fields))
            return
        parts = urlsplit(url)
        self.get(urlunsplit((*parts[:3], urlencode(fields), "")))
