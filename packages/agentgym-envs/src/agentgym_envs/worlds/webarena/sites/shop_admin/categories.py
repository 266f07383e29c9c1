"""Product categories: the list and the edit form."""

from __future__ import annotations

from starlette.responses import Response

from agentgym_envs.worlds.webarena.sites.shop_admin.dashboard import count, get, post
from agentgym_envs.worlds.webarena.sites.shop_admin.grid import Column, Filter, Grid, Option, listing
from agentgym_envs.worlds.webarena.sites.web import Visit

GRID = Grid(
    select="""SELECT categories.id, categories.name, departments.name AS department,
            count(products.id) AS products, total(products.active) AS enabled, total(products.stock) AS stock
        FROM categories JOIN departments ON departments.id = categories.department
        LEFT JOIN products ON products.category = categories.id""",
    columns=(
        Column("Category", "name"),
        Column("Department", "department"),
        Column("Products", "products", right=True),
        Column("Enabled", "enabled", right=True),
        Column("Pieces in stock", "stock", right=True),
    ),
    filters=(
        Filter("name", "Name", "categories.name LIKE ? ESCAPE '\\'"),
        Filter("department", "Department", "categories.department = ?", "choice"),
    ),
    group="GROUP BY categories.id",
    order="name",
    down=False,
)


@get("/categories")
def categories(visit: Visit) -> Response:
    """List all categories."""
    return visit.render("categories.html", list=listing(visit, GRID, {"department": _departments(visit)}))


@get("/categories/{category:int}")
def category_page(visit: Visit, category: int) -> Response:
    """Show the form for a category."""
    found = visit.one("SELECT * FROM categories WHERE id = ?", category, what="category")
    return visit.render("category.html", category=found, departments=_departments(visit), errors=[])


@post("/categories/{category:int}")
def change_category(visit: Visit, category: int) -> Response:
    """Save the name and the department."""
    found = visit.one("SELECT * FROM categories WHERE id = ?", category, what="category")
    name, department = visit.text("name", 60), count(visit.text("department"))
    taken = visit.value("SELECT id FROM categories WHERE name = ? AND id <> ?", name, category)
    known = visit.value("SELECT id FROM departments WHERE id = ?", department)
    wrong = {"Enter a name.": not name, "Another category has this name.": taken, "Choose a department.": not known}
    errors = [text for text, holds in wrong.items() if holds]
    if errors:
        offered = _departments(visit)
        return visit.render("category.html", 422, category=found, departments=offered, errors=errors)
    visit.run("UPDATE categories SET name = ?, department = ? WHERE id = ?", name, department, category)
    return visit.redirect("/categories", f"The category {name} was saved.")


def _departments(visit: Visit) -> list[Option]:
    return [(str(row["id"]), row["name"]) for row in visit.all("SELECT id, name FROM departments ORDER BY name")]
