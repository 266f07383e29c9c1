"""Tests of `Sites`: options, environment variables, and placeholders for URLs."""

from __future__ import annotations

import pytest
from agentgym_envs.worlds.webarena.browser.site_urls import KEYS, Sites, host_and_port, needed
from hypothesis import given
from hypothesis import strategies as st

pytestmark = pytest.mark.quick

LOCAL = Sites.of("shopping=http://web:7770, shopping_admin=http://web:7780/admin/,reddit=https://forum.example")


def test_sites_accept_a_mapping_or_text() -> None:
    assert (
        Sites.of({"gitlab": "http://code:8023/"})
        == Sites(gitlab="http://code:8023")
        == Sites.of("gitlab=http://code:8023")
    )
    assert Sites.of("") == Sites()
    assert LOCAL.configured == {
        "shopping": "http://web:7770",
        "shopping_admin": "http://web:7780/admin",
        "reddit": "https://forum.example",
    }


@pytest.mark.parametrize("prefix", ["", "WA_"])
def test_environment_variables_configure_all_sites(prefix: str) -> None:
    environ = {f"{prefix}{key.upper()}": f"http://{key.replace('_', '-')}:80/" for key in KEYS}
    assert list(Sites.from_environment(environ).configured) == list(KEYS)


def test_prefixed_variables_take_precedence_and_empty_ones_are_ignored() -> None:
    environ = {"SHOPPING": "http://a:1", "WA_SHOPPING": "http://b:2", "HOMEPAGE": "PASS", "MAP": "", "PATH": "/bin"}
    assert Sites.from_environment(environ) == Sites(shopping="http://b:2")


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ("shoping=http://a:1", "Did you mean shopping?"),
        ({"classifieds": "http://a:1"}, "WebArena's sites are shopping, shopping_admin"),
        ("shopping", "write sites as shopping=http://HOST:PORT"),
        ("shopping=http://a:1,shopping=http://b:1", "given twice"),
        ("shopping=web:7770", "did you mean http://web:7770"),
        ("shopping=ftp://web", "expected a URL such as http://HOST:PORT"),
        ("shopping=http://", "expected a URL"),
        ("shopping=http://web:99999", "expected a URL"),
        ("shopping=http://me:secret@web", "expected a URL"),
        ("shopping=http://web/?q=1", "expected a URL"),
    ],
)
def test_invalid_sites_are_rejected(option: str | dict[str, str], message: str) -> None:
    with pytest.raises(ValueError, match=message.replace("?", r"\?")):
        Sites.of(option)


def test_invalid_environment_variable_is_named() -> None:
    with pytest.raises(ValueError, match="WA_GITLAB is 'code:8023'"):
        Sites.from_environment({"WA_GITLAB": "code:8023", "GITLAB": "http://code:8023"})


def test_placeholders_are_filled_in_nested_values() -> None:
    task = {"start_url": "__SHOPPING_ADMIN__/x |AND| __SHOPPING__", "eval": {"list": ["__REDDIT__/f", 1, None, True]}}
    assert LOCAL.fill(task) == {
        "start_url": "http://web:7780/admin/x |AND| http://web:7770",
        "eval": {"list": ["https://forum.example/f", 1, None, True]},
    }
    assert LOCAL.fill("__GITLAB__ __SHOPPINGS__ __last_url__") == "__GITLAB__ __SHOPPINGS__ __last_url__"


@pytest.mark.parametrize(
    ("url", "key", "with_placeholder"),
    [
        ("http://web:7770", "shopping", "__SHOPPING__"),
        ("http://web:7770/a?b#c", "shopping", "__SHOPPING__/a?b#c"),
        ("http://web:7770?b", "shopping", "__SHOPPING__?b"),
        ("http://web:77701/a", None, "http://web:77701/a"),
        ("http://web:7780/admin/sales", "shopping_admin", "__SHOPPING_ADMIN__/sales"),
        ("http://web:7780/administrator", None, "http://web:7780/administrator"),
        ("about:blank", None, "about:blank"),
        ("", None, ""),
    ],
)
def test_urls_map_to_sites_and_placeholders(url: str, key: str | None, with_placeholder: str) -> None:
    assert LOCAL.key_of(url) == key
    assert LOCAL.with_placeholders(url) == with_placeholder
    assert LOCAL.fill(with_placeholder) == url


def test_longest_matching_url_wins() -> None:
    sites = Sites(shopping="http://web", shopping_admin="http://web/admin")
    assert sites.key_of("http://web/admin/x") == "shopping_admin"
    assert sites.key_of("http://web/adm") == "shopping"


@given(st.sampled_from(KEYS), st.text(alphabet="abc/?#=_&", max_size=20))
def test_placeholders_round_trip(key: str, rest: str) -> None:
    sites = Sites(**{key: "http://a:1/base"})
    url = f"http://a:1/base/{rest}"
    assert sites.fill(sites.with_placeholders(url)) == url
    assert sites.with_placeholders(url) == f"__{key.upper()}__/{rest}"


def test_hosts_include_their_ports() -> None:
    assert LOCAL.hosts == ("forum.example:443", "web:7770", "web:7780")
    assert host_and_port("http://[::1]/x") == "[::1]:80"


def test_needed_sites_are_listed_or_in_placeholders() -> None:
    task = {"sites": ["wikipedia"], "start_url": "__SHOPPING__", "eval": {"program_html": [{"url": "__REDDIT__/f"}]}}
    assert needed(task) == ("wikipedia", "shopping", "reddit")
    with pytest.raises(ValueError, match=r"Task x/7 needs the site wikipedia.*set WIKIPEDIA \(or WA_WIKIPEDIA\)"):
        LOCAL.demand(task, "x/7")
    LOCAL.demand({**task, "sites": ["shopping"]}, "x/7")


def test_unknown_site_key_is_rejected() -> None:
    with pytest.raises(ValueError, match=r"There is no site 'gitlub'\. Did you mean gitlab"):
        LOCAL.url("gitlub")
