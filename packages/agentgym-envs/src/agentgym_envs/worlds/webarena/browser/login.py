"""Log in to WebArena's sites through their login forms, once per site and account, and cache the storage state.

The state (cookies and local storage, as Playwright writes them) is cached in the user's cache folder, one file per site
URL and account. It is reused as long as the site accepts it; after that, a new login replaces it.
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
"""Opens a session in a browser that reaches the sites, with or without a state; the caller closes it."""
_PAGE_TIMEOUT = 60_000  # milliseconds; the first page of a cold GitLab or Magento takes tens of seconds
_FORM_TIMEOUT = 10_000  # milliseconds for the form to appear once its page has loaded


@dataclass(frozen=True, slots=True)
class Account:
    """A user name and a password."""

    username: str
    password: str = field(repr=False)


@dataclass(frozen=True, slots=True)
class Accounts:
    """The account for each site; WebArena's published accounts by default."""

    shopping: Account = Account("emma.lopez@gmail.com", "Password.123")
    shopping_admin: Account = Account("admin", "admin1234")
    reddit: Account = Account("MarvelsGrantMan136", "test1234")
    gitlab: Account = Account("byteblaze", "hello1234")

    @classmethod
    def of(cls, option: Mapping[str, tuple[str, str]]) -> Accounts:
        """Override WebArena's accounts with those of an option: a user name and a password per site.

        Raises:
            ValueError: for a site without a login.
        """
        if unknown := sorted(option.keys() - FORMS.keys()):
            raise ValueError(f"The site {unknown[0]!r} has no login; the sites with accounts are {', '.join(FORMS)}.")
        return replace(cls(), **{key: Account(*account) for key, account in option.items()})

    def at(self, key: str) -> Account:
        """Return the account for the site `key`, one of `FORMS`."""
        return cast("Account", getattr(self, key))


@dataclass(frozen=True, slots=True)
class Form:
    """A site's login form."""

    login: str
    """The path of the page with the form, below the site's URL."""
    username: str
    """The `name` attribute of the input field for the user name."""
    password: str
    """The `name` attribute of the input field for the password."""
    check: str
    """The path of a page that only logged-in users see; others get the form instead."""


FORMS: Final[Mapping[str, Form]] = {
    "shopping": Form("/customer/account/login/", "login[username]", "login[password]", "/customer/account/"),
    "shopping_admin": Form("/", "login[username]", "login[password]", "/dashboard/"),
    "reddit": Form("/login", "_username", "_password", "/submit"),
    "gitlab": Form("/users/sign_in", "user[login]", "user[password]", "/-/profile"),
}
"""The forms of Magento's shop and its administration, Postmill and GitLab."""


@dataclass(slots=True)
class Logins:
    """The login states of all sites for a set of accounts. `shared_logins` returns the process's instance."""

    accounts: Accounts = field(default_factory=Accounts)
    folder: Path = field(default_factory=lambda: cache_folder("webarena", "logins"))
    trust: float = 1_800.0
    """Seconds for which a state is used without another check."""
    _states: dict[Path, tuple[float, State]] = field(default_factory=dict[Path, tuple[float, State]])
    _lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Bound to the browsers' loop, of which a process has one."""

    async def state(self, keys: Iterable[str], sites: Sites, open_session: OpenSession) -> State | None:
        """Return the state after logging in to each of the sites `keys` that has accounts; None if none has.

        Cookies of sites on the same host are separated by name only, as browsers ignore the port.

        Raises:
            ValueError: if a site isn't configured.
            EnvFault: if a site refuses the account or doesn't show its form; the message names the site.
        """
        async with self._lock:
            states = [await self._login_state(key, sites, open_session) for key in keys if key in FORMS]
        return merged(states) if states else None

    def forget(self) -> None:
        """Check every state before its next use, as the sites were reset."""
        self._states.clear()

    async def _login_state(self, key: str, sites: Sites, open_session: OpenSession) -> State:
        url, account = sites.url(key, "A login"), self.accounts.at(key)
        name = hashlib.sha256(f"{url}\n{account.username}".encode()).hexdigest()[:16]
        file = self.folder / f"{key}-{name}.json"
        since, state = self._states.get(file, (0.0, None))
        if state is not None and time.monotonic() - since < self.trust:
            return state
        stored = _load(file)
        state = stored and await _refreshed(key, url, stored, open_session)
        if state is None:
            state = await _new_state(key, url, account, open_session)
        _store(file, state)
        self._states[file] = (time.monotonic(), state)
        return state


