from __future__ import annotations

import re
import sqlite3
from collections.abc import Callable
from typing import Any

import pytest
from agentgym_envs.worlds.webarena.sites.server import load_site
from agentgym_envs.worlds.webarena.sites.shop_admin.dashboard import cents, count, day
from agentgym_envs.worlds.webarena.sites.shop_admin.tasks import TEMPLATES
from agentgym_envs.worlds.webarena.sites.store import database
from agentgym_envs.worlds.webarena.sites.tasks import Databases, deal
from hypothesis import given
from hypothesis import strategies as st

Browse = Callable[..., Any]


@pytest.fixture
def office(browse: Browse) -> Any:
    return browse("shopping_admin")


def first(office: Any, sql: str) -> Any:
    return office.rows(sql)[0][0]


def test_every_page_answers_with_a_heading(office: Any) -> None:
    order = first(office, "SELECT id FROM orders WHERE status = 'processing'")
    ids = {"order": order, "product": 5, "category": 3, "account": 7, "review": 11, "message": 2, "code": "FIVEOFF"}
    paths = {route.path for route in load_site("shopping_admin").routes if "GET" in (route.methods or ())}
    assert len(paths) > 25
    for path in sorted(paths):
        address = re.sub(r"\{(\w+)(:int)?\}", lambda hole: str(ids[hole[1]]), path)
        answer = office.get(address)
        assert answer.status_code == 200, address
        assert "<h1>" in answer.text, address


@pytest.mark.long
def test_no_page_answers_an_odd_address_with_an_error_of_its_own(office: Any) -> None:
    paths = [r.path for r in load_site("shopping_admin").routes if "GET" in (r.methods or ()) and "{" not in r.path]
    odd = ["page=-3&sort=nothing", "page=9999999999999&sort=id&dir=up", "from=2025-02-31&to=x&least=-&most=1e9"]
    odd += ["status=%27%3B--&name=%25_%5C&category=zzz&by=century&threshold=-1&number=%C2%B2", "customer=" + "a" * 5000]
    for path in paths:
        for query in odd:
            assert office.get(f"{path}?{query}").status_code == 200, (path, query)
    for address in ("/orders/99999999999", "/products/0", "/coupons/%00", "/customers/2", "/nowhere"):
        assert office.get(address).status_code == 404, address


def test_no_form_answers_odd_input_with_an_error_of_its_own(office: Any) -> None:
    ids = {"order": 22400, "product": 5, "category": 3, "account": 7, "message": 2, "code": "FIVEOFF", "number": 1}
    junk = {"selected": ["x", "99999999999"], "action": "²", "price": "٣", "stock": "-1", "category": "a" * 9000}
    for route in load_site("shopping_admin").routes:
        if "POST" in (route.methods or ()) and route.path != "/logout":
            address = re.sub(r"\{(\w+)(:int)?\}", lambda hole: str(ids[hole[1]]), route.path)
            for data in ({}, junk):
                assert office.post(address, data=data).status_code < 500, address


def test_only_administrators_come_in(browse: Browse) -> None:
    stranger = browse("shopping_admin", signed_in=False)
    assert "User name" in stranger.get("/orders").text
    assert stranger.post("/coupons/FIVEOFF/delete").url.path == "/login"
    shopper = stranger.post("/login", data={"name": "emma.holt", "password": "harbor-42"})
    assert shopper.status_code == 422
    stranger.cookies.set("session", "shopper")
    refusal = stranger.get("/orders")
    assert refusal.status_code == 403
    assert "Only administrators" in refusal.text
    assert "Sections" not in refusal.text
    assert stranger.post("/coupons/FIVEOFF/delete").status_code == 403
    assert first(stranger, "SELECT count(*) FROM coupons WHERE code = 'FIVEOFF'") == 1


