"""Reports on orders, searches and carts. They exclude cancelled orders unless they name them."""

from __future__ import annotations

from dataclasses import replace

from starlette.responses import Response

from agentgym_envs.worlds.webarena.sites.shop_admin.dashboard import count, get
from agentgym_envs.worlds.webarena.sites.shop_admin.grid import Column, Filter, Grid, Listing, listing
from agentgym_envs.worlds.webarena.sites.shop_admin.rules import GROUPS
from agentgym_envs.worlds.webarena.sites.web import Visit

_PERIODS = {
    "month": "substr({time}, 1, 7)",
    "day": "date({time})",
    "week": "date({time}, 'weekday 0', '-6 days')",
    "year": "substr({time}, 1, 4)",
}
_BETWEEN = (
    Filter("from", "From", "date(orders.placed) >= ?", "day"),
    Filter("to", "To", "date(orders.placed) <= ?", "day"),
)
_PER = Filter("by", "Per", "", "choice", (("month", "Month"), ("day", "Day"), ("week", "Week"), ("year", "Year")))
_KEPT = "orders.status <> 'cancelled'"

SALES = Grid(
    select="""SELECT {period} AS id, count(*) AS orders, sum(subtotal) AS subtotal, sum(discount) AS discounts,
            sum(shipping) AS shipping, sum(total) AS revenue FROM orders""",
    where=_KEPT,
    group="GROUP BY 1",
    columns=(
        Column("Period", "id"),
        Column("Orders", "orders", right=True),
        Column("Goods", "subtotal", right=True),
        Column("Discounts", "discounts", right=True),
        Column("Shipping", "shipping", right=True),
        Column("Revenue", "revenue", right=True),
    ),
    filters=(*_BETWEEN, _PER),
    order="id",
    size=20,
    totals=("orders", "subtotal", "discounts", "shipping", "revenue"),
)
CANCELLED = Grid(
    select="SELECT {period} AS id, count(*) AS orders, sum(total) AS lost FROM orders",
    where="orders.status = 'cancelled'",
    group="GROUP BY 1",
    columns=(
        Column("Period", "id"),
        Column("Cancelled orders", "orders", right=True),
        Column("Lost revenue", "lost", right=True),
    ),
    filters=(*_BETWEEN, _PER),
    order="id",
    size=20,
    totals=("orders", "lost"),
)
NEW_CUSTOMERS = Grid(
    select="SELECT {period} AS id, count(*) AS customers FROM accounts",
    where="accounts.role = 'customer'",
    group="GROUP BY 1",
    columns=(Column("Period", "id"), Column("New customers", "customers", right=True)),
    filters=(
        Filter("from", "From", "date(accounts.joined) >= ?", "day"),
        Filter("to", "To", "date(accounts.joined) <= ?", "day"),
        _PER,
    ),
    order="id",
    size=20,
    totals=("customers",),
)
BESTSELLERS = Grid(
    select="""SELECT products.id AS id, products.name AS name, products.sku AS sku, categories.name AS category,
            sum(quantity) AS quantity, count(DISTINCT orders.id) AS orders, sum(quantity * order_items.price) AS revenue
        FROM order_items JOIN orders ON orders.id = order_items.order_id
        JOIN products ON products.id = order_items.product JOIN categories ON categories.id = products.category""",
    where=_KEPT,
    group="GROUP BY products.id",
    columns=(
        Column("Product", "name"),
        Column("SKU", "sku"),
        Column("Category", "category"),
        Column("Pieces sold", "quantity", right=True),
        Column("Orders", "orders", right=True),
        Column("Revenue", "revenue", right=True),
    ),
    filters=(*_BETWEEN, Filter("category", "Category", "products.category = ?", "choice")),
    order="quantity",
)
SEARCHES = Grid(
    select="SELECT *, term AS id FROM search_terms",
    columns=(
        Column("Search term", "term"),
        Column("Uses", "uses", right=True),
        Column("Results", "results", right=True),
        Column("Last used", "last_used"),
    ),
    filters=(
        Filter("term", "Search term", "term LIKE ? ESCAPE '\\'"),
        Filter("least", "Uses from", "uses >= ?", "count"),
        Filter("results", "Results up to", "results <= ?", "count"),
    ),
    order="uses",
)
CUSTOMERS = Grid(
    select="""SELECT accounts.id AS id, first_name || ' ' || last_name AS customer, accounts.email AS email,
            sum(orders.status <> 'cancelled') AS orders, sum(orders.status = 'cancelled') AS cancelled,
            sum(iif(orders.status = 'cancelled', 0, orders.total)) AS spent
        FROM orders JOIN accounts ON accounts.id = orders.account""",
    group="GROUP BY accounts.id",
    columns=(
        Column("Customer", "customer"),
        Column("Email", "email"),
        Column("Orders", "orders", right=True),
        Column("Cancelled orders", "cancelled", right=True),
        Column("Spent", "spent", right=True),
    ),
    filters=(*_BETWEEN, Filter("group", "Group", "customer_group = ?", "choice")),
    order="spent",
)
COUPONS = Grid(
    select="""SELECT orders.coupon AS id, orders.coupon AS code, count(*) AS orders, sum(discount) AS discounts,
            sum(total) AS revenue FROM orders""",
    where=f"{_KEPT} AND orders.coupon IS NOT NULL",
    group="GROUP BY orders.coupon",
    columns=(
        Column("Coupon", "code"),
        Column("Orders", "orders", right=True),
        Column("Discounts", "discounts", right=True),
        Column("Revenue", "revenue", right=True),
    ),
    filters=_BETWEEN,
    order="orders",
    totals=("orders", "discounts", "revenue"),
)
STOCK = Grid(
    select="""SELECT products.*, categories.name AS category_name
        FROM products JOIN categories ON categories.id = products.category""",
    where="products.active = 1",
    columns=(
        Column("Product", "name"),
        Column("SKU", "sku"),
        Column("Category", "category_name"),
        Column("Stock", "stock", right=True),
    ),
    filters=(
        Filter("category", "Category", "products.category = ?", "choice"),
        Filter("threshold", "Stock up to", "products.stock <= ?", "count"),
    ),
    order="stock",
    down=False,
)
CARTS = Grid(
    select="""SELECT accounts.id AS id, first_name || ' ' || last_name AS customer, accounts.email AS email,
            sum(quantity) AS pieces, group_concat(products.name, ', ') AS content,
            sum(quantity * coalesce(sale_price, price)) AS worth
        FROM cart_items JOIN accounts ON accounts.id = cart_items.account
        JOIN products ON products.id = cart_items.product""",
    group="GROUP BY accounts.id",
    columns=(
        Column("Customer", "customer"),
        Column("Email", "email"),
        Column("Content"),
        Column("Pieces", "pieces", right=True),
        Column("Worth", "worth", right=True),
    ),
    filters=(Filter("customer", "Customer", "first_name || ' ' || last_name LIKE ? ESCAPE '\\'"),),
    order="worth",
)


