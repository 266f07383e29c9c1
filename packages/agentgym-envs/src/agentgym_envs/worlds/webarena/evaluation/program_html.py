"""What pages say at the end: the one the agent stopped at (`last`), or others, opened beside it and closed again.

A target of `program_html` names a page, a locator that takes a text from it (nothing: the page's HTML; JavaScript,
evaluated in the page; a helper function) and contents that the text must be or include. JavaScript that finds nothing,
or trips over what isn't there, gives an empty text; a page that can't be loaded, or a browser that died, is an
`EnvFault`.
"""

from __future__ import annotations

import asyncio
import html
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, TypeVar

from playwright.async_api import Error, Page
from playwright.async_api import TimeoutError as PlaywrightTimeout

from agentgym_envs.core.text_env import EnvFault
from agentgym_envs.worlds.webarena.browser.playwright_errors import TabClosed, first_line, is_closed
from agentgym_envs.worlds.webarena.evaluation.fields import known, objects, texts
from agentgym_envs.worlds.webarena.evaluation.locators import PREFIX, Caller, parse_call
from agentgym_envs.worlds.webarena.evaluation.string_match import included, same

if TYPE_CHECKING:
    from agentgym_envs.worlds.webarena.browser.session import Session

T = TypeVar("T")
LAST: Final = "last"
_LAMBDA: Final = "lambda:"
_SCRIPTS: Final = ("document.", "[...document.")
_WAYS: Final = ("exact_match", "must_include")
_PATIENCE = 60.0  # seconds for one target: WebArena's GitLab takes ten and more for a cold page
_QUIET = 3_000  # milliseconds that a loaded page gets to be done asking for more; some never are


async def score(targets: Sequence[Mapping[str, Any]], session: Session, caller: Caller) -> float:
    """1.0 when every target has the contents it must have, else 0.0. The rest isn't looked at after one that has not.

    Raises:
        EnvFault: when a page, the shop's API or the browser fails, or takes more than a minute.
    """
    for target in targets:
        try:
            async with asyncio.timeout(_PATIENCE):
                text = await _text(target, session, caller)
        except (Error, TabClosed, TimeoutError) as error:
            why = first_line(error) or f"not done after {_PATIENCE:g} s"
            raise EnvFault(
                f"The page {target['url']} (locator {target['locator']!r}) can't be judged: {why}"
            ) from error
        if not _holds(target["required_contents"], html.unescape(text)):
            return 0.0
    return 1.0


def _holds(contents: Mapping[str, Any], text: str) -> bool:
    if "exact_match" in contents:
        return same(contents["exact_match"], text)
    return all(included(phrase, text) for phrase in contents["must_include"])


async def _text(target: Mapping[str, Any], session: Session, caller: Caller) -> str:
    """The text that a target's locator takes from its page."""
    url, locator = target["url"], target["locator"].strip()
    if url == LAST:
        return await _located(target, session.tab.page, caller)
    if locator.startswith(PREFIX) and _looks_at_no_page(locator):
        return await caller.call(locator, session.tab.page)
    if url.startswith(PREFIX):
        url = await caller.call(url, session.tab.page)
        if caller.sites.key_of(url) is None:
            return ""  # the agent stopped somewhere that leads to no page of the sites
    async with session.page_aside() as page:
        await _open(url, page)
        return await _located(target, page, caller)


def _looks_at_no_page(locator: str) -> bool:
    return "__page__" not in locator


async def _located(target: Mapping[str, Any], page: Page, caller: Caller) -> str:
    locator = target["locator"].strip()
    if not locator:
        return await _steady(page, page.content)
    if locator.startswith(PREFIX):
        return await caller.call(locator, page)
    for action in target.get("prep_actions", ()):
        if not await page.evaluate(_guarded(action, "true", "false")):
            break
    call = f"({locator.removeprefix(_LAMBDA)})()" if locator.startswith(_LAMBDA) else locator
    script = _guarded(f"found = {call}", "found ?? null", "null")
    found = await _steady(page, lambda: page.evaluate(script))
    return "" if found is None else str(found)


def _guarded(statement: str, good: str, bad: str) -> str:
    """JavaScript that runs `statement` and gives `good`, or `bad` where that throws: no fault of the browser's."""
    return f"() => {{ let found; try {{ {statement}\n; return {good}; }} catch {{ return {bad}; }} }}"


async def _steady(page: Page, look: Callable[[], Awaitable[T]]) -> T:
    """What `look` gives, on the next page where this one is just going elsewhere."""
    try:
        return await look()
    except Error as error:
        if is_closed(error):
            raise
        await page.wait_for_load_state()
        return await look()


async def _open(url: str, page: Page) -> None:
    """Go to `url`, until it is loaded and, if it comes to that, quiet."""
    response = await page.goto(url, wait_until="load", timeout=_PATIENCE * 1_000)
    if response is not None and response.status >= 500:
        raise EnvFault(f"{url} answers with status {response.status}, so the task can't be judged.")
    with suppress(PlaywrightTimeout):  # a page may poll for ever; what it shows by then is what a visitor sees
        await page.wait_for_load_state("networkidle", timeout=_QUIET)


def check(judged: Mapping[str, Any]) -> dict[str, Any]:
    """The targets of an `eval`, put in order. See `parts.Part`."""
    targets = objects(judged.get("program_html"), "eval.program_html")
    return {"program_html": [_checked(target, f"eval.program_html[{i}]") for i, target in enumerate(targets)]}


def _checked(target: dict[str, Any], field: str) -> dict[str, Any]:
    url, locator = target.get("url", LAST), target.get("locator", "")
    if not isinstance(url, str) or not url.strip() or not isinstance(locator, str):
        raise ValueError(f"`{field}` has the url {url!r} and the locator {locator!r}; both must be text.")
    for name, text in (("url", url), ("locator", locator)):
        if text.startswith(PREFIX):
            try:
                parse_call(text)
            except ValueError as error:
                raise ValueError(f"`{field}.{name}`: {error}") from error
    if locator.strip() and not locator.strip().startswith((PREFIX, _LAMBDA, *_SCRIPTS)):
        kinds = ", ".join((*_SCRIPTS, _LAMBDA, PREFIX))
        raise ValueError(f"`{field}.locator` is {locator!r}; it must be empty or begin with one of {kinds}.")
    actions = texts(target["prep_actions"], f"{field}.prep_actions") if target.get("prep_actions") else []
    contents = _contents(target.get("required_contents"), f"{field}.required_contents")
    return {**target, "url": url, "locator": locator, "prep_actions": actions, "required_contents": contents}


def _contents(given: object, field: str) -> dict[str, Any]:
    if not isinstance(given, Mapping):
        raise ValueError(f"`{field}` is {given!r}; it must be an object with {' or '.join(_WAYS)}.")
    contents: dict[str, Any] = dict(given)
    known(contents, _WAYS, field)
    if "exact_match" in contents:
        contents["exact_match"] = texts(contents["exact_match"], f"{field}.exact_match")[0]
    if "must_include" in contents:
        contents["must_include"] = texts(contents["must_include"], f"{field}.must_include")
    return contents


def count(judged: Mapping[str, Any]) -> int:
    """How many contents pages must have."""
    contents = [target["required_contents"] for target in judged["program_html"]]
    return sum(len(one.get("must_include", ())) + ("exact_match" in one) for one in contents)
