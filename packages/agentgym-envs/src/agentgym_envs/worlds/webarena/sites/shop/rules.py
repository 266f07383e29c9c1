"""Prices of the store: shipping, discounts and sale prices. Amounts are in cents."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

FREE_FROM = 75_00
"""Minimum subtotal for free standard delivery."""
PRICE = "coalesce(products.sale_price, products.price)"
"""SQL for a product's current price without options."""


@dataclass(frozen=True, slots=True)
class Method:
    """A shipping method."""

    key: str
    name: str
    cost: int
    days: str


METHODS = {
    method.key: method
    for method in (
        Method("standard", "Standard delivery", 490, "3 to 5 days"),
        Method("express", "Express delivery", 1290, "next working day"),
        Method("collect", "Collect in store", 0, "from tomorrow at Market Square, Fairhaven"),
    )
}
PAYMENTS = {"card": "Credit card", "transfer": "Bank transfer", "invoice": "Pay on invoice", "voucher": "Gift card"}
"""Payment methods: name in orders by form value."""
REASONS = ("Damaged on arrival", "Wrong item", "Does not fit", "No longer needed", "Not as described")
"""Reasons for a return."""


def shipping_cost(method: str, subtotal: int, coupon: Mapping[str, Any] | None = None) -> int:
    """Return the cost of a shipping method of `METHODS` for a subtotal."""
    free = subtotal >= FREE_FROM or (coupon is not None and coupon["kind"] == "shipping")
    return 0 if method == "standard" and free else METHODS[method].cost


def discount(coupon: Mapping[str, Any] | None, subtotal: int) -> int:
    """Return the discount of a row of `coupons`; zero below its minimum subtotal."""
    if coupon is None or subtotal < coupon["minimum"]:
        return 0
    if coupon["kind"] == "percent":
        return subtotal * coupon["value"] // 100
    return min(subtotal, coupon["value"]) if coupon["kind"] == "amount" else 0


def dollars(cents: int) -> str:
    """Format an amount, such as `$1,249.50`."""
    return f"{'-' if cents < 0 else ''}${abs(cents) / 100:,.2f}"
