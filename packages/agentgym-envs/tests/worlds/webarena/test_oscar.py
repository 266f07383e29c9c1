"""Tests of purchases in a third-party shop, an unmodified django-oscar from PyPI, through the registered environment.

The shopper only uses observations and actions. django-oscar isn't a dependency; without it, the tests are skipped.
"""

from __future__ import annotations

import json
import re
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import gymnasium
import pytest

COMMAND = "uv run --with django-oscar pytest -m long -k oscar"
pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(find_spec("oscar") is None, reason=f"django-oscar is missing; run `{COMMAND}`."),
]

Env = gymnasium.Env[str, str]
BOOK = "The Patient Gardener"
PURCHASE: dict[str, Any] = {
    "sites": ["shopping"],
    "task_id": 1,
    "start_url": "__SHOPPING__/",
    "intent": f"Order two copies of {BOOK} for ada@example.com, to be sent to Ada Byron, 12 St James's Square, "
    "5003 Bergen, Norway. What is the order's number?",
    "eval": {
        "eval_types": ["string_match", "url_match", "program_html"],
        "reference_answers": {"must_include": ["100001"]},  # the number of the shop's first basket
        "reference_url": "__SHOPPING__/checkout/thank-you",
        "program_html": [
            {
                "url": "last",
                "locator": "document.body.innerText",
                "required_contents": {"must_include": ["Order 100001", BOOK, "£48.00", "5003", "Norway"]},
            },
            {
                "url": "__SHOPPING__/catalogue/the-patient-gardener_2/",
                "locator": "document.querySelector('.availability').innerText",
                "required_contents": {"exact_match": "In stock (7 available)"},
            },
        ],
    },
}


class Shopper:
    """A scripted policy that only uses the current observation."""

    def __init__(self, env: Env) -> None:
        self.env = env
        self.text = env.reset(options={"task": "webarena/oscar/1"})[0]

    def act(self, action: str) -> None:
        """Take an action, which must be valid and not end the episode."""
        self.text, _, terminated, truncated, info = self.env.step(action)
        assert info["valid"] and not terminated and not truncated, (action, self.text)

    def act_on(self, role: str, name: str, action: str = "click [#]") -> None:
        """Take an action on the first element with the given role and name, after scrolling down to it."""
        line = re.compile(rf"^\t*\[(\d+)\] {role} {re.escape(repr(name))}(?: |$)", re.MULTILINE)
        while (found := line.search(self.text)) is None:
            self.act("scroll [down]")  # fails at the end of the page
        self.act(action.replace("#", found[1]))

    def type(self, name: str, text: str, role: str = "textbox") -> None:
        """Type into a field, without Enter."""
        self.act_on(role, name, f"type [#] [{text}] [0]")

    def stop(self, answer: str) -> tuple[float, dict[str, float]]:
        """Stop, and return the reward and its parts."""
        _, reward, terminated, _, info = self.env.step(f"stop [{answer}]")
        assert terminated
        return float(reward), info["raw"]["parts"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the task file and the shop's database."""
    return tmp_path_factory.mktemp("oscar")


@pytest.fixture(scope="module")
def env(folder: Path) -> Iterator[Env]:
    """An environment with the task above, on a running shop."""
    script = Path(__file__).with_name("oscar_shop.py")
    pipe = subprocess.PIPE
    with (
        (folder / "log").open("w") as log,
        subprocess.Popen([sys.executable, script, folder], stdin=pipe, stdout=pipe, stderr=log, text=True) as shop,
    ):
        assert shop.stdout is not None
        port = shop.stdout.readline().strip()
        assert port, (folder / "log").read_text()
        (folder / "oscar.json").write_text(json.dumps([PURCHASE]))
        sites = {"shopping": f"http://127.0.0.1:{port}"}
        env = gymnasium.make("agentgym/WebArena-v0", task_set=folder / "oscar.json", sites=sites)
        yield env
        env.close()


def test_purchase_is_scored_and_stored(env: Env, folder: Path) -> None:
    shopper = Shopper(env)
    shopper.act_on("textbox", "Search", "type [#] [patient gardener]")
    shopper.act_on("link", BOOK)
    shopper.act_on("button", "Add to cart")
    shopper.act_on("button", "View cart")
    shopper.type("", "2", "spinbutton")
    shopper.act_on("button", "Update")
    shopper.act_on("link", "Proceed to checkout")
    shopper.type("My email address is *", "ada@example.com")
    shopper.act_on("button", "Continue")
    address = {"First name": "Ada", "Last name": "Byron", "First line of address": "12 St James's Square"}
    for field, text in (address | {"City": "Bergen", "Post/Zip-code": "5003"}).items():
        shopper.type(f"{field} *", text)
    shopper.act_on("combobox", "Country *", "select_option [#] [Norway]")
    shopper.act_on("button", "Continue")
    shopper.act_on("link", "Continue")  # the payment page, which is empty here
    shopper.act_on("button", "Place order")
    number = re.search(r"heading 'Order (\d+): confirmation'", shopper.text)
    assert number, shopper.text
    assert shopper.stop(number[1]) == (1.0, {"string_match": 1.0, "url_match": 1.0, "program_html": 1.0})
    with closing(sqlite3.connect(folder / "shop.sqlite")) as db:
        orders = db.execute(
            "SELECT number, guest_email, line.title, quantity, total_incl_tax, first_name, last_name, line1, line4, "
            "postcode, country_id FROM order_order JOIN order_line AS line ON order_id = order_order.id "
            "JOIN order_shippingaddress AS address ON address.id = shipping_address_id"
        ).fetchall()
    assert orders == [("100001", "ada@example.com", BOOK, 2, 48, *address.values(), "Bergen", "5003", "NO")]


def test_answer_without_a_purchase_scores_0(env: Env) -> None:
    shopper = Shopper(env)
    assert "StaticText '£0.00'" in shopper.text
    address = re.search(r"^URL: (http://[^/]+)", shopper.text, re.MULTILINE)
    assert address
    shopper.act(f"goto [{address[1]}/checkout/thank-you/]")
    assert shopper.stop("100001") == (0.0, {"string_match": 1.0, "url_match": 0.0, "program_html": 0.0})