def test_signing_in_leads_to_where_one_wanted_to_go_and_out_again(browse: Browse) -> None:
    clerk = browse("shopping_admin", signed_in=False)
    door = clerk.get("/reports/sales?by=year")
    wanted = re.search(r'name="next" value="([^"]+)"', door.text)
    assert wanted is not None
    entered = clerk.post("/login", data={"name": "admin", "password": "ledger-77", "next": wanted[1]})
    assert entered.url.path == "/reports/sales"
    assert "Welcome back." in entered.text
    assert clerk.post("/logout").url.path == "/login"
    assert clerk.get("/").url.path == "/login"


def test_filters_narrow_the_list_down_and_a_wrong_one_is_told(office: Any) -> None:
    (expected,) = office.rows(
        "SELECT count(*) FROM orders WHERE status = 'cancelled' AND date(placed) BETWEEN '2024-05-01' AND '2024-05-31'"
        " AND total >= 5000"
    )[0]
    page = office.get("/orders?status=cancelled&from=2024-05-01&to=2024-05-31&least=50").text
    assert f"{expected} order{'s' if expected != 1 else ''} found" in page
    assert "isn&#39;t a date" in office.get("/orders?from=May").text


def test_a_sorted_list_is_in_order(office: Any) -> None:
    page = office.get("/products?sort=price&dir=desc").text
    shown = [float(text.replace(",", "")) for text in re.findall(r'<td class="right">\$([\d,.]+)</td>\s*<td', page)]
    dearest = first(office, "SELECT max(price) FROM products")
    assert shown[0] == dearest / 100
    assert 'aria-sort="descending"' in page


def test_an_order_goes_its_way(office: Any) -> None:
    order = first(office, "SELECT id FROM orders WHERE status = 'pending'")

    def status() -> str:
        return first(office, f"SELECT status FROM orders WHERE id = {order}")

    assert office.post(f"/orders/{order}/complete").status_code == 403
    for action, expected in (("hold", "on hold"), ("unhold", "pending"), ("invoice", "processing")):
        assert office.post(f"/orders/{order}/{action}").status_code == 200
        assert status() == expected
    refused = office.post(f"/orders/{order}/ship", data={"carrier": "Swift Post"})
    assert refused.status_code == 422
    assert "tracking number" in refused.text
    assert status() == "processing"
    office.post(f"/orders/{order}/ship", data={"carrier": "Swift Post", "tracking": "LK1"})
    assert office.rows("SELECT carrier, tracking FROM shipments WHERE order_id = ?", order) == [("Swift Post", "LK1")]
    office.post(f"/orders/{order}/complete")
    office.post(f"/orders/{order}/refund", data={"reason": "Broken"})
    assert status() == "returned"
    assert office.rows("SELECT refunds.total = orders.total FROM refunds JOIN orders ON orders.id = order_id"
                       " WHERE order_id = ?", order) == [(1,)]  # fmt: skip
    assert office.post(f"/orders/{order}/cancel").status_code == 403


def test_cancelling_puts_the_pieces_back(office: Any) -> None:
    order = first(office, "SELECT id FROM orders WHERE status = 'on hold'")
    query = "SELECT product, stock, quantity FROM order_items JOIN products ON products.id = product WHERE order_id = ?"
    before = office.rows(query, order)
    office.post(f"/orders/{order}/cancel")
    assert office.rows(query, order) == [(product, stock + quantity, quantity) for product, stock, quantity in before]
    assert first(office, f"SELECT status FROM orders WHERE id = {order}") == "cancelled"


def test_a_comment_is_internal_unless_it_is_said_to_be_shown(office: Any) -> None:
    office.post("/orders/22400/comment", data={"text": "<b>One</b>"})
    page = office.post("/orders/22400/comment", data={"text": "Two", "visible": "1"}).text
    assert "&lt;b&gt;One&lt;/b&gt;" in page
    said = office.rows("SELECT text, visible FROM order_comments WHERE order_id = 22400 ORDER BY id DESC LIMIT 2")
    assert said == [("Two", 1), ("<b>One</b>", 0)]


