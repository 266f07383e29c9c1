"""Tests of the evaluation `program_html`: locators, helper functions, and faults of pages and of the API."""

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
JudgeEval = Callable[..., Verdict]


@pytest.fixture
def judge(session: Session, run: Run) -> JudgeEval:
    """A function that evaluates an `eval` in the session as if the agent had stopped with an answer."""

    def judge(task_eval: Mapping[str, Any], answer: str = "", sites: Sites = SITES, **options: Any) -> Verdict:
        task = {"task_id": 1, "intent": "?", "eval": task_eval}
        return run(evaluate(task, answer, session, sites, **options))

    return judge


def one_target(**fields: Any) -> dict[str, Any]:
    """Return the `eval` of a task with one target."""
    target = {"url": "last", "locator": "", "required_contents": {"must_include": ["tea"]}, **fields}
    task_eval = {"eval_types": ["program_html"], "program_html": [target]}
    return {**task_eval, **program_html.check(task_eval)}


ITEMS = """<title>Items</title><ul><li class=item data-n=1>Green Tea</li><li class=item>Milk &amp; Honey</li></ul>
<input id=stars value=4><input id=on type=checkbox checked><p id=late></p>"""


@pytest.fixture
def shop(server: PagesServer, session: Session, run: Run) -> PagesServer:
    server.pages |= {"/items": ITEMS, "/other": "<p id=what>coffee</p>"}
    assert run(session.goto("http://shop.example/items")) is None
    return server


