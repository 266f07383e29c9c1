"""The eval type `program_html`: checks of page contents at the end of an episode.

The page is the one that the agent stopped at (`last`), or another one, opened in the background and closed again. A
target names a page, a locator that extracts a text from it (empty: the page's HTML; JavaScript, evaluated in the page;
a helper function) and contents that the text must equal or include. JavaScript that finds nothing or throws gives an
empty text; a page that can't be loaded, or a browser that died, is an `EnvFault`.
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
from agentgym_envs.worlds.webarena.evaluation.fields import check_known, object_list, string_list
from agentgym_envs.worlds.webarena.evaluation.locators import PREFIX, Caller, parse_call
from agentgym_envs.worlds.webarena.evaluation.string_match import included, same

if TYPE_CHECKING:
    from agentgym_envs.worlds.webarena.browser.session import Session

T = TypeVar("T")
LAST: Final = "last"
_LAMBDA: Final = "lambda:"
_SCRIPTS: Final = ("document.", "[...document.")
_MATCHES: Final = ("exact_match", "must_include")
_TARGET_TIMEOUT = 60.0  # seconds for one target; WebArena's GitLab takes ten and more for a cold page
_NETWORK_IDLE_TIMEOUT = 3_000  # milliseconds after a page has loaded; some pages never become idle


async def score(targets: Sequence[Mapping[str, Any]], session: Session, caller: Caller) -> float:
    """Return 1.0 if every target has its required contents, else 0.0. Stops at the first target that fails.

    Raises:
        EnvFault: if a page, the shop's API or the browser fails, or takes more than a minute.
    """
    for target in targets:
        try:
            async with asyncio.timeout(_TARGET_TIMEOUT):
                text = await _text(target, session, caller)
        except (Error, TabClosed, TimeoutError) as error:
            reason = first_line(error) or f"timeout after {_TARGET_TIMEOUT:g} s"
            raise EnvFault(
                f"The page {target['url']} (locator {target['locator']!r}) can't be evaluated: {reason}"
            ) from error
        if not _holds(target["required_contents"], html.unescape(text)):
            return 0.0
    return 1.0


def _holds(contents: Mapping[str, Any], text: str) -> bool:
    if "exact_match" in contents:
        return same(contents["exact_match"], text)
    return all(included(phrase, text) for phrase in contents["must_include"])


async def _text(target: Mapping[str, Any], session: Session, caller: Caller) -> str:
    """Return the text that a target's locator extracts from its page."""
    url, locator = target["url"], target["locator"].strip()
    if url == LAST:
        return await _extract(target, session.tab.page, caller)
    if locator.startswith(PREFIX) and _needs_no_page(locator):
        return await caller.call(locator, session.tab.page)
    if url.startswith(PREFIX):
        url = await caller.call(url, session.tab.page)
        if caller.sites.key_of(url) is None:
            return ""  # the agent's final page doesn't lead to a page of the sites
    async with session.background_page() as page:
        await _open(url, page)
        return await _extract(target, page, caller)


def _needs_no_page(locator: str) -> bool:
    return "__page__" not in locator


async def _extract(target: Mapping[str, Any], page: Page, caller: Caller) -> str:
    locator = target["locator"].strip()
    if not locator:
        return await read_stable(page, page.content)
    if locator.startswith(PREFIX):
        return await caller.call(locator, page)
    for action in target.get("prep_actions", ()):
        if not await page.evaluate(_guarded(action, "true", "false")):
            break
    call = f"({locator.removeprefix(_LAMBDA)})()" if locator.startswith(_LAMBDA) else locator
    script = _guarded(f"found = {call}", "found ?? null", "null")
    found = await read_stable(page, lambda: page.evaluate(script))
    return "" if found is None else str(found)


def _guarded(statement: str, good: str, bad: str) -> str:
    """Build JavaScript that runs `statement` and returns `good`, or `bad` if it throws, which is no browser fault."""
    return f"() => {{ let found; try {{ {statement}\n; return {good}; }} catch {{ return {bad}; }} }}"


async def read_stable(page: Page, read: Callable[[], Awaitable[T]]) -> T:
    """Return the result of `read`; if the page is navigating, wait for the next page and read that."""
    try:
        return await read()
    except Error as error:
        if is_closed(error):
            raise
        await page.wait_for_load_state()
        return await read()


async def _open(url: str, page: Page) -> None:
    """Open `url`; wait until it has loaded and, within a time limit, for network idle."""
    response = await page.goto(url, wait_until="load", timeout=_TARGET_TIMEOUT * 1_000)
    if response is not None and response.status >= 500:
        raise EnvFault(f"{url} returned status {response.status}, so the task can't be evaluated.")
    with suppress(PlaywrightTimeout):  # a page may poll forever; it is evaluated as it is then
        await page.wait_for_load_state("networkidle", timeout=_NETWORK_IDLE_TIMEOUT)


def check(evaluation: Mapping[str, Any]) -> dict[str, Any]:
    """Validate and normalize the targets of an `eval`. See `parts.Part`."""
    targets = object_list(evaluation.get("program_html"), "eval.program_html")
    return {"program_html": [_checked(target, f"eval.program_html[{i}]") for i, target in enumerate(targets)]}


def _checked(target: dict[str, Any], field: str) -> dict[str, Any]:
    url, locator = target.get("url", LAST), target.get("locator", "")
    if not isinstance(url, str) or not url.strip() or not isinstance(locator, str):
        raise ValueError(f"`{field}` has the url {url!r} and the locator {locator!r}; both must be strings.")
    for name, text in (("url", url), ("locator", locator)):
        if text.startswith(PREFIX):
            try:
                parse_call(text)
            except ValueError as error:
                raise ValueError(f"`{field}.{name}`: {error}") from error
    if locator.strip() and not locator.strip().startswith((PREFIX, _LAMBDA, *_SCRIPTS)):
        kinds = ", ".join((*_SCRIPTS, _LAMBDA, PREFIX))
        raise ValueError(f"`{field}.locator` is {locator!r}; it must be empty or begin with one of {kinds}.")
    actions = string_list(target["prep_actions"], f"{field}.prep_actions") if target.get("prep_actions") else []
    contents = _contents(target.get("required_contents"), f"{field}.required_contents")
    return {**target, "url": url, "locator": locator, "prep_actions": actions, "required_contents": contents}


def _contents(given: object, field: str) -> dict[str, Any]:
    if not isinstance(given, Mapping):
        raise ValueError(f"`{field}` is {given!r}; it must be an object with {' or '.join(_MATCHES)}.")
    contents: dict[str, Any] = dict(given)
    check_known(contents, _MATCHES, field)
    if "exact_match" in contents:
        contents["exact_match"] = string_list(contents["exact_match"], f"{field}.exact_match")[0]
    if "must_include" in contents:
        contents["must_include"] = string_list(contents["must_include"], f"{field}.must_include")
    return contents


def count(evaluation: Mapping[str, Any]) -> int:
    """Return the number of required contents."""
    contents = [target["required_contents"] for target in evaluation["program_html"]]
    return sum(len(required.get("must_include", ())) + ("exact_match" in required) for required in contents)