@cache
def shared_logins(accounts: Accounts) -> Logins:
    """Return the process's logins with these accounts, so that all its environments log in once."""
    return Logins(accounts)


os.register_at_fork(after_in_child=shared_logins.cache_clear)  # a forked child's browsers run on another loop


def merged(states: Iterable[State]) -> State:
    """Merge several states; of cookies with the same name, host and path the last one wins."""
    cookies: dict[tuple[str, str, str], Any] = {}
    origins: dict[str, Any] = {}
    for state in states:
        cookies |= {(cookie["name"], cookie["domain"], cookie["path"]): cookie for cookie in state["cookies"]}
        origins |= {origin["origin"]: origin for origin in state["origins"]}
    return {"cookies": list(cookies.values()), "origins": list(origins.values())}


async def log_in(page: Page, key: str, url: str, account: Account) -> None:
    """Log `account` in to the site `key` at `url` in a page.

    Raises:
        EnvFault: if the site refuses it or doesn't show its form; the message names the site.
    """
    form = FORMS[key]
    try:
        await page.goto(f"{url}{form.login}", timeout=_PAGE_TIMEOUT)
        password = page.locator(f'input[name="{form.password}"]').first
        try:
            await page.locator(f'input[name="{form.username}"]').first.fill(account.username, timeout=_FORM_TIMEOUT)
            await password.fill(account.password, timeout=_FORM_TIMEOUT)
        except PlaywrightTimeout as error:
            raise EnvFault(
                f"The site {key} ({url}) shows no login form at {form.login}. Check that the URL belongs to this site."
            ) from error
        async with page.expect_navigation(timeout=_PAGE_TIMEOUT):
            await password.press("Enter")
        logged_in = await _is_logged_in(page, key, url)
    except Error as error:
        raise EnvFault(f"Login to the site {key} ({url}) failed: {first_line(error)}") from error
    if not logged_in:
        raise EnvFault(
            f"The site {key} ({url}) refused the account {account.username!r}: wrong user name or password. "
            f"Give the site's own account: accounts={{'{key}': (NAME, PASSWORD)}}."
        )


async def _is_logged_in(page: Page, key: str, url: str) -> bool:
    """Whether the site shows a page that only logged-in users see."""
    form = FORMS[key]
    response = await page.goto(f"{url}{form.check}", timeout=_PAGE_TIMEOUT)
    if response is not None and response.status >= 500:
        raise EnvFault(f"The site {key} returned status {response.status} for {url}{form.check}.")
    if form.login != "/" and urlsplit(page.url).path == urlsplit(f"{url}{form.login}").path:
        return False
    return await page.locator(f'input[name="{form.password}"]').count() == 0


async def _new_state(key: str, url: str, account: Account, open_session: OpenSession) -> State:
    session = await open_session(None)
    try:
        await log_in(session.tab.page, key, url, account)
        return cast("State", await session.context.storage_state())
    finally:
        await session.close()


async def _refreshed(key: str, url: str, state: State, open_session: OpenSession) -> State | None:
    """Return `state` after a visit to the site, which may have renewed it; None if the site rejects it."""
    session = await open_session(state)
    try:
        if not await _is_logged_in(session.tab.page, key, url):
            return None
        return cast("State", await session.context.storage_state())
    except Error as error:
        raise EnvFault(f"The login at the site {key} ({url}) could not be checked: {first_line(error)}") from error
    finally:
        await session.close()


def _load(file: Path) -> State | None:
    """Read the state in a file; None if the file is missing or not a valid storage state."""
    try:
        state = json.loads(file.read_text(encoding="utf-8"))
        return merged([state])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _store(file: Path, state: State) -> None:
    file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    file.parent.chmod(0o700)  # the state grants access to the account
    write_whole(file, json.dumps(state))