LOCATORS: list[tuple[str, dict[str, Any], float]] = [
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


def test_locators_on_the_last_page(shop: PagesServer, judge: JudgeEval) -> None:
    for locator, contents, score in LOCATORS:
        verdict = judge(one_target(locator=locator, required_contents=contents))
        assert (locator, contents, verdict) == (locator, contents, Verdict(score, {"program_html": score}))


def test_other_pages_are_opened_in_the_background(shop: PagesServer, judge: JudgeEval, session: Session) -> None:
    contents = {"exact_match": "coffee"}
    locator = "document.querySelector('#what').innerText"
    assert judge(one_target(url="__SHOPPING__/other", locator=locator, required_contents=contents)).score == 1
    assert (
        judge(one_target(url="__WIKIPEDIA__/none", locator=locator, required_contents=contents)).score == 0
    )  # status 404
    assert [tab.url for tab in session.tabs] == ["http://shop.example/items"]
    assert len(session.context.pages) == 1


def test_prep_actions_run_until_one_fails(shop: PagesServer, judge: JudgeEval) -> None:
    actions = [
        "document.querySelector('#late').innerText = 'tea'",
        "document.querySelector('#none').click()",
        "document.querySelector('#late').innerText = 'milk'",
    ]
    assert judge(one_target(locator="document.querySelector('#late').innerText", prep_actions=actions)).score == 1


def test_pages_are_requested_with_the_agents_cookies(shop: PagesServer, judge: JudgeEval) -> None:
    shop.pages["/items"] = Page(ITEMS, headers={"Set-Cookie": "cart=7"})
    judge(one_target(url="__SHOPPING__/items"))
    judge(one_target(url="__SHOPPING__/other"))
    assert shop.requests[-1].headers["cookie"] == "cart=7"


def test_reddit_post_url_of_a_comment(server: PagesServer, session: Session, judge: JudgeEval, run: Run) -> None:
    server.pages |= {"/f/books/12/": "<p>the post says tea</p>", "/f/books/12/-/comment/3": "<p>a comment</p>"}
    run(session.goto("http://wiki.example/f/books/12/-/comment/3"))
    post = "func:reddit_get_post_url('__last_url__')"
    assert judge(one_target(url=post)).score == 1
    assert server.paths()[-1] == "/f/books/12/"
    run(session.goto("about:blank"))
    assert judge(one_target(url=post)).score == 0  # not a fault, since the agent left the post


ROLES = """<table>{}</table>"""
ROW = """<tr><td data-label=Account><span class=gl-avatar-labeled-sublabel>@{}</span></td>
<td class=col-max-role><span>{}</span></td></tr>"""


def test_gitlab_role_of_a_member(server: PagesServer, session: Session, judge: JudgeEval, run: Run) -> None:
    server.pages["/members"] = ROLES.format(ROW.format("ann", "Guest") + ROW.format("bob", "Developer"))
    run(session.goto("http://shop.example/members"))
    for name, role in (("ann", "Guest"), ("bob", "Developer"), ("bo", ""), ("'\"`", "")):
        locator = f"func:gitlab_get_project_memeber_role(__page__, {name!r})"
        verdict = judge(one_target(locator=locator, required_contents={"exact_match": role}))
        assert (name, verdict.score) == (name, 1)


def serve_api(server: PagesServer) -> Sites:
    """Serve Magento's API, and return the sites with the shop at an address that this process can reach."""
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


def test_latest_review_from_the_shops_api(server: PagesServer, judge: JudgeEval) -> None:
    sites = serve_api(server)
    reviews = {"author('B1/2')": "Emma", "rating('B1/2')": "20", "text('B1/2')": "Bad <tea>", "author('B0')": ""}
    for call, text in reviews.items():
        locator = f"func:shopping_get_sku_latest_review_{call}"
        verdict = judge(one_target(locator=locator, required_contents={"exact_match": text}), sites=sites)
        assert (call, verdict.score) == (call, 1)
    token, query = server.requests[-2:]
    assert json.loads(token.body) == {"username": "admin", "password": "admin1234"}
    assert query.headers["authorization"] == "Bearer secret"


def test_latest_order_url_from_the_shops_api(server: PagesServer) -> None:
    caller = Caller(serve_api(server), Accounts(), "")
    url = asyncio.run(caller.call("func:shopping_get_latest_order_url()", cast("Any", None)))
    assert url == f"http://{server.address}/sales/order/view/order_id/191/"
    assert "searchCriteria%5BsortOrders%5D%5B0%5D%5Bdirection%5D=DESC" in server.requests[-1].path


def test_refused_api_request_is_a_fault(server: PagesServer, judge: JudgeEval) -> None:
    sites = serve_api(server)
    server.pages["/rest/default/V1/integration/admin/token"] = Page("{}", status=401)
    task_eval = one_target(locator="func:shopping_get_sku_latest_review_author('B0')")
    with pytest.raises(EnvFault, match=r"shop's API .* as boss failed: .*401"):
        judge(task_eval, sites=sites, accounts=Accounts.of({"shopping_admin": ("boss", "x")}))


def test_page_that_cannot_be_loaded_is_a_fault(server: PagesServer, judge: JudgeEval) -> None:
    server.pages["/broken"] = Page("oh", status=502)
    with pytest.raises(EnvFault, match=r"shop\.example/broken returned status 502"):
        judge(one_target(url="__SHOPPING__/broken"))
    with pytest.raises(EnvFault, match=r"http://down\.example/x .*can't be evaluated: .*ERR_CONNECTION_REFUSED"):
        judge(one_target(url="__GITLAB__/x"))


class NavigatingPage:
    """A page whose first evaluation fails because it is navigating."""

    def __init__(self, error: str) -> None:
        self.errors = [error]

    async def content(self) -> str:
        if self.errors:
            raise Error(self.errors.pop())
        return "tea"

    async def evaluate(self, script: str) -> str:
        return await self.content()

    async def wait_for_load_state(self) -> None:
        assert not self.errors


@pytest.mark.parametrize("locator", ["", "document.title"])
def test_navigating_page_is_evaluated_after_loading(locator: str) -> None:
    def score(error: str) -> float:
        session = cast("Session", SimpleNamespace(tab=SimpleNamespace(page=NavigatingPage(error))))
        caller = Caller(SITES, Accounts(), "")
        return asyncio.run(program_html.score(one_target(locator=locator)["program_html"], session, caller))

    assert score("Page.content: Unable to retrieve content because the page is navigating") == 1
    with pytest.raises(EnvFault, match="The page last .*can't be evaluated: Target closed"):  # noqa: RUF043
        score("Target closed")


def test_closed_last_tab_is_evaluated_as_blank(shop: PagesServer, judge: JudgeEval, session: Session, run: Run) -> None:
    run(session.tab.page.close())
    assert judge(one_target(), "tea").score == 0


def test_score_is_the_product_of_the_parts(shop: PagesServer, judge: JudgeEval, tmp_path: Path) -> None:
    task_eval = {
        **one_target(),
        "eval_types": ["string_match", "url_match", "program_html"],
        "reference_answers": {"exact_match": "42"},
        "reference_url": "__SHOPPING__/items",
        "url_note": "GOLD in PRED",
    }
    full_scores = {"string_match": 1.0, "url_match": 1.0, "program_html": 1.0}
    assert judge(task_eval, "42") == Verdict(1.0, full_scores)
    assert judge(task_eval, "41") == Verdict(0.0, {**full_scores, "string_match": 0.0})
    assert judge({**task_eval, "reference_url": "__SHOPPING__/other"}, "42") == Verdict(
        0.0, {**full_scores, "url_match": 0.0}
    )


def test_calls_are_parsed() -> None:
    assert parse_call("func:shopping_get_latest_order_url()") == Call("shopping_get_latest_order_url", ())
    assert parse_call("func:get_query_text(__page__, 'a > b')") == Call("get_query_text", ("a > b",))


@pytest.mark.parametrize(
    ("call", "message"),
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
def test_other_calls_are_rejected(call: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        parse_call(call)


def test_evaluation_never_executes_python_code_of_tasks() -> None:
    calls = [
        node.func.id
        for file in Path(evaluation.__file__).parent.glob("*.py")
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
    ]
    assert "str" in calls, "the search found no calls, so it is broken"
    assert {"eval", "exec", "compile", "__import__", "getattr"}.isdisjoint(calls)
