from __future__ import annotations

import ast
import asyncio
import json
from collections.abc import Callable, Coroutine, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from agentgym_envs.core.text_env import EnvFault
from agentgym_envs.worlds.webarena import evaluation
from agentgym_envs.worlds.webarena.browser.login import Accounts
from agentgym_envs.worlds.webarena.browser.session import Session
from agentgym_envs.worlds.webarena.browser.site_urls import Sites
from agentgym_envs.worlds.webarena.evaluation import Verdict, evaluate, program_html
from agentgym_envs.worlds.webarena.evaluation.locators import Call, Caller, parse_call
from pages_server import Page, PagesServer
from playwright.async_api import Error

SITES = Sites(shopping="http://shop.example", wikipedia="http://wiki.example", gitlab="http://down.example")
Run = Callable[[Coroutine[Any, Any, Any]], Any]
Judged = Callable[..., Verdict]


@pytest.fixture
def judged(session: Session, run: Run) -> Judged:
    """Judges an `eval` in the session, in which the agent has stopped with an answer."""

    def judge(judged: Mapping[str, Any], answer: str = "", sites: Sites = SITES, **options: Any) -> Verdict:
        task = {"task_id": 1, "intent": "?", "eval": judged}
        return run(evaluate(task, answer, session, sites, **options))

    return judge


def target(**fields: Any) -> dict[str, Any]:
    """The `eval` of a task with one target."""
    given = {"url": "last", "locator": "", "required_contents": {"must_include": ["tea"]}, **fields}
    judged = {"eval_types": ["program_html"], "program_html": [given]}
    return {**judged, **program_html.check(judged)}


ITEMS = """<title>Items</title><ul><li class=item data-n=1>Green Tea</li><li class=item>Milk &amp; Honey</li></ul>
<input id=stars value=4><input id=on type=checkbox checked><p id=late></p>"""


@pytest.fixture
def shop(server: PagesServer, session: Session, run: Run) -> PagesServer:
    server.pages |= {"/items": ITEMS, "/other": "<p id=what>coffee</p>"}
    assert run(session.goto("http://shop.example/items")) is None
    return server


LOOKS: list[tuple[str, dict[str, Any], float]] = [
    ("", {"must_include": ["green tea", 'data-n="1"']}, 1),
    ("", {"must_include": ["green tea", "coffee"]}, 0),
    ("", {"must_include": ["coffee |OR| tea"]}, 1),
    ("", {"must_include": ["milk & honey"]}, 1),
    ("document.querySelector('.item').innerText", {"exact_match": "green tea"}, 1),
    ("document.querySelector('.item').innerText", {"exact_match": "green"}, 0),
    ("document.querySelector('.item').innerText;", {"exact_match": "green tea"}, 1),
    ("document.querySelector('#stars').value", {"exact_match": "4"}, 1),
    ("document.querySelectorAll('.item').length", {"exact_match": "2"}, 1),
    ("document.querySelector('#on').checked", {"exact_match": "True"}, 1),
    ("[...document.querySelectorAll('.item')].map(i => i.dataset.n).join()", {"exact_match": "1,"}, 1),
    ("[...document.querySelectorAll('.item')].map(i => i.innerText)", {"must_include": ["honey"]}, 1),
    ("lambda:() => document.title", {"exact_match": "items"}, 1),
    ("document.querySelector('#none').value", {"exact_match": ""}, 1),
    ("document.querySelector('#none').value", {"must_include": ["null"]}, 0),
    ("document.querySelector('#none')", {"must_include": ["none"]}, 0),
    ("document.querySelector('[')", {"must_include": ["["]}, 0),
    ("func:get_query_text(__page__, '.item')", {"exact_match": "green tea"}, 1),
    ("func:get_query_text(__page__, '#none')", {"exact_match": ""}, 1),
    ("func:get_query_text_lowercase(__page__, '.item')", {"must_include": ["green"]}, 1),
]


def test_what_the_last_page_says(shop: PagesServer, judged: Judged) -> None:
    for locator, contents, worth in LOOKS:
        verdict = judged(target(locator=locator, required_contents=contents))
        assert (locator, contents, verdict) == (locator, contents, Verdict(worth, {"program_html": worth}))


def test_another_page_is_opened_aside(shop: PagesServer, judged: Judged, session: Session) -> None:
    seen = {"exact_match": "coffee"}
    locator = "document.querySelector('#what').innerText"
    assert judged(target(url="__SHOPPING__/other", locator=locator, required_contents=seen)).score == 1
    assert judged(target(url="__WIKIPEDIA__/none", locator=locator, required_contents=seen)).score == 0  # a 404
    assert [tab.url for tab in session.tabs] == ["http://shop.example/items"]
    assert len(session.context.pages) == 1


