"""Tests of the shop: its data, pages, forms, and refusals."""

from __future__ import annotations

from typing import Any

import pytest
from agentgym_envs.worlds.webarena.sites.shop.rules import METHODS, discount, dollars, shipping_cost
from agentgym_envs.worlds.webarena.sites.shop.search import pattern
from hypothesis import given
from hypothesis import strategies as st

_NEW_ORDERS = "SELECT status, total, recipient, town, coupon FROM orders WHERE placed = '2025-06-16 09:30'"
_PLAIN = "stock > 10 AND id NOT IN (SELECT product FROM product_options)"


@pytest.fixture
def shop(browse: Any) -> Any:
    """A client that is signed in as the shopper."""
    return browse("shopping")


@pytest.fixture
def guest(browse: Any) -> Any:
    """A client that isn't signed in."""
    return browse("shopping", signed_in=False)


def _product(client: Any, where: str = _PLAIN) -> tuple[int, str, int]:
    return client.rows(f"SELECT id, name, coalesce(sale_price, price) FROM products WHERE {where} ORDER BY id LIMIT 1")[
        0
    ]


def test_database_is_large_and_consistent(shop: Any) -> None:
    [(products, names, skus)] = shop.rows("SELECT count(*), count(DISTINCT name), count(DISTINCT sku) FROM products")
    assert products == names == skus
    assert products > 2800
    [(orders, own_orders)] = shop.rows("SELECT count(*), sum(account = 1) FROM orders")
    assert (orders, own_orders) == (2500, 35)
    [(reviews, texts)] = shop.rows("SELECT count(*), count(DISTINCT text) FROM reviews")
    assert reviews > 9000
    assert texts > 6500
    sums = "SELECT sum(price * quantity) FROM order_items WHERE order_id = orders.id"
    assert (
        shop.rows(f"SELECT id FROM orders WHERE subtotal <> ({sums}) OR total <> subtotal - discount + shipping") == []
    )
    mean = "SELECT avg(stars) FROM reviews WHERE product = products.id AND status = 'approved'"
    assert shop.rows(f"SELECT id FROM products WHERE rating IS NOT ({mean})") == []
    assert shop.rows("PRAGMA foreign_key_check") == []


@pytest.mark.parametrize(
    "path",
    [
        "/",
        "/department/kitchen",
        "/category/cookware",
        "/category/cookware?view=list&sort=price-down&from=20&to=90&stock=1&rating=2",
        "/offers?page=3",
        "/brand/Rook",
        "/search?q=frying+pan",
        "/search/advanced",
        "/search/advanced?sku=ROO",
        "/product/1",
        "/product/2?stars=5&order=worst",
        "/product/1/review",
        "/product/1/quick",
        "/compare",
        "/cart",
        "/account",
        "/account/orders?status=complete&page=2",
        "/account/addresses",
        "/account/addresses/new",
        "/account/profile",
        "/account/newsletter",
        "/account/reviews",
        "/wishlist",
        "/login",
        "/register",
        "/contact",
        "/track",
        "/about/shipping",
    ],
)
def test_pages_load(shop: Any, path: str) -> None:
    assert shop.get(path).status_code == 200


def test_pages_survive_unusual_input(shop: Any) -> None:
    unusual_texts = ("", "-1", "0", "999999999", "'; DROP TABLE orders", "%", "é" * 300, "1e309", "nan", "\x00")
    for path in (
        "/category/cookware",
        "/search",
        "/product/3",
        "/account/orders",
        "/track",
        "/checkout/review",
        "/suggest",
    ):
        for text in unusual_texts:
            fields = (
                "q",
                "page",
                "sort",
                "from",
                "to",
                "brand",
                "rating",
                "stars",
                "order",
                "number",
                "email",
                "address",
            )
            assert shop.get(path, params=dict.fromkeys(fields, text)).status_code in (200, 422), (path, text)
    for path in ("/product/0", "/product/999999999999", "/category/nothing", "/account/orders/1", "/nowhere"):
        assert shop.get(path).status_code == 404, path
    for path in ("/cart/add", "/wishlist/add", "/compare/add", "/cart/remove/1", "/account/orders/20001/cancel"):
        assert shop.post(path, data={"product": "nothing", "quantity": "-3"}).status_code in (200, 404), path


