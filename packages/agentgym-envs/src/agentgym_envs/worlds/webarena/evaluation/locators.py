"""The helper functions that WebArena's tasks call, such as `func:shopping_get_sku_latest_review_author('B00J8RZL7I')`.

A call is parsed, not executed: a name from a table, with string literals or the placeholder `__page__` as arguments.
`__last_url__` stands for the URL of the final page. Functions for the shop use Magento's API, the others the page.
"""

from __future__ import annotations

import ast
import difflib
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import quote, urlsplit

import httpx
from playwright.async_api import Page

from agentgym_envs.core.text_env import EnvFault
from agentgym_envs.worlds.webarena.browser.login import Accounts
from agentgym_envs.worlds.webarena.browser.site_urls import Sites

PREFIX: Final = "func:"
_PAGE, _LAST_URL = "__page__", "__last_url__"
_API_TIMEOUT = 20.0  # seconds; the shop's API is slow when cold


@dataclass(frozen=True, slots=True)
class Call:
    """A call of a helper function."""

    name: str
    arguments: tuple[str, ...]
    """Without `__page__`, which is passed implicitly to the functions that need a page."""


def parse_call(text: str) -> Call:
    """Parse the call in a URL or locator that begins with `func:`.

    Raises:
        ValueError: if it isn't a valid call of a known function.
    """
    code = text.removeprefix(PREFIX).strip()
    try:
        tree = ast.parse(code, mode="eval").body
    except (SyntaxError, ValueError) as error:
        raise ValueError(f"{text!r} is not a function call: {error}.") from error
    if not isinstance(tree, ast.Call) or not isinstance(tree.func, ast.Name) or tree.keywords:
        raise ValueError(f"{text!r} is not a plain call of the form func:NAME('text').")
    function = FUNCTIONS.get(tree.func.id)
    if function is None:
        near = difflib.get_close_matches(tree.func.id, FUNCTIONS, n=1)
        hint = f"Did you mean {near[0]}? " if near else ""
        raise ValueError(f"{text!r} calls an unknown function. {hint}Known functions: {', '.join(FUNCTIONS)}.")
    arguments = [_argument(node, text) for node in tree.args]
    expected = ([_PAGE] if function.of_page else []) + [""] * function.texts
    if len(arguments) != len(expected) or (function.of_page and arguments[0] != _PAGE):
        form = ", ".join(name or "'text'" for name in expected)
        raise ValueError(f"{text!r} has the wrong arguments; expected {tree.func.id}({form}).")
    return Call(tree.func.id, tuple(arguments[1:] if function.of_page else arguments))


def _argument(node: ast.expr, text: str) -> str:
    if isinstance(node, ast.Name) and node.id == _PAGE:
        return _PAGE
    if isinstance(node, ast.Constant) and isinstance(node.value, str | int | float):
        return str(node.value)
    raise ValueError(f"{text!r} has an argument {ast.unparse(node)}; only literals and {_PAGE} are allowed.")


@dataclass(frozen=True, slots=True)
class Caller:
    """Evaluates helper functions for one episode."""

    sites: Sites
    accounts: Accounts
    last_url: str
    """The URL at which the agent stopped."""

    async def call(self, text: str, page: Page) -> str:
        """Evaluate the call `text` on `page`.

        Raises:
            ValueError: see `parse_call`.
            EnvFault: if the shop's API or the browser fails.
        """
        call = parse_call(text)
        arguments = [argument.replace(_LAST_URL, self.last_url) for argument in call.arguments]
        return await FUNCTIONS[call.name].run(self, page, *arguments)

    async def query_shop(self, path: str, query: Mapping[str, str] | None = None) -> Any:
        """Query Magento's API as administrator.

        Raises:
            EnvFault: if the request fails.
        """
        shop, account = self.sites.url("shopping", "This task's evaluation"), self.accounts.shopping_admin
        try:
            async with httpx.AsyncClient(timeout=_API_TIMEOUT, trust_env=False) as client:
                login = {"username": account.username, "password": account.password}
                token = await client.post(f"{shop}/rest/default/V1/integration/admin/token", json=login)
                bearer = {"Authorization": f"Bearer {token.raise_for_status().json()}"}
                response = await client.get(f"{shop}/rest/V1/{path}", params=query, headers=bearer)
                return response.raise_for_status().json()
        except (httpx.HTTPError, ValueError) as error:
            raise EnvFault(
                f"The request to the shop's API ({shop}/rest/V1/{path}) as {account.username} failed: {error!r}."
            ) from error


