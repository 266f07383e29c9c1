"""Constants shared by the admin site and its tasks: order states, carriers, customer groups."""

from __future__ import annotations

STATUSES = ("pending", "processing", "on hold", "shipped", "complete", "cancelled", "returned")
CARRIERS = ("Ridgeway Parcel", "Swift Post", "Harrier Express")
GROUPS = ("General", "Wholesale", "Retailer", "Staff")