def test_search_and_filters_select_products(shop: Any) -> None:
    _, name, cost = _product(shop)
    assert name in shop.get("/search", params={"q": name.lower()}).text
    assert "Nothing in the store matches" in shop.get("/search?q=%25%25%25").text
    [(slug, brand)] = shop.rows(
        "SELECT slug, brand FROM products JOIN categories ON categories.id = category WHERE products.name = ?", name
    )
    filters = {"brand": brand, "from": cost / 100, "to": cost / 100, "view": "list"}
    assert name in shop.get(f"/category/{slug}", params=filters).text
    assert name not in shop.get(f"/category/{slug}", params=filters | {"brand": "Nobody"}).text


def test_suggestions_match_every_word(shop: Any) -> None:
    number, name, _ = _product(shop)
    assert {"name": name, "href": f"/product/{number}"} in shop.get("/suggest", params={"q": name}).json()
    assert shop.get("/suggest", params={"q": f"{name} nonsense"}).json() == []


def test_purchase_from_cart_to_order(shop: Any) -> None:
    number, name, cost = _product(shop)
    [(stock,)] = shop.rows("SELECT stock FROM products WHERE id = ?", number)
    assert name in shop.post("/cart/add", data={"product": number, "quantity": 2}).text
    assert "WELCOME10: Ten percent" in shop.post("/cart/coupon", data={"code": "welcome10"}).text
    [(address,)] = shop.rows("SELECT id FROM addresses WHERE account = 1 AND recipient = 'Rosa Holt'")
    choices = {"address": address, "method": "express", "payment": "card"}
    assert "Place order" in shop.get("/checkout/review", params=choices).text
    assert "Thank you for your order" in shop.post("/checkout/place", data=choices).text
    total = 2 * cost - 2 * cost // 10 + METHODS["express"].cost
    assert shop.rows(_NEW_ORDERS) == [("pending", total, "Rosa Holt", "Thornbury", "WELCOME10")]
    assert shop.rows("SELECT stock FROM products WHERE id = ?", number) == [(stock - 2,)]
    assert (
        shop.rows("SELECT * FROM cart_items WHERE account = 1")
        == shop.rows("SELECT * FROM cart_coupons WHERE account = 1")
        == []
    )


def test_product_options_are_required_and_priced(shop: Any) -> None:
    sql = (
        "SELECT products.id, coalesce(sale_price, price) + extra, kind, value FROM products JOIN product_options AS o"
        " ON o.product = products.id WHERE extra > 0 AND stock > 5"
        " AND (SELECT count(DISTINCT kind) FROM product_options WHERE product = products.id) = 1 LIMIT 1"
    )
    [(number, cost, kind, value)] = shop.rows(sql)
    assert f"Please choose an option for {kind}" in shop.post("/cart/add", data={"product": number}).text
    assert dollars(cost) in shop.post("/cart/add", data={"product": number, f"option-{kind}": value}).text
    assert shop.rows("SELECT options, quantity FROM cart_items WHERE account = 1") == [(f"{kind}: {value}", 1)]


def test_cart_refuses_unavailable_products_and_coupons(shop: Any) -> None:
    number, _, _ = _product(shop, "stock = 0 AND id NOT IN (SELECT product FROM product_options)")
    assert "out of stock" in shop.post("/cart/add", data={"product": number}).text
    scarce, _, _ = _product(shop, "stock BETWEEN 1 AND 9 AND id NOT IN (SELECT product FROM product_options)")
    assert shop.post("/cart/add", data={"product": scarce, "quantity": 50}).status_code == 403
    assert shop.rows("SELECT * FROM cart_items WHERE account = 1") == []
    assert "is not valid" in shop.post("/cart/coupon", data={"code": "SPRING25"}).text
    assert "Your cart is empty" in shop.get("/checkout").text


