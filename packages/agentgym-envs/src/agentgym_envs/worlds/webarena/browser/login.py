"""Logs in to WebArena's sites through their own forms, once per site and account, and keeps what the browser got.

The state (cookies and local storage, as Playwright writes them) lies in the user's cache, one file per site's URL and
account; it is used again while the site still knows it, and made anew when it doesn't. Knows nothing about tasks.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, cast
from urllib.parse import urlsplit

from playwright.async_api import Error, Page
from playwright.async_api import TimeoutError as PlaywrightTimeout

from agentgym_envs.core.text_env import EnvFault
from agentgym_envs.util.files import cache_folder, write_whole
from agentgym_envs.worlds.webarena.browser.playwright_errors import first_line
from agentgym_envs.worlds.webarena.browser.site_urls import Sites

if TYPE_CHECKING:
    from agentgym_envs.worlds.webarena.browser.session import Session

State = dict[str, Any]
"""Playwright's storage state: `{"cookies": [...], "origins": [...]}`."""
OpenSession = Callable[[State | None], Awaitable["Session"]]
"""Opens a session in a browser that reaches the sites, with a state or with none; whoever asks closes it."""
_PATIENCE = 60_000  # milliseconds for a page: the first one of a cold GitLab or Magento takes tens of seconds
_FORM = 10_000  # milliseconds for a form to be there once its page is


@dataclass(frozen=True, slots=True)
class Account:
    """Who logs in."""

    username: str
    password: str = field(repr=False)


@dataclass(frozen=True, slots=True)
class Accounts:
    """Who logs in where; WebArena's published accounts unless said otherwise."""

    shopping: Account = Account("emma.lopez@gmail.com", "Password.123")
    shopping_admin: Account = Account("admin", "admin1234")
    reddit: Account = Account("MarvelsGrantMan136", "test1234")
    gitlab: Account = Account("byteblaze", "hello1234")

    @classmethod
    def of(cls, option: Mapping[str, tuple[str, str]]) -> Accounts:
        """WebArena's accounts but for those of an option, a user name and a password per site.

        Raises:
            ValueError: for a site that nobody logs in to.
        """
        if unknown := sorted(option.keys() - FORMS.keys()):
            raise ValueError(f"Nobody logs in to {unknown[0]!r}; the sites with accounts are {', '.join(FORMS)}.")
        return replace(cls(), **{key: Account(*account) for key, account in option.items()})

    def at(self, key: str) -> Account:
        """The account for the site `key`, which is one of `FORMS`."""
        return cast("Account", getattr(self, key))


@dataclass(frozen=True, slots=True)
class Form:
    """Where a site asks for a name and a password."""

    login: str
    """The path of the page with the form, below the site's URL."""
    username: str
    """Name of the input field."""
    password: str
    check: str
    """The path of a page that only those who are logged in see; others get the form instead."""


FORMS: Final[Mapping[str, Form]] = {
    "shopping": Form("/customer/account/login/", "login[username]", "login[password]", "/customer/account/"),
    "shopping_admin": Form("/", "login[username]", "login[password]", "/dashboard/"),
    "reddit": Form("/login", "_username", "_password", "/submit"),
    "gitlab": Form("/users/sign_in", "user[login]", "user[password]", "/-/profile"),
}
"""Magento's shop and its administration, Postmill, GitLab."""


@dataclass(slots=True)
class Logins:
    """The states of all sites for some accounts. `shared_logins` gives the process's."""

    accounts: Accounts = field(default_factory=Accounts)
    folder: Path = field(default_factory=lambda: cache_folder("webarena", "logins"))
    trust: float = 1_800.0
    """Seconds after which a state is looked at again before it is used."""
    _known: dict[Path, tuple[float, State]] = field(default_factory=dict[Path, tuple[float, State]])
    _lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Of the browsers' loop, of which a process has one."""

    async def state(self, keys: Iterable[str], sites: Sites, open_session: OpenSession) -> State | None:
        """The state of somebody logged in to each of the sites `keys` that has accounts; None where none has.

        Sites on one host keep their cookies apart by name only, as browsers do whatever the port.

        Raises:
            ValueError: when a site isn't configured.
            EnvFault: when a site refuses the account or doesn't show its form; names the site.
        """
        async with self._lock:
            states = [await self._one(key, sites, open_session) for key in keys if key in FORMS]
        return merged(states) if states else None

    def forget(self) -> None:
        """Look at every state again before it is used: the sites were reset."""
        self._known.clear()

    async def _one(self, key: str, sites: Sites, open_session: OpenSession) -> State:
        url, account = sites.url(key, "A login"), self.accounts.at(key)
        name = hashlib.sha256(f"{url}\n{account.username}".encode()).hexdigest()[:16]
        file = self.folder / f"{key}-{name}.json"
        since, state = self._known.get(file, (0.0, None))
        if state is not None and time.monotonic() - since < self.trust:
            return state
        stored = _stored(file)
        state = stored and await _still_good(key, url, stored, open_session)
        if state is None:
            state = await _fresh(key, url, account, open_session)
        _keep(file, state)
        self._known[file] = (time.monotonic(), state)
        return state