@get("/reports")
def reports(visit: Visit) -> Response:
    """List the reports."""
    return visit.render("reports.html")


@get("/reports/sales")
def sales(visit: Visit) -> Response:
    """Report orders and revenue per day, week, month or year."""
    return visit.render("report_sales.html", list=_by_period(visit, SALES, "orders.placed"))


@get("/reports/cancelled")
def cancelled(visit: Visit) -> Response:
    """Report the cancelled orders per day, week, month or year."""
    return visit.render("report_cancelled.html", list=_by_period(visit, CANCELLED, "orders.placed"))


@get("/reports/new-customers")
def new_customers(visit: Visit) -> Response:
    """Report the new customers per day, week, month or year."""
    return visit.render("report_new_customers.html", list=_by_period(visit, NEW_CUSTOMERS, "accounts.joined"))


@get("/reports/bestsellers")
def bestsellers(visit: Visit) -> Response:
    """Report the bestselling products of a period."""
    return visit.render("report_bestsellers.html", list=listing(visit, BESTSELLERS, {"category": _categories(visit)}))


@get("/reports/search-terms")
def search_terms(visit: Visit) -> Response:
    """Report the shop's search terms."""
    return visit.render("report_searches.html", list=listing(visit, SEARCHES))


@get("/reports/customers")
def best_customers(visit: Visit) -> Response:
    """Report the customers by orders, revenue and cancellations."""
    groups = [(name, name) for name in GROUPS]
    return visit.render("report_customers.html", list=listing(visit, CUSTOMERS, {"group": groups}))


@get("/reports/coupons")
def coupon_use(visit: Visit) -> Response:
    """Report the revenue and the discounts of coupons."""
    return visit.render("report_coupons.html", list=listing(visit, COUPONS))


@get("/reports/low-stock")
def low_stock(visit: Visit) -> Response:
    """Report the products that are running low."""
    grid, threshold = STOCK, visit.value("SELECT value FROM settings WHERE name = 'low_stock'")
    if not visit.text("threshold"):
        grid = replace(grid, where=f"{grid.where} AND products.stock <= {count(threshold) or 0}")
    found = listing(visit, grid, {"category": _categories(visit)})
    return visit.render("report_stock.html", list=found, threshold=visit.text("threshold", 20) or threshold)


@get("/reports/carts")
def abandoned_carts(visit: Visit) -> Response:
    """Report the carts that customers have not ordered."""
    return visit.render("report_carts.html", list=listing(visit, CARTS))


def _by_period(visit: Visit, grid: Grid, time: str) -> Listing:
    """List the rows of a report per day, week, month or year of a column."""
    period = _PERIODS.get(visit.text("by"), _PERIODS["month"]).format(time=time)
    return listing(visit, replace(grid, select=grid.select.format(period=period)))


def _categories(visit: Visit) -> list[tuple[str, str]]:
    return [(str(row["id"]), row["name"]) for row in visit.all("SELECT id, name FROM categories ORDER BY name")]