def test_lines_of_a_product_share_its_stock(shop: Any) -> None:
    [(number, name, stock, kind)] = shop.rows(
        "SELECT products.id, name, stock, min(kind) FROM products JOIN product_options ON product = products.id"
        " WHERE stock BETWEEN 6 AND 90"
        " GROUP BY products.id HAVING count(DISTINCT kind) = 1 AND count(value) > 1 LIMIT 1"
    )
    first, second = (
        {"product": number, f"option-{kind}": value}
        for (value,) in shop.rows("SELECT value FROM product_options WHERE product = ? LIMIT 2", number)
    )
    refusal = f"Only {stock} of {name} are left."
    shop.post("/cart/add", data=first | {"quantity": stock - 1})
    shop.post("/cart/add", data=second)
    assert refusal in shop.post("/cart/add", data=second).text
    quantities = "SELECT quantity FROM cart_items WHERE account = 1 ORDER BY id"
    assert shop.rows(quantities) == [(stock - 1,), (1,)]

    lines = [line for (line,) in shop.rows("SELECT id FROM cart_items WHERE account = 1 ORDER BY id")]
    assert refusal in shop.post("/cart/update", data={f"quantity-{lines[1]}": 2}).text
    assert shop.rows(quantities) == [(stock - 1,), (1,)]
    shop.post("/cart/update", data={f"quantity-{lines[0]}": stock - 2, f"quantity-{lines[1]}": 2})
    assert shop.rows(quantities) == [(stock - 2,), (2,)]

    shop.change("UPDATE products SET stock = ? WHERE id = ?", stock - 1, number)  # bought by someone else
    [(address,)] = shop.rows("SELECT id FROM addresses WHERE account = 1 LIMIT 1")
    choices = {"address": address, "method": "express", "payment": "card"}
    assert f"Only {stock - 1} of {name} are left." in shop.post("/checkout/place", data=choices).text
    assert shop.rows(_NEW_ORDERS) == []
    assert shop.rows("SELECT stock FROM products WHERE id = ?", number) == [(stock - 1,)]


def test_cart_lines_can_be_changed_and_removed(shop: Any) -> None:
    number, name, _ = _product(shop)
    shop.post("/cart/add", data={"product": number})
    [(line,)] = shop.rows("SELECT id FROM cart_items WHERE account = 1")
    shop.post("/cart/update", data={f"quantity-{line}": 4})
    assert shop.rows("SELECT quantity FROM cart_items WHERE account = 1") == [(4,)]
    assert f"{name} has been removed" in shop.post(f"/cart/remove/{line}").text
    assert shop.rows("SELECT * FROM cart_items WHERE account = 1") == []


def test_guest_can_buy_and_needs_the_email_to_track(guest: Any) -> None:
    number, name, _ = _product(guest)
    guest.post("/cart/add", data={"product": number})
    choices = {"method": "collect", "payment": "transfer", "recipient": "Ada Pike", "street": "1 Well Lane"}
    assert guest.post("/checkout/place", data=choices).status_code == 422
    choices |= {"town": "Selby", "postcode": "31000", "email": "ada@mail.example"}
    assert name in guest.post("/checkout/place", data=choices).text
    assert [row[2:4] for row in guest.rows(_NEW_ORDERS)] == [("Ada Pike", "Selby")]
    [(order,)] = guest.rows("SELECT max(id) FROM orders")
    assert "There is no order" in guest.get("/track", params={"number": order, "email": "a@b.example"}).text


def test_signing_in_keeps_the_guests_cart(guest: Any) -> None:
    number, _, _ = _product(guest)
    guest.post("/cart/add", data={"product": number})
    wrong = guest.post("/login", data={"name": "emma.holt", "password": "harbor-43"})
    assert (wrong.status_code, "is not right" in wrong.text) == (422, True)
    assert guest.post("/login", data={"name": "admin", "password": "ledger-77"}).status_code == 422
    assert "Welcome back, Emma" in guest.post("/login", data={"name": "emma.holt", "password": "harbor-42"}).text
    assert guest.rows("SELECT product FROM cart_items WHERE account = 1") == [(number,)]
    assert "You are signed out" in guest.post("/logout").text
    assert guest.get("/account").url.path == "/login"


