"""Tests of logging in to sites: caching, accounts, failures, and merged cookies."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

import pytest
from agentgym_envs.core.text_env import EnvFault
from agentgym_envs.worlds.webarena.browser import login
from agentgym_envs.worlds.webarena.browser.browser import Browser, acquire
from agentgym_envs.worlds.webarena.browser.login import FORMS, Accounts, Logins, State, merged
from agentgym_envs.worlds.webarena.browser.session import Session
from agentgym_envs.worlds.webarena.browser.site_urls import Sites
from login_pages import LoginPages, LoginSite

HOSTS = {key: f"{key.replace('_', '-')}.example" for key in FORMS}
SITES = Sites.of({key: f"http://{host}" for key, host in HOSTS.items()} | {"map": "http://map.example"})
Run = Callable[[Coroutine[Any, Any, Any]], Any]
PASSWORDS = {
    "shopping": {"emma.lopez@gmail.com": "Password.123"},
    "shopping_admin": {"admin": "admin1234"},
    "reddit": {"MarvelsGrantMan136": "test1234"},
    "gitlab": {"byteblaze": "hello1234"},
}


def new_site(key: str) -> LoginSite:
    form = FORMS[key]
    in_place = key == "shopping_admin"
    return LoginSite(
        form.login, form.check, form.username, form.password, PASSWORDS[key].copy(), redirects=not in_place
    )


@pytest.fixture(scope="module")
def served(requires_browser: None) -> Iterator[tuple[LoginPages, Browser]]:
    with LoginPages({}) as pages:
        browser = acquire(dict.fromkeys(HOSTS.values(), pages.address))
        yield pages, browser
        browser.release()


@pytest.fixture
def pages(served: tuple[LoginPages, Browser]) -> dict[str, LoginSite]:
    """New sites by key."""
    sites = {key: new_site(key) for key in FORMS}
    served[0].sites.clear()
    served[0].sites.update({HOSTS[key]: site for key, site in sites.items()})
    return sites


@pytest.fixture
def run(served: tuple[LoginPages, Browser]) -> Run:
    return lambda coroutine: served[1].loop.run(coroutine, 60)


@pytest.fixture
def open_session(served: tuple[LoginPages, Browser]) -> login.OpenSession:
    async def open_session(state: State | None) -> Session:
        return await served[1].session(storage_state=state)

    return open_session


@pytest.fixture
def state_of(run: Run, open_session: login.OpenSession) -> Callable[..., State | None]:
    return lambda logins, *keys: run(logins.state(keys, SITES, open_session))


@pytest.mark.long
@pytest.mark.parametrize("key", FORMS)
def test_webarenas_accounts_log_in(
    pages: dict[str, LoginSite],
    tmp_path: Path,
    run: Run,
    open_session: login.OpenSession,
    state_of: Callable[..., State],
    key: str,
) -> None:
    state = state_of(Logins(folder=tmp_path), key)
    assert [(cookie["name"], cookie["domain"]) for cookie in state["cookies"]] == [("session", HOSTS[key])]

    async def heading() -> str:
        session = await open_session(state)
        try:
            await session.goto(f"http://{HOSTS[key]}{FORMS[key].check}")
            return await session.tab.page.inner_text("h1")
        finally:
            await session.close()

    assert run(heading()) == "Hello"


def test_login_is_cached_and_rechecked_by_other_processes(
    pages: dict[str, LoginSite], tmp_path: Path, state_of: Callable[..., State]
) -> None:
    site, logins = pages["reddit"], Logins(folder=tmp_path)
    first = state_of(logins, "reddit")
    count = len(site.requests)
    assert state_of(logins, "reddit") == first
    assert len(site.requests) == count
    assert state_of(Logins(folder=tmp_path), "reddit") == first
    assert site.requests[count:] == ["GET /submit"]


def test_concurrent_sessions_log_in_once(
    pages: dict[str, LoginSite], tmp_path: Path, run: Run, open_session: login.OpenSession
) -> None:
    logins = Logins(folder=tmp_path)

    async def log_in_four_times() -> list[State | None]:
        return await asyncio.gather(*(logins.state(["gitlab"], SITES, open_session) for _ in range(4)))

    first, *others = run(log_in_four_times())
    assert all(state == first for state in others)
    assert pages["gitlab"].requests.count("POST /users/sign_in") == 1


@pytest.mark.long
@pytest.mark.parametrize("key", ["shopping", "shopping_admin"])
def test_expired_login_is_renewed(
    pages: dict[str, LoginSite], tmp_path: Path, state_of: Callable[..., State], key: str
) -> None:
    logins = Logins(folder=tmp_path)
    state_of(logins, key)
    pages[key].sessions = {"somebody else"}
    logins.forget()
    (cookie,) = state_of(logins, key)["cookies"]
    assert cookie["value"] in pages[key].sessions
    pages[key].sessions = {"one", "two"}
    (cookie,) = state_of(Logins(folder=tmp_path, trust=0.0), key)["cookies"]
    assert cookie["value"] in pages[key].sessions


@pytest.mark.long
def test_damaged_cache_file_is_replaced(
    pages: dict[str, LoginSite], tmp_path: Path, state_of: Callable[..., State]
) -> None:
    folder = tmp_path / "logins"
    state = state_of(Logins(folder=folder), "reddit")
    (file,) = folder.iterdir()
    assert folder.stat().st_mode & 0o777 == 0o700
    for content in ("[", '{"cookies": [{}], "origins": []}'):
        file.write_text(content)
        assert len(state_of(Logins(folder=folder), "reddit")["cookies"]) == len(state["cookies"])


def test_wrong_password_is_a_fault_that_names_the_site(
    pages: dict[str, LoginSite], tmp_path: Path, state_of: Callable[..., State]
) -> None:
    for key in ("shopping", "shopping_admin"):
        accounts = Accounts.of({key: ("me", "wrong")})
        with pytest.raises(
            EnvFault, match=rf"The site {key} \(http://{HOSTS[key]}\) refused the account 'me'"
        ) as fault:
            state_of(Logins(accounts, tmp_path), key)
        assert "wrong" not in str(fault.value).replace("wrong user name", "")
    assert list(tmp_path.iterdir()) == []


def test_custom_account_logs_in(pages: dict[str, LoginSite], tmp_path: Path, state_of: Callable[..., State]) -> None:
    pages["gitlab"].accounts["me"] = "mine"
    (cookie,) = state_of(Logins(Accounts.of({"gitlab": ("me", "mine")}), tmp_path), "gitlab")["cookies"]
    assert cookie["value"] == "me-0"
    assert "mine" not in repr(Accounts.of({"gitlab": ("me", "mine")}))
    with pytest.raises(ValueError, match="The site 'map' has no login; the sites with accounts are shopping"):
        Accounts.of({"map": ("me", "mine")})


def test_logins_of_several_sites_are_merged(
    pages: dict[str, LoginSite], tmp_path: Path, state_of: Callable[..., State | None]
) -> None:
    state = state_of(Logins(folder=tmp_path), "map", "gitlab", "reddit")
    assert state is not None
    assert [cookie["domain"] for cookie in state["cookies"]] == [HOSTS["gitlab"], HOSTS["reddit"]]
    assert state_of(Logins(folder=tmp_path), "map") is None


def test_missing_login_form_is_a_fault_that_names_the_site(
    pages: dict[str, LoginSite], tmp_path: Path, state_of: Callable[..., State], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(login, "_FORM_TIMEOUT", 100)
    pages["gitlab"].form = False
    with pytest.raises(
        EnvFault, match=r"The site gitlab \(http://gitlab\.example\) shows no login form at /users/sign_in"
    ):
        state_of(Logins(folder=tmp_path), "gitlab")


def test_merged_state_keeps_the_last_of_equal_cookies() -> None:
    def state(value: str, *, path: str = "/") -> State:
        cookie = {"name": "a", "domain": "x", "path": path, "value": value}
        return {"cookies": [cookie], "origins": [{"origin": "http://x", "localStorage": [value]}]}

    result = merged([state("1"), state("2", path="/p"), state("3")])
    assert [(cookie["path"], cookie["value"]) for cookie in result["cookies"]] == [("/", "3"), ("/p", "2")]
    assert result["origins"] == [{"origin": "http://x", "localStorage": ["3"]}]


def test_equal_accounts_share_their_logins() -> None:
    assert login.shared_logins(Accounts()) is login.shared_logins(Accounts.of({}))
    assert login.shared_logins(Accounts.of({"gitlab": ("me", "mine")})) is not login.shared_logins(Accounts())