async def _latest_order_url(caller: Caller, page: Page) -> str:
    order = "searchCriteria[sortOrders][0]"
    query = {f"{order}[field]": "created_at", f"{order}[direction]": "DESC", "searchCriteria[pageSize]": "1"}
    orders = await caller.query_shop("orders", query)
    try:
        number = int(orders["items"][0]["increment_id"])
    except (LookupError, TypeError, ValueError) as error:
        raise EnvFault(f"The shop's API returned no latest order: {error!r}.") from error
    return f"{caller.sites.url('shopping')}/sales/order/view/order_id/{number}/"


def _latest_review(pick: Callable[[dict[str, Any]], object]) -> Callable[..., Awaitable[str]]:
    async def run(caller: Caller, page: Page, sku: str) -> str:
        reviews = await caller.query_shop(f"products/{quote(sku, safe='')}/reviews")
        try:
            return str(pick(reviews[-1])) if reviews else ""
        except (LookupError, TypeError) as error:
            raise EnvFault(f"The shop's API returned the reviews of {sku} in an unknown format: {error!r}.") from error

    return run


async def _post_url(caller: Caller, page: Page, url: str) -> str:
    """Return the URL of the post to which `url`, such as that of a comment, belongs; `url` itself if there is none."""
    parts = urlsplit(url)
    match parts.path.split("/"):
        case ["", "f", forum, post, *_]:
            return f"{parts.scheme}://{parts.netloc}/f/{forum}/{post}/"
        case _:
            return url


_ROLE = """name => {
    for (const account of document.querySelectorAll("td[data-label='Account'] span.gl-avatar-labeled-sublabel")) {
        if (account.innerText.trim() === "@" + name) {
            return account.closest("tr")?.querySelector("td.col-max-role span")?.innerText ?? "";
        }
    }
    return "";
}"""
_TEXT = """selector => {
    try {
        return document.querySelector(selector)?.textContent ?? "";
    } catch {
        return "";
    }
}"""


async def _member_role(caller: Caller, page: Page, name: str) -> str:
    return str(await page.evaluate(_ROLE, name))


async def _query_text(caller: Caller, page: Page, selector: str) -> str:
    return str(await page.evaluate(_TEXT, selector))


async def _query_text_lowercase(caller: Caller, page: Page, selector: str) -> str:
    return (await _query_text(caller, page, selector)).lower()


@dataclass(frozen=True, slots=True)
class _Function:
    run: Callable[..., Awaitable[str]]
    """Takes the caller, the page, and the string arguments."""
    texts: int
    """Number of string arguments."""
    of_page: bool = False
    """Whether its first argument is `__page__`."""


FUNCTIONS: Final[Mapping[str, _Function]] = {
    "shopping_get_latest_order_url": _Function(_latest_order_url, 0),
    "shopping_get_sku_latest_review_author": _Function(_latest_review(lambda review: review["nickname"]), 1),
    "shopping_get_sku_latest_review_rating": _Function(
        _latest_review(lambda review: review["ratings"][0]["percent"]), 1
    ),
    "shopping_get_sku_latest_review_text": _Function(_latest_review(lambda review: review["detail"]), 1),
    "reddit_get_post_url": _Function(_post_url, 1),
    "gitlab_get_project_memeber_role": _Function(_member_role, 1, of_page=True),
    "get_query_text": _Function(_query_text, 1, of_page=True),
    "get_query_text_lowercase": _Function(_query_text_lowercase, 1, of_page=True),
}
"""Names and spelling are those of WebArena and its variants."""