def test_scripts_run_before_the_look_until_one_trips(shop: PagesServer, judged: Judged) -> None:
    actions = [
        "document.querySelector('#late').innerText = 'tea'",
        "document.querySelector('#none').click()",
        "document.querySelector('#late').innerText = 'milk'",
    ]
    assert judged(target(locator="document.querySelector('#late').innerText", prep_actions=actions)).score == 1


def test_the_page_is_what_the_cookies_of_the_agent_make_it(shop: PagesServer, judged: Judged) -> None:
    shop.pages["/items"] = Page(ITEMS, headers={"Set-Cookie": "cart=7"})
    judged(target(url="__SHOPPING__/items"))
    judged(target(url="__SHOPPING__/other"))
    assert shop.asked[-1].headers["cookie"] == "cart=7"


def test_the_post_of_a_comment(server: PagesServer, session: Session, judged: Judged, run: Run) -> None:
    server.pages |= {"/f/books/12/": "<p>the post says tea</p>", "/f/books/12/-/comment/3": "<p>a comment</p>"}
    run(session.goto("http://wiki.example/f/books/12/-/comment/3"))
    post = "func:reddit_get_post_url('__last_url__')"
    assert judged(target(url=post)).score == 1
    assert server.paths()[-1] == "/f/books/12/"
    run(session.goto("about:blank"))
    assert judged(target(url=post)).score == 0  # the agent's doing, not a fault


ROLES = """<table>{}</table>"""
ROW = """<tr><td data-label=Account><span class=gl-avatar-labeled-sublabel>@{}</span></td>
<td class=col-max-role><span>{}</span></td></tr>"""


def test_the_role_of_a_member(server: PagesServer, session: Session, judged: Judged, run: Run) -> None:
    server.pages["/members"] = ROLES.format(ROW.format("ann", "Guest") + ROW.format("bob", "Developer"))
    run(session.goto("http://shop.example/members"))
    for name, role in (("ann", "Guest"), ("bob", "Developer"), ("bo", ""), ("'\"`", "")):
        locator = f"func:gitlab_get_project_memeber_role(__page__, {name!r})"
        verdict = judged(target(locator=locator, required_contents={"exact_match": role}))
        assert (name, verdict.score) == (name, 1)


def with_api(server: PagesServer) -> Sites:
    """The shop as this process, rather than the browser, reaches it, with Magento's API."""
    reviews = [
        {"nickname": "Ann", "detail": "Good", "ratings": [{"rating_name": "Rating", "percent": 100}]},
        {"nickname": "Emma", "detail": "Bad <tea>", "ratings": [{"rating_name": "Rating", "percent": 20}]},
    ]
    server.pages |= {
        "/rest/default/V1/integration/admin/token": Page('"secret"'),
        "/rest/V1/products/B1%2F2/reviews": Page(json.dumps(reviews)),
        "/rest/V1/products/B0/reviews": Page("[]"),
        "/rest/V1/orders": Page(json.dumps({"items": [{"increment_id": "000000191"}]})),
    }
    return Sites(shopping=f"http://{server.address}")


def test_the_shops_api(server: PagesServer, judged: Judged) -> None:
    sites = with_api(server)
    said = {"author('B1/2')": "Emma", "rating('B1/2')": "20", "text('B1/2')": "Bad <tea>", "author('B0')": ""}
    for call, text in said.items():
        locator = f"func:shopping_get_sku_latest_review_{call}"
        verdict = judged(target(locator=locator, required_contents={"exact_match": text}), sites=sites)
        assert (call, verdict.score) == (call, 1)
    token, asked = server.asked[-2:]
    assert json.loads(token.body) == {"username": "admin", "password": "admin1234"}
    assert asked.headers["authorization"] == "Bearer secret"


def test_the_latest_order(server: PagesServer) -> None:
    caller = Caller(with_api(server), Accounts(), "")
    url = asyncio.run(caller.call("func:shopping_get_latest_order_url()", cast("Any", None)))
    assert url == f"http://{server.address}/sales/order/view/order_id/191/"
    assert "searchCriteria%5BsortOrders%5D%5B0%5D%5Bdirection%5D=DESC" in server.asked[-1].path


