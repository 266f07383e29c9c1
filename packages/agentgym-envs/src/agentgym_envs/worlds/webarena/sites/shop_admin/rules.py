"""Words the administration and its tasks agree on: states of orders, carriers, groups of customers."""

from __future__ import annotations

STATUSES = ("pending", "processing", "on hold", "shipped", "complete", "cancelled", "returned")
CARRIERS = ("Ridgeway Parcel", "Swift Post", "Harrier Express")
GROUPS = ("General", "Wholesale", "Retailer", "Staff")
