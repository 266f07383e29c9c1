"""Tests of the shop's administration: pages, forms, permissions, reports and task templates."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Callable
from typing import Any

import pytest
from agentgym_envs.worlds.webarena.sites.server import load_site
from agentgym_envs.worlds.webarena.sites.shop_admin.dashboard import cents, count
from agentgym_envs.worlds.webarena.sites.shop_admin.tasks import TEMPLATES
from agentgym_envs.worlds.webarena.sites.store import database
from agentgym_envs.worlds.webarena.sites.tasks import Databases, deal
from hypothesis import given
from hypothesis import strategies as st

Browse = Callable[..., Any]


@pytest.fixture
def admin(browse: Browse) -> Any:
    return browse("shopping_admin")


def first_value(admin: Any, sql: str) -> Any:
    return admin.rows(sql)[0][0]


def test_pages_load_with_a_heading(admin: Any) -> None:
    order = first_value(admin, "SELECT id FROM orders WHERE status = 'processing'")
    ids = {"order": order, "product": 5, "category": 3, "account": 7, "review": 11, "message": 2, "code": "FIVEOFF"}
    paths = {route.path for route in load_site("shopping_admin").routes if "GET" in (route.methods or ())}
    assert len(paths) > 25
    for path in sorted(paths):
        address = re.sub(r"\{(\w+)(:int)?\}", lambda hole: str(ids[hole[1]]), path)
        answer = admin.get(address)
        assert answer.status_code == 200, address
        assert "<h1>" in answer.text, address


@pytest.mark.long
def test_pages_survive_unusual_urls(admin: Any) -> None:
    paths = [r.path for r in load_site("shopping_admin").routes if "GET" in (r.methods or ()) and "{" not in r.path]
    queries = ["page=-3&sort=nothing", "page=9999999999999&sort=id&dir=up", "from=2025-02-31&to=x&least=-&most=1e9"]
    queries += [
        "status=%27%3B--&name=%25_%5C&category=zzz&by=century&threshold=-1&number=%C2%B2",
        "customer=" + "a" * 5000,
    ]
    for path in paths:
        for query in queries:
            assert admin.get(f"{path}?{query}").status_code == 200, (path, query)
    for address in ("/orders/99999999999", "/products/0", "/coupons/%00", "/customers/2", "/nowhere"):
        assert admin.get(address).status_code == 404, address


def test_forms_survive_unusual_input(admin: Any) -> None:
    ids = {"order": 22400, "product": 5, "category": 3, "account": 7, "message": 2, "code": "FIVEOFF", "number": 1}
    unusual = {"selected": ["x", "99999999999"], "action": "²", "price": "٣", "stock": "-1", "category": "a" * 9000}
    for route in load_site("shopping_admin").routes:
        if "POST" in (route.methods or ()) and route.path != "/logout":
            address = re.sub(r"\{(\w+)(:int)?\}", lambda hole: str(ids[hole[1]]), route.path)
            for data in ({}, unusual):
                assert admin.post(address, data=data).status_code < 500, address


def test_only_administrators_have_access(browse: Browse) -> None:
    guest = browse("shopping_admin", signed_in=False)
    assert "User name" in guest.get("/orders").text
    assert guest.post("/coupons/FIVEOFF/delete").url.path == "/login"
    shopper = guest.post("/login", data={"name": "emma.holt", "password": "harbor-42"})
    assert shopper.status_code == 422
    guest.cookies.set("session", "shopper")
    refusal = guest.get("/orders")
    assert refusal.status_code == 403
    assert "Only administrators" in refusal.text
    assert "Sections" not in refusal.text
    assert guest.post("/coupons/FIVEOFF/delete").status_code == 403
    assert first_value(guest, "SELECT count(*) FROM coupons WHERE code = 'FIVEOFF'") == 1


def test_sign_in_redirects_back_and_sign_out_works(browse: Browse) -> None:
    clerk = browse("shopping_admin", signed_in=False)
    login_page = clerk.get("/reports/sales?by=year")
    next_path = re.search(r'name="next" value="([^"]+)"', login_page.text)
    assert next_path is not None
    signed_in = clerk.post("/login", data={"name": "admin", "password": "ledger-77", "next": next_path[1]})
    assert signed_in.url.path == "/reports/sales"
    assert "Welcome back." in signed_in.text
    assert clerk.post("/logout").url.path == "/login"
    assert clerk.get("/").url.path == "/login"


def test_filters_select_orders_and_report_invalid_dates(admin: Any) -> None:
    (expected,) = admin.rows(
        "SELECT count(*) FROM orders WHERE status = 'cancelled' AND date(placed) BETWEEN '2024-05-01' AND '2024-05-31'"
        " AND total >= 5000"
    )[0]
    page = admin.get("/orders?status=cancelled&from=2024-05-01&to=2024-05-31&least=50").text
    assert f"{expected} order{'s' if expected != 1 else ''} found" in page
    american = admin.get(
        "/orders", params={"status": "cancelled", "from": "5/1/2024", "to": "May 31, 2024", "least": "50"}
    )
    assert f"{expected} order{'s' if expected != 1 else ''} found" in american.text
    assert "isn&#39;t a date" in admin.get("/orders?from=May").text


def test_list_can_be_sorted(admin: Any) -> None:
    page = admin.get("/products?sort=price&dir=desc").text
    shown = [float(text.replace(",", "")) for text in re.findall(r'<td class="right">\$([\d,.]+)</td>\s*<td', page)]
    highest_price = first_value(admin, "SELECT max(price) FROM products")
    assert shown[0] == highest_price / 100
    assert 'aria-sort="descending"' in page


def test_order_status_follows_its_transitions(admin: Any) -> None:
    order = first_value(admin, "SELECT id FROM orders WHERE status = 'pending'")

    def status() -> str:
        return first_value(admin, f"SELECT status FROM orders WHERE id = {order}")

    assert admin.post(f"/orders/{order}/complete").status_code == 403
    for action, expected in (("hold", "on hold"), ("unhold", "pending"), ("invoice", "processing")):
        assert admin.post(f"/orders/{order}/{action}").status_code == 200
        assert status() == expected
    refused = admin.post(f"/orders/{order}/ship", data={"carrier": "Swift Post"})
    assert refused.status_code == 422
    assert "tracking number" in refused.text
    assert status() == "processing"
    admin.post(f"/orders/{order}/ship", data={"carrier": "Swift Post", "tracking": "LK1"})
    assert admin.rows("SELECT carrier, tracking FROM shipments WHERE order_id = ?", order) == [("Swift Post", "LK1")]
    admin.post(f"/orders/{order}/complete")
    admin.post(f"/orders/{order}/refund", data={"reason": "Broken"})
    assert status() == "returned"
    assert admin.rows("SELECT refunds.total = orders.total FROM refunds JOIN orders ON orders.id = order_id"
                       " WHERE order_id = ?", order) == [(1,)]  # fmt: skip
    assert admin.post(f"/orders/{order}/cancel").status_code == 403


def test_single_items_are_refunded_once(admin: Any) -> None:
    order, status = admin.rows(
        "SELECT orders.id, status FROM orders JOIN order_items ON order_id = orders.id WHERE status = 'complete'"
        " AND discount = 0 GROUP BY orders.id HAVING count(*) > 1"
    )[0]
    item, amount = admin.rows("SELECT id, price * quantity FROM order_items WHERE order_id = ?", order)[0]
    assert f"${amount / 100:,.2f}" in admin.get(f"/orders/{order}/refund").text
    for data in ({"item": item}, {"item": "999999", "reason": "Broken"}, {"item": "x", "reason": "Broken"}):
        assert admin.post(f"/orders/{order}/refund", data=data).status_code == 422
    page = admin.post(f"/orders/{order}/refund", data={"item": item, "reason": "Broken"}).text
    assert "(in part)" in page
    assert f'href="/orders/{order}/refund"' not in page
    refund = "SELECT item, refunds.total, status FROM refunds JOIN orders ON orders.id = order_id WHERE order_id = ?"
    assert admin.rows(refund, order) == [(item, amount, status)]
    assert admin.post(f"/orders/{order}/refund", data={"reason": "Broken"}).status_code == 403


def test_cancelling_restores_the_stock(admin: Any) -> None:
    order = first_value(admin, "SELECT id FROM orders WHERE status = 'on hold'")
    query = "SELECT product, stock, quantity FROM order_items JOIN products ON products.id = product WHERE order_id = ?"
    before = admin.rows(query, order)
    admin.post(f"/orders/{order}/cancel")
    assert admin.rows(query, order) == [(product, stock + quantity, quantity) for product, stock, quantity in before]
    assert first_value(admin, f"SELECT status FROM orders WHERE id = {order}") == "cancelled"


def test_comments_are_internal_by_default(admin: Any) -> None:
    admin.post("/orders/22400/comment", data={"text": "<b>One</b>"})
    page = admin.post("/orders/22400/comment", data={"text": "Two", "visible": "1"}).text
    assert "&lt;b&gt;One&lt;/b&gt;" in page
    comments = admin.rows("SELECT text, visible FROM order_comments WHERE order_id = 22400 ORDER BY id DESC LIMIT 2")
    assert comments == [("Two", 1), ("<b>One</b>", 0)]


def test_products_are_validated_added_and_changed(admin: Any) -> None:
    form = {"name": "Test Mug", "sku": "T-1", "price": "12.5", "stock": "4", "category": "3", "active": "1"}
    assert "below the price" in admin.post("/products/new", data=form | {"sale_price": "13"}).text
    assert "whole number" in admin.post("/products/new", data=form | {"stock": "many"}).text
    assert first_value(admin, "SELECT count(*) FROM products WHERE sku = 'T-1'") == 0
    added = admin.post("/products/new", data=form)
    assert "The product Test Mug was added." in added.text
    assert "Another product has this SKU." in admin.post("/products/new", data=form).text
    admin.post(added.url.path, data=form | {"sale_price": "9.99", "active": "0"})
    query = "SELECT price, sale_price, stock, active FROM products WHERE sku = 'T-1'"
    assert admin.rows(query) == [(1250, 999, 4, 0)]


def test_stock_can_be_changed_in_the_list(admin: Any) -> None:
    assert admin.post("/products/5/stock", data={"stock": "321"}).json()["stock"] == 321
    assert "error" in admin.post("/products/5/stock", data={"stock": "-4"}).json()
    assert first_value(admin, "SELECT stock FROM products WHERE id = 5") == 321


def test_products_can_be_changed_in_bulk(admin: Any) -> None:
    form = {"selected": ["4", "6"], "back": "/products?page=2"}
    assert "tick the boxes" in admin.post("/products/mass", data={"action": "enable"}).text
    back = admin.post("/products/mass", data=form | {"action": "disable"})
    assert str(back.url).endswith("/products?page=2")
    assert "2 products were disabled." in back.text
    assert admin.rows("SELECT id FROM products WHERE active = 0") == [(4,), (6,)]
    before = admin.rows("SELECT price FROM products WHERE id IN (4, 6)")
    admin.post("/products/mass", data=form | {"action": "price", "percent": "-50"})
    assert admin.rows("SELECT price FROM products WHERE id IN (4, 6)") == [((p + 1) // 2,) for (p,) in before]
    assert first_value(admin, "SELECT count(*) FROM products WHERE sale_price >= price") == 0
    assert admin.post("/products/mass", data=form | {"action": "price", "percent": "-100"}).status_code == 403


def test_ordered_products_cannot_be_deleted(admin: Any) -> None:
    ordered = first_value(admin, "SELECT product FROM order_items")
    new = first_value(admin, "SELECT id FROM products WHERE id NOT IN (SELECT product FROM order_items)")
    form = {"action": "delete", "selected": [str(ordered), str(new)]}
    assert admin.post("/products/mass", data=form).status_code == 403
    admin.post("/products/mass", data=form | {"selected": [str(new)]})
    assert admin.rows("SELECT id FROM products WHERE id IN (?, ?)", ordered, new) == [(ordered,)]


def test_reviews_can_be_moderated_in_bulk(admin: Any) -> None:
    review_ids = [str(row[0]) for row in admin.rows("SELECT id FROM reviews WHERE status = 'pending' LIMIT 3")]
    for action, status in (("approve", "approved"), ("reject", "rejected"), ("pend", "pending")):
        admin.post("/reviews/mass", data={"selected": review_ids, "action": action})
        assert admin.rows(f"SELECT DISTINCT status FROM reviews WHERE id IN ({','.join(review_ids)})") == [(status,)]
    admin.post("/reviews/mass", data={"selected": review_ids, "action": "delete"})
    assert admin.rows(f"SELECT id FROM reviews WHERE id IN ({','.join(review_ids)})") == []


def test_customers_can_be_added_and_edited(admin: Any) -> None:
    form = {"first_name": "Ada", "last_name": "Test", "email": "ada@test.example", "customer_group": "Retailer"}
    form |= {"active": "1", "phone": "", "password": "short"}
    assert "at least 6" in admin.post("/customers/new", data=form).text
    added = admin.post("/customers/new", data=form | {"password": "long enough"})
    assert "The customer Ada Test was added." in added.text
    assert "has this email" in admin.post("/customers/7/edit", data=form).text
    admin.post("/customers/7/edit", data=form | {"email": "other@test.example", "active": "0"})
    expected = [("Ada", "other@test.example", "Retailer", 0)]
    assert admin.rows("SELECT first_name, email, customer_group, active FROM accounts WHERE id = 7") == expected
    assert "Rings at noon" in admin.post("/customers/7/note", data={"text": "Rings at noon"}).text


def test_coupons_can_be_created_disabled_and_deleted(admin: Any) -> None:
    form = {"code": "test-7", "description": "A test", "kind": "amount", "value": "7.50", "minimum": "30"}
    form |= {"starts": "2025-07-01", "ends": "2025-07-09"}
    assert "before the start" in admin.post("/coupons/new", data=form | {"ends": "2025-06-01"}).text
    assert "percentage" in admin.post("/coupons/new", data=form | {"kind": "percent", "value": "0"}).text
    assert "was added" in admin.post("/coupons/new", data=form).text
    assert "has this code" in admin.post("/coupons/new", data=form).text
    query = "SELECT kind, value, minimum, active FROM coupons WHERE code = 'TEST-7'"
    assert admin.rows(query) == [("amount", 750, 3000, 1)]
    assert 'value="7.50"' in admin.get("/coupons/TEST-7").text
    admin.post("/coupons/TEST-7/switch", data={"back": "/coupons"})
    assert admin.rows(query)[0][3] == 0
    admin.post("/coupons/TEST-7/delete")
    assert admin.rows(query) == []


def test_subscribers_messages_and_returns_can_be_handled(admin: Any) -> None:
    email = first_value(admin, "SELECT email FROM newsletter WHERE status = 'subscribed'")
    admin.post("/subscribers/change", data={"email": email, "action": "unsubscribe", "back": "/subscribers"})
    assert admin.rows("SELECT status FROM newsletter WHERE email = ?", email) == [("unsubscribed",)]
    open_message = first_value(admin, "SELECT id FROM messages WHERE answered = 0")
    admin.post(f"/messages/{open_message}/answered")
    assert first_value(admin, f"SELECT answered FROM messages WHERE id = {open_message}") == 1
    return_id = first_value(admin, "SELECT id FROM returns WHERE status = 'open'")
    assert admin.post(f"/returns/{return_id}/decline").status_code == 200
    assert admin.post(f"/returns/{return_id}/decline").status_code == 403


def test_sales_reports_add_up(admin: Any) -> None:
    orders, revenue = admin.rows("SELECT count(*), sum(total) FROM orders WHERE status <> 'cancelled'")[0]
    for by in ("day", "week", "month", "year"):
        page = admin.get(f"/reports/sales?by={by}").text
        footer = page[page.index("<tfoot>") :]
        assert f">{orders}<" in footer
        assert f"${revenue / 100:,.2f}" in footer
    for path, sql in (
        ("cancelled", "SELECT count(*) FROM orders WHERE status = 'cancelled' AND placed LIKE '2024-03%'"),
        ("new-customers", "SELECT count(*) FROM accounts WHERE role = 'customer' AND joined LIKE '2024-03%'"),
    ):
        page = admin.get(f"/reports/{path}?from=2024-03-01&to=2024-03-31").text
        assert re.search(f'2024-03</th><td class="right">{first_value(admin, sql)}<', page), path
    page = admin.get("/reports/low-stock").text
    assert "there are 5 or fewer" in page
    admin.post("/settings", data={"store_name": "L", "contact_email": "a@b", "contact_phone": "", "low_stock": "9"})
    assert "there are 9 or fewer" in admin.get("/reports/low-stock").text


@given(st.text(max_size=12))
def test_parsers_of_amounts_and_counts_accept_any_text(text: str) -> None:
    assert cents(text) is None or cents(text) == round(float(text.replace("$", "").replace(",", "").strip()) * 100)
    assert count(text) is None or count(text) == int(text)


def test_templates_have_enough_cases_unsolved_at_the_start() -> None:
    db = sqlite3.connect(database("shop"))
    db.row_factory = sqlite3.Row
    databases: Databases = {"shop": db}
    assert len(TEMPLATES) >= 30
    for template in TEMPLATES:
        cases_by_split = deal(template, databases)
        train, dev, test = (len(cases_by_split[split]) for split in ("train", "dev", "test"))
        assert (train == dev == 0 and test >= 4) if template.held_out else (train >= 5 and dev and test), template.name
        for case in cases_by_split["test"]:
            assert case.plan[-1]["do"] == "stop"
            checks = case.eval.get("database", [])
            matches = [[list(row) for row in db.execute(check["query"])] == check["rows"] for check in checks]
            assert not (checks and all(matches)), template.name
    db.close()
