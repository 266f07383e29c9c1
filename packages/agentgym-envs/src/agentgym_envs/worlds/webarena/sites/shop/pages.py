"""The store's pages.

Three features need JavaScript (`static/shop.js`): search suggestions, a price that follows the chosen options, and the
quick view of a product.
"""

from __future__ import annotations

from agentgym_envs.worlds.webarena.sites.shop import (
    basket,
    browse,
    checkout,
    customer,
    orders,
    product,
    service,
    wish_lists,
)
from agentgym_envs.worlds.webarena.sites.shop.front import site

__all__ = ["basket", "browse", "checkout", "customer", "orders", "product", "service", "site", "wish_lists"]