def test_registration_requires_an_unused_name(guest: Any) -> None:
    person = {"first_name": "Ida", "last_name": "Quill", "name": "emma.holt", "email": "ida@mail.example", "phone": "1"}
    taken = guest.post("/register", data=person | {"password": "secret"})
    assert (taken.status_code, "already" in taken.text) == (422, True)
    assert "Welcome, Ida" in guest.post("/register", data=person | {"name": "ida", "password": "secret"}).text


def test_orders_can_be_cancelled_and_returned(shop: Any) -> None:
    [(pending, product, quantity)] = shop.rows(
        "SELECT orders.id, product, quantity FROM orders JOIN order_items ON order_id = orders.id"
        " WHERE account = 1 AND status = 'pending' ORDER BY order_items.id LIMIT 1"
    )
    [(stock,)] = shop.rows("SELECT stock FROM products WHERE id = ?", product)
    assert "has been cancelled" in shop.post(f"/account/orders/{pending}/cancel").text
    assert shop.rows("SELECT stock FROM products WHERE id = ?", product) == [(stock + quantity,)]
    assert shop.post(f"/account/orders/{pending}/cancel").status_code == 403
    assert shop.post(f"/account/orders/{pending}/return", data={"reason": "Wrong item"}).status_code == 403
    [(complete,)] = shop.rows(
        "SELECT id FROM orders WHERE account = 1 AND status = 'complete'"
        " AND id NOT IN (SELECT order_id FROM returns) ORDER BY id LIMIT 1"
    )
    assert "choose a reason" in shop.post(f"/account/orders/{complete}/return", data={"reason": "?"}).text
    assert "has been received" in shop.post(f"/account/orders/{complete}/return", data={"reason": "Wrong item"}).text
    assert shop.rows("SELECT reason, status FROM returns WHERE order_id = ?", complete) == [("Wrong item", "open")]
    assert f"Invoice for order {complete}" in shop.get(f"/account/orders/{complete}/invoice").text


def test_reordering_adds_all_items_or_none(shop: Any) -> None:
    [(order,)] = shop.rows(
        "SELECT orders.id FROM orders JOIN order_items ON order_id = orders.id JOIN products ON products.id = product"
        " WHERE account = 1 GROUP BY orders.id HAVING count(*) > 1 AND min(active AND stock >= quantity) LIMIT 1"
    )
    reorder = f"/account/orders/{order}/reorder"
    items = shop.rows("SELECT product, options, quantity FROM order_items WHERE order_id = ? ORDER BY id", order)
    cart = "SELECT product, options, quantity FROM cart_items WHERE account = 1 ORDER BY id"
    last, _, quantity = items[-1]
    shop.change("UPDATE products SET stock = ? WHERE id = ?", quantity - 1, last)
    assert shop.post(reorder).status_code == 403
    assert shop.rows(cart) == []
    shop.change("UPDATE products SET stock = ?, active = 0 WHERE id = ?", quantity, last)
    assert "is not sold any more" in shop.post(reorder).text
    assert shop.rows(cart) == []
    shop.change("UPDATE products SET active = 1 WHERE id = ?", last)
    assert f"The items of order {order} have been added" in shop.post(reorder).text
    assert shop.rows(cart) == items
    assert shop.post("/account/orders/1/reorder").status_code == 404


def test_orders_of_other_customers_are_inaccessible(shop: Any) -> None:
    [(other,)] = shop.rows("SELECT id FROM orders WHERE account = 3 OR account = 4 LIMIT 1")
    assert shop.get(f"/account/orders/{other}").status_code == 404
    assert shop.post(f"/account/orders/{other}/cancel").status_code == 404


