"""The admin site's task templates."""

from __future__ import annotations

from agentgym_envs.worlds.webarena.sites.shop_admin import (
    tasks_goods,
    tasks_months,
    tasks_orders,
    tasks_people,
    tasks_refunds,
    tasks_reports,
)

TEMPLATES = (
    *tasks_reports.TEMPLATES,
    *tasks_orders.TEMPLATES,
    *tasks_goods.TEMPLATES,
    *tasks_people.TEMPLATES,
    *tasks_months.TEMPLATES,
    *tasks_refunds.TEMPLATES,
)