def test_a_product_is_added_changed_and_checked(office: Any) -> None:
    form = {"name": "Test Mug", "sku": "T-1", "price": "12.5", "stock": "4", "category": "3", "active": "1"}
    assert "below the price" in office.post("/products/new", data=form | {"sale_price": "13"}).text
    assert "whole number" in office.post("/products/new", data=form | {"stock": "many"}).text
    assert first(office, "SELECT count(*) FROM products WHERE sku = 'T-1'") == 0
    added = office.post("/products/new", data=form)
    assert "The product Test Mug was added." in added.text
    assert "Another product has this SKU." in office.post("/products/new", data=form).text
    office.post(added.url.path, data=form | {"sale_price": "9.99", "active": "0"})
    query = "SELECT price, sale_price, stock, active FROM products WHERE sku = 'T-1'"
    assert office.rows(query) == [(1250, 999, 4, 0)]


def test_the_stock_is_changed_from_within_the_list(office: Any) -> None:
    assert office.post("/products/5/stock", data={"stock": "321"}).json()["stock"] == 321
    assert "error" in office.post("/products/5/stock", data={"stock": "-4"}).json()
    assert first(office, "SELECT stock FROM products WHERE id = 5") == 321


def test_many_products_are_changed_at_once(office: Any) -> None:
    mass = {"selected": ["4", "6"], "back": "/products?page=2"}
    assert "tick the boxes" in office.post("/products/mass", data={"action": "enable"}).text
    back = office.post("/products/mass", data=mass | {"action": "disable"})
    assert str(back.url).endswith("/products?page=2")
    assert "2 products were disabled." in back.text
    assert office.rows("SELECT id FROM products WHERE active = 0") == [(4,), (6,)]
    before = office.rows("SELECT price FROM products WHERE id IN (4, 6)")
    office.post("/products/mass", data=mass | {"action": "price", "percent": "-50"})
    assert office.rows("SELECT price FROM products WHERE id IN (4, 6)") == [((p + 1) // 2,) for (p,) in before]
    assert first(office, "SELECT count(*) FROM products WHERE sale_price >= price") == 0
    assert office.post("/products/mass", data=mass | {"action": "price", "percent": "-100"}).status_code == 403


def test_products_in_orders_are_not_deleted(office: Any) -> None:
    ordered = first(office, "SELECT product FROM order_items")
    new = first(office, "SELECT id FROM products WHERE id NOT IN (SELECT product FROM order_items)")
    both = {"action": "delete", "selected": [str(ordered), str(new)]}
    assert office.post("/products/mass", data=both).status_code == 403
    office.post("/products/mass", data=both | {"selected": [str(new)]})
    assert office.rows("SELECT id FROM products WHERE id IN (?, ?)", ordered, new) == [(ordered,)]


def test_reviews_are_decided_on(office: Any) -> None:
    chosen = [str(row[0]) for row in office.rows("SELECT id FROM reviews WHERE status = 'pending' LIMIT 3")]
    for action, status in (("approve", "approved"), ("reject", "rejected"), ("pend", "pending")):
        office.post("/reviews/mass", data={"selected": chosen, "action": action})
        assert office.rows(f"SELECT DISTINCT status FROM reviews WHERE id IN ({','.join(chosen)})") == [(status,)]
    office.post("/reviews/mass", data={"selected": chosen, "action": "delete"})
    assert office.rows(f"SELECT id FROM reviews WHERE id IN ({','.join(chosen)})") == []


def test_customers_are_added_and_edited(office: Any) -> None:
    form = {"first_name": "Ada", "last_name": "Test", "email": "ada@test.example", "customer_group": "Retailer"}
    form |= {"active": "1", "phone": "", "password": "short"}
    assert "at least 6" in office.post("/customers/new", data=form).text
    added = office.post("/customers/new", data=form | {"password": "long enough"})
    assert "The customer Ada Test was added." in added.text
    assert "has this email" in office.post("/customers/7/edit", data=form).text
    office.post("/customers/7/edit", data=form | {"email": "other@test.example", "active": "0"})
    expected = [("Ada", "other@test.example", "Retailer", 0)]
    assert office.rows("SELECT first_name, email, customer_group, active FROM accounts WHERE id = 7") == expected
    assert "Rings at noon" in office.post("/customers/7/note", data={"text": "Rings at noon"}).text


def test_coupons_are_made_switched_and_deleted(office: Any) -> None:
    form = {"code": "test-7", "description": "A test", "kind": "amount", "value": "7.50", "minimum": "30"}
    form |= {"starts": "2025-07-01", "ends": "2025-07-09"}
    assert "before the start" in office.post("/coupons/new", data=form | {"ends": "2025-06-01"}).text
    assert "percentage" in office.post("/coupons/new", data=form | {"kind": "percent", "value": "0"}).text
    assert "was added" in office.post("/coupons/new", data=form).text
    assert "has this code" in office.post("/coupons/new", data=form).text
    query = "SELECT kind, value, minimum, active FROM coupons WHERE code = 'TEST-7'"
    assert office.rows(query) == [("amount", 750, 3000, 1)]
    assert 'value="7.50"' in office.get("/coupons/TEST-7").text
    office.post("/coupons/TEST-7/switch", data={"back": "/coupons"})
    assert office.rows(query)[0][3] == 0
    office.post("/coupons/TEST-7/delete")
    assert office.rows(query) == []


def test_subscribers_messages_and_returns_are_looked_after(office: Any) -> None:
    email = first(office, "SELECT email FROM newsletter WHERE status = 'subscribed'")
    office.post("/subscribers/change", data={"email": email, "action": "unsubscribe", "back": "/subscribers"})
    assert office.rows("SELECT status FROM newsletter WHERE email = ?", email) == [("unsubscribed",)]
    open_message = first(office, "SELECT id FROM messages WHERE answered = 0")
    office.post(f"/messages/{open_message}/answered")
    assert first(office, f"SELECT answered FROM messages WHERE id = {open_message}") == 1
    wish = first(office, "SELECT id FROM returns WHERE status = 'open'")
    assert office.post(f"/returns/{wish}/decline").status_code == 200
    assert office.post(f"/returns/{wish}/decline").status_code == 403


def test_reports_add_up(office: Any) -> None:
    orders, revenue = office.rows("SELECT count(*), sum(total) FROM orders WHERE status <> 'cancelled'")[0]
    for by in ("day", "week", "month", "year"):
        page = office.get(f"/reports/sales?by={by}").text
        footer = page[page.index("<tfoot>") :]
        assert f">{orders}<" in footer
        assert f"${revenue / 100:,.2f}" in footer
    ten = office.get("/reports/low-stock").text
    assert "there are 5 or fewer" in ten
    office.post("/settings", data={"store_name": "L", "contact_email": "a@b", "contact_phone": "", "low_stock": "9"})
    assert "there are 9 or fewer" in office.get("/reports/low-stock").text


@given(st.text(max_size=12))
def test_reading_an_amount_a_day_or_a_count_is_total(text: str) -> None:
    assert cents(text) is None or cents(text) == round(float(text.replace("$", "").replace(",", "").strip()) * 100)
    assert day(text) is None
    assert count(text) is None or count(text) == int(text)


def test_all_templates_have_their_cases() -> None:
    db = sqlite3.connect(database("shop"))
    db.row_factory = sqlite3.Row
    databases: Databases = {"shop": db}
    assert len(TEMPLATES) >= 30
    for template in TEMPLATES:
        dealt = deal(template, databases)
        train, dev, test = (len(dealt[split]) for split in ("train", "dev", "test"))
        assert (train == dev == 0 and test >= 4) if template.held_out else (train >= 5 and dev and test), template.name
        for case in dealt["test"]:
            assert case.plan[-1]["do"] == "stop"
            checks = case.eval.get("database", [])
            held = [[list(row) for row in db.execute(check["query"])] == check["rows"] for check in checks]
            assert not (checks and all(held)), template.name
    db.close()