def test_wish_list_items_can_be_added_noted_and_moved(shop: Any) -> None:
    number, name, _ = _product(shop, f"{_PLAIN} AND id NOT IN (SELECT product FROM wish_items WHERE account = 1)")
    assert f"{name} has been added" in shop.post("/wishlist/add", data={"product": number}).text
    [(item,)] = shop.rows("SELECT id FROM wish_items WHERE account = 1 AND product = ?", number)
    shop.post(f"/wishlist/{item}/note", data={"note": "<b>soon</b>"})
    assert "&lt;b&gt;soon&lt;/b&gt;" in shop.get("/wishlist").text
    assert "moved to your cart" in shop.post(f"/wishlist/{item}/cart").text
    assert shop.rows("SELECT product FROM cart_items WHERE account = 1") == [(number,)]
    assert shop.post(f"/wishlist/{item}/remove").status_code == 404


def test_new_reviews_wait_for_approval(shop: Any) -> None:
    review = {"stars": 2, "nickname": "E", "title": "A title nobody else has", "text": "Hm."}
    assert shop.post("/product/5/review", data=review | {"stars": ""}).status_code == 422
    assert "Thank you" in shop.post("/product/5/review", data=review).text
    assert review["title"] not in shop.get("/product/5").text
    assert review["title"] in shop.get("/account/reviews").text


def test_addresses_profile_and_password_can_be_changed(shop: Any) -> None:
    fields = {"recipient": "Emma Holt", "street": "", "town": "Selby", "postcode": "1", "phone": "2", "is_default": "1"}
    assert shop.post("/account/addresses/new", data=fields).status_code == 422
    shop.post("/account/addresses/new", data=fields | {"street": "9 Vine Street"})
    assert shop.rows("SELECT street FROM addresses WHERE account = 1 AND is_default") == [("9 Vine Street",)]
    [(default,)] = shop.rows("SELECT id FROM addresses WHERE account = 1 AND is_default")
    assert shop.post(f"/account/addresses/{default}/delete").status_code == 403
    [(other,)] = shop.rows("SELECT id FROM addresses WHERE account = 3 LIMIT 1")
    assert shop.post(f"/account/addresses/{other}/delete").status_code == 404
    profile = {"first_name": "Emma", "last_name": "Holt", "email": "admin@post.example", "phone": "555-1"}
    assert "Somebody else" in shop.post("/account/profile", data=profile).text
    assert "has been saved" in shop.post("/account/profile", data=profile | {"email": "emma@post.example"}).text
    passwords = {"current": "harbor-42", "new": "lighthouse", "again": "lighthouse!"}
    assert shop.post("/account/password", data=passwords).status_code == 422
    assert "has been changed" in shop.post("/account/password", data=passwords | {"again": "lighthouse"}).text
    assert "You are now subscribed" in shop.post("/account/newsletter", data={"subscribed": "1"}).text


def test_comparison_keeps_the_last_four_products(shop: Any) -> None:
    for number in (1, 2, 3, 4, 5):
        shop.post("/compare/add", data={"product": number})
    assert shop.rows("SELECT product FROM compare_items ORDER BY id") == [(2,), (3,), (4,), (5,)]
    shop.post("/compare/remove", data={"product": 3})
    assert shop.rows("SELECT count(*) FROM compare_items") == [(3,)]


def test_contact_messages_are_stored(guest: Any) -> None:
    message = {"name": "Ida", "email": "nowhere", "subject": "Hello", "text": "Are you there?"}
    assert "not an e-mail address" in guest.post("/contact", data=message).text
    assert "Thank you" in guest.post("/contact", data=message | {"email": "ida@mail.example"}).text
    assert guest.rows("SELECT account, answered FROM messages WHERE subject = 'Hello'") == [(None, 0)]


@given(
    st.integers(0, 10**7),
    st.sampled_from(["percent", "amount", "shipping"]),
    st.integers(0, 100),
    st.integers(0, 10**5),
)
def test_discount_never_exceeds_the_subtotal(subtotal: int, kind: str, value: int, minimum: int) -> None:
    coupon = {"kind": kind, "value": value, "minimum": minimum}
    assert 0 <= discount(coupon, subtotal) <= subtotal
    assert discount(coupon, minimum - 1) == 0
    assert shipping_cost("express", subtotal, coupon) == METHODS["express"].cost


def test_patterns_escape_wildcards() -> None:
    assert pattern("50%_\\") == "%50\\%\\_\\\\%"
