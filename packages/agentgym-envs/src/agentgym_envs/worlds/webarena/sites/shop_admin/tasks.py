"""The admin site's task templates."""

from __future__ import annotations

from agentgym_envs.worlds.webarena.sites.shop_admin import tasks_goods, tasks_orders, tasks_people, tasks_reports

TEMPLATES = (*tasks_reports.TEMPLATES, *tasks_orders.TEMPLATES, *tasks_goods.TEMPLATES, *tasks_people.TEMPLATES)