def test_an_api_that_refuses_is_a_fault(server: PagesServer, judged: Judged) -> None:
    sites = with_api(server)
    server.pages["/rest/default/V1/integration/admin/token"] = Page("{}", status=401)
    check = target(locator="func:shopping_get_sku_latest_review_author('B0')")
    with pytest.raises(EnvFault, match=r"shop's API .* as boss failed: .*401"):
        judged(check, sites=sites, accounts=Accounts.of({"shopping_admin": ("boss", "x")}))


def test_a_page_that_cannot_be_loaded_is_a_fault(server: PagesServer, judged: Judged) -> None:
    server.pages["/broken"] = Page("oh", status=502)
    with pytest.raises(EnvFault, match=r"shop\.example/broken returned status 502"):
        judged(target(url="__SHOPPING__/broken"))
    with pytest.raises(EnvFault, match=r"http://down\.example/x .*can't be evaluated: .*ERR_CONNECTION_REFUSED"):
        judged(target(url="__GITLAB__/x"))


class Leaving:
    """A page that is going elsewhere at the first look."""

    def __init__(self, said: str) -> None:
        self.said = [said]

    async def content(self) -> str:
        if self.said:
            raise Error(self.said.pop())
        return "tea"

    async def evaluate(self, script: str) -> str:
        return await self.content()

    async def wait_for_load_state(self) -> None:
        assert not self.said


@pytest.mark.parametrize("locator", ["", "document.title"])
def test_a_page_on_the_move_is_looked_at_where_it_comes_to_rest(locator: str) -> None:
    def score(said: str) -> float:
        session = cast("Session", SimpleNamespace(tab=SimpleNamespace(page=Leaving(said))))
        caller = Caller(SITES, Accounts(), "")
        return asyncio.run(program_html.score(target(locator=locator)["program_html"], session, caller))

    assert score("Page.content: Unable to retrieve content because the page is navigating") == 1
    with pytest.raises(EnvFault, match="The page last .*can't be evaluated: Target closed"):  # noqa: RUF043
        score("Target closed")


def test_a_last_tab_that_closed_itself_is_a_blank_one(
    shop: PagesServer, judged: Judged, session: Session, run: Run
) -> None:
    run(session.tab.page.close())
    assert judged(target(), "tea").score == 0


def test_the_score_is_the_product_of_the_parts(shop: PagesServer, judged: Judged, tmp_path: Path) -> None:
    parts = {
        **target(),
        "eval_types": ["string_match", "url_match", "program_html"],
        "reference_answers": {"exact_match": "42"},
        "reference_url": "__SHOPPING__/items",
        "url_note": "GOLD in PRED",
    }
    ones = {"string_match": 1.0, "url_match": 1.0, "program_html": 1.0}
    assert judged(parts, "42") == Verdict(1.0, ones)
    assert judged(parts, "41") == Verdict(0.0, {**ones, "string_match": 0.0})
    assert judged({**parts, "reference_url": "__SHOPPING__/other"}, "42") == Verdict(0.0, {**ones, "url_match": 0.0})


def test_a_call_is_parsed() -> None:
    assert parse_call("func:shopping_get_latest_order_url()") == Call("shopping_get_latest_order_url", ())
    assert parse_call("func:get_query_text(__page__, 'a > b')") == Call("get_query_text", ("a > b",))


@pytest.mark.parametrize(
    ("call", "said"),
    [
        ("func:__import__('os').system('true')", "not a plain call"),
        ("func:open('/etc/passwd')", "unknown function"),
        ("func:shoping_get_latest_order_url()", "Did you mean shopping_get_latest_order_url"),
        ("func:reddit_get_post_url(open('x'))", "only literals"),
        ("func:reddit_get_post_url(*['x'])", "only literals"),
        ("func:reddit_get_post_url(url='x')", "not a plain call"),
        ("func:reddit_get_post_url()", r"expected reddit_get_post_url\('text'\)"),
        ("func:get_query_text('x', __page__)", "expected get_query_text"),
        ("func:get_query_text(__page__)", "expected get_query_text"),
        ("func:", "not a function call"),
        ("func:(lambda: 1)()", "not a plain call"),
        ("func:a\x00b", "not a function call"),
    ],
)
def test_nothing_else_can_be_called(call: str, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        parse_call(call)


def test_no_code_of_a_task_can_run_in_python() -> None:
    called = [
        node.func.id
        for file in Path(evaluation.__file__).parent.glob("*.py")
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
    ]
    assert "str" in called, "nothing was found: the search is broken"
    assert {"eval", "exec", "compile", "__import__", "getattr"}.isdisjoint(called)
