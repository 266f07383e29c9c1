"""What the store charges: shipping, discounts and the price at present. Amounts are in cents."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

FREE_FROM = 75_00
"""Subtotal from which standard delivery costs nothing."""
PRICE = "coalesce(products.sale_price, products.price)"
"""SQL for what a product costs at present, without options."""


@dataclass(frozen=True, slots=True)
class Method:
    """A way of shipping."""

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
"""Payment methods: the key a form sends, and the name orders keep."""
REASONS = ("Damaged on arrival", "Wrong item", "Does not fit", "No longer needed", "Not as described")
"""Why an order may come back."""


def shipping_cost(method: str, subtotal: int, coupon: Mapping[str, Any] | None = None) -> int:
    """What a shipping method of `METHODS` costs for a subtotal."""
    free = subtotal >= FREE_FROM or (coupon is not None and coupon["kind"] == "shipping")
    return 0 if method == "standard" and free else METHODS[method].cost


def discount(coupon: Mapping[str, Any] | None, subtotal: int) -> int:
    """What a row of `coupons` takes off a subtotal; nothing below its minimum."""
    if coupon is None or subtotal < coupon["minimum"]:
        return 0
    if coupon["kind"] == "percent":
        return subtotal * coupon["value"] // 100
    return min(subtotal, coupon["value"]) if coupon["kind"] == "amount" else 0


def dollars(cents: int) -> str:
    """An amount as people read it, such as `$1,249.50`."""
    return f"{'-' if cents < 0 else ''}${abs(cents) / 100:,.2f}"