@cache
def shared_logins(accounts: Accounts) -> Logins:
    """The logins of a process with these accounts: many worlds in it log in once."""
    return Logins(accounts)


os.register_at_fork(after_in_child=shared_logins.cache_clear)  # the child's browsers have a loop of their own


def merged(states: Iterable[State]) -> State:
    """One state of several; of cookies of one name, host and path the last one stays."""
    cookies: dict[tuple[str, str, str], Any] = {}
    origins: dict[str, Any] = {}
    for state in states:
        cookies |= {(one["name"], one["domain"], one["path"]): one for one in state["cookies"]}
        origins |= {one["origin"]: one for one in state["origins"]}
    return {"cookies": list(cookies.values()), "origins": list(origins.values())}


async def log_in(page: Page, key: str, url: str, account: Account) -> None:
    """Log `account` in to the site `key` at `url` in a page.

    Raises:
        EnvFault: when the site refuses it or doesn't show its form; names the site.
    """
    form = FORMS[key]
    try:
        await page.goto(f"{url}{form.login}", timeout=_PATIENCE)
        password = page.locator(f'input[name="{form.password}"]').first
        try:
            await page.locator(f'input[name="{form.username}"]').first.fill(account.username, timeout=_FORM)
            await password.fill(account.password, timeout=_FORM)
        except PlaywrightTimeout as error:
            raise EnvFault(
                f"The site {key} ({url}) shows no form to log in at {form.login}. Is it that site?"
            ) from error
        async with page.expect_navigation(timeout=_PATIENCE):
            await password.press("Enter")
        inside = await _inside(page, key, url)
    except Error as error:
        raise EnvFault(f"The site {key} ({url}) could not be logged in to: {first_line(error)}") from error
    if not inside:
        raise EnvFault(
            f"The site {key} ({url}) refused the account {account.username!r}: wrong name or password. "
            f"Give its own: accounts={{'{key}': (NAME, PASSWORD)}}."
        )


async def _inside(page: Page, key: str, url: str) -> bool:
    """Whether the site shows a page that only those who are logged in see."""
    form = FORMS[key]
    response = await page.goto(f"{url}{form.check}", timeout=_PATIENCE)
    if response is not None and response.status >= 500:
        raise EnvFault(f"The site {key} answers {url}{form.check} with status {response.status}.")
    if form.login != "/" and urlsplit(page.url).path == urlsplit(f"{url}{form.login}").path:
        return False
    return await page.locator(f'input[name="{form.password}"]').count() == 0


async def _fresh(key: str, url: str, account: Account, open_session: OpenSession) -> State:
    session = await open_session(None)
    try:
        await log_in(session.tab.page, key, url, account)
        return cast("State", await session.context.storage_state())
    finally:
        await session.close()


async def _still_good(key: str, url: str, state: State, open_session: OpenSession) -> State | None:
    """`state` as it is after a look at the site, which may have renewed it; None when the site doesn't know it."""
    session = await open_session(state)
    try:
        if not await _inside(session.tab.page, key, url):
            return None
        return cast("State", await session.context.storage_state())
    except Error as error:
        raise EnvFault(f"The site {key} ({url}) could not be asked: {first_line(error)}") from error
    finally:
        await session.close()


def _stored(file: Path) -> State | None:
    """The state in a file; None where there is none, or none that Playwright could have written."""
    try:
        state = json.loads(file.read_text(encoding="utf-8"))
        return merged([state])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _keep(file: Path, state: State) -> None:
    file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    file.parent.chmod(0o700)  # whoever reads a state is logged in
    write_whole(file, json.dumps(state))
