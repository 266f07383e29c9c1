"""The framework for sites: a `Site` collects pages, and a page is a function from a `Visit` to a response.

The framework wraps every page: it opens the episode's database (read-only unless the request is a POST), looks up the
signed-in account by the session, commits the writes of a successful POST, and renders the three early exits `NotFound`,
`SignInNeeded` and `Refused`.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, cast
from urllib.parse import quote, unquote, urlencode

from jinja2 import ChoiceLoader, Environment, FileSystemLoader, StrictUndefined
from starlette.datastructures import FormData
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, RedirectResponse, Response
from starlette.routing import Route

from agentgym_envs.worlds.webarena.sites.directory import NOW, PLACES, SESSION_COOKIE, SKIN_HEADER, Place
from agentgym_envs.worlds.webarena.sites.further import MARK, further_blocks

Page = Callable[..., Response]
_HERE = Path(__file__).parent
_NOTICE_COOKIE = "notice"
_LARGEST = 2**31


class NotFound(Exception):
    """Raised if nothing exists at this address; the message names what was requested."""


class SignInNeeded(Exception):
    """Raised if a page requires an account; the visitor is redirected to `/login` and back afterwards."""


class Refused(Exception):
    """Raised if the visitor may not do this; the message gives the reason."""


class Visit:
    """One request to one site, with methods to build its response."""

    def __init__(self, site: Site, request: Request, db: sqlite3.Connection | None, form: FormData) -> None:
        self.site = site
        self.request = request
        self.query = request.query_params
        self.form = form
        self.rough = request.headers.get(SKIN_HEADER) == "rough"
        """Whether the page is shown in the rough skin."""
        self._db = db
        self._cookies: dict[str, str | None] = {}
        self._canonical = ""
        self._account: sqlite3.Row | None = None
        self.session: str | None = request.cookies.get(SESSION_COOKIE)
        if db is not None and self.session is not None and site.place.account is not None:
            found = db.execute(
                "SELECT accounts.* FROM accounts JOIN sessions ON accounts.id = sessions.account WHERE sessions.id = ?",
                (self.session,),
            )
            self._account = found.fetchone()

    @property
    def db(self) -> sqlite3.Connection:
        """The site's database in this episode; rows are `sqlite3.Row`."""
        assert self._db is not None, "this site has no database"
        return self._db

    @property
    def account(self) -> sqlite3.Row | None:
        """The row of `accounts` of the signed-in visitor, or None."""
        return self._account

    def signed_in(self) -> sqlite3.Row:
        """Return the row of `accounts` of the signed-in visitor.

        Raises:
            SignInNeeded: If the visitor isn't signed in.
        """
        if self._account is None:
            raise SignInNeeded
        return self._account

    def all(self, sql: str, *values: Any) -> list[sqlite3.Row]:
        """Return all rows of a query."""
        return self.db.execute(sql, values).fetchall()

    def one(self, sql: str, *values: Any, what: str = "page") -> sqlite3.Row:
        """Return the first row of a query.

        Raises:
            NotFound: If there is none; `what` names the missing thing on the page.
        """
        row = self.db.execute(sql, values).fetchone()
        if row is None:
            raise NotFound(what)
        return row

    def value(self, sql: str, *values: Any) -> Any:
        """Return the first value of the first row of a query, or None."""
        row = self.db.execute(sql, values).fetchone()
        return None if row is None else row[0]

    def run(self, sql: str, *values: Any) -> int:
        """Write to the database and return the id of the inserted row."""
        return self.db.execute(sql, values).lastrowid or 0

    def number(self, name: str, default: int = 1, low: int = 1, high: int = _LARGEST) -> int:
        """Return an integer field of the form or query, clamped to [low, high]; `default` if it isn't an integer."""
        return _parse_int(self.form.get(name) or self.query.get(name), default, low, high)

    def text(self, name: str, most: int = 10_000) -> str:
        """Return a text field of the form or the query, stripped and truncated to `most` characters."""
        value = self.form.get(name, self.query.get(name, ""))
        return value.strip()[:most] if isinstance(value, str) else ""

    def texts(self, name: str) -> list[str]:
        """Return all values of a repeated field of the form or the query."""
        source = self.form if name in self.form else self.query
        return [value.strip() for value in source.getlist(name) if isinstance(value, str)]

    def sign_in(self, account: int) -> None:
        """Start a session for an account; this visit's response sets its cookie."""
        identity = f"{account}-{1 + (self.value('SELECT max(rowid) FROM sessions') or 0)}"
        self.run("INSERT INTO sessions (id, account) VALUES (?, ?)", identity, account)
        self._cookies[SESSION_COOKIE] = identity

    def sign_out(self) -> None:
        """End the session."""
        self.run("DELETE FROM sessions WHERE id = ?", self.session)
        self._cookies[SESSION_COOKIE] = None

    def remember(self, name: str, value: str) -> None:
        """Set a cookie of the site's own."""
        self._cookies[name] = value

    def address(self, **changes: Any) -> str:
        """Return the URL of this page with some query fields changed, or removed if None."""
        kept = [(key, value) for key, value in self.query.multi_items() if key not in changes]
        kept += [(key, str(value)) for key, value in changes.items() if value is not None]
        return self.request.url.path + ("?" + urlencode(kept) if kept else "")

    def canonical(self, path: str | None = None, **fields: Any) -> None:
        """Set the canonical address of this page, which judges compare: equal for all addresses that show the same.

        Args:
            path: The path without query, by default that of the request.
            **fields: What the page has read from the query, as the site understands it. Defaults, and what changes
                neither what a list contains nor its order, such as the number of the page, are left out or None.
        """
        given = {key: str(value) for key, value in fields.items() if value not in (None, "")}
        address = quote(path or self.request.url.path.rstrip("/")) or "/"
        self._canonical = self.site.place.url + address + ("?" + urlencode(given) if given else "")

    def render(self, template: str, status: int = 200, **values: Any) -> Response:
        """Render a template with `values`, and `visit`, `account`, `notice`, `canonical`, `place` and `more`."""
        notice = self.request.cookies.get(_NOTICE_COOKIE)
        if notice is not None:
            self._cookies.setdefault(_NOTICE_COOKIE, None)
        common = {"visit": self, "account": self._account, "notice": unquote(notice or ""), "place": self.site.place}
        common["canonical"] = self._canonical if status == 200 and self.request.method == "GET" else ""
        text = self.site.templates.get_template(template).render(common | {"more": MARK} | values)
        if self.rough and MARK in text:
            blocks = self.site.templates.get_template("more.html").render(blocks=further_blocks(self, text))
            text = text.replace(MARK, blocks)
        return self._with_cookies(HTMLResponse(text, status))

    def json(self, value: Any) -> Response:
        """Return a JSON response for a script."""
        return JSONResponse(value)

    def redirect(self, path: str, notice: str = "") -> Response:
        """Redirect the visitor within the site (303); the next page shows the notice once."""
        inside = path if path.startswith("/") and not path.startswith(("//", "/\\")) else "/"
        if notice:
            self._cookies[_NOTICE_COOKIE] = quote(notice)
        return self._with_cookies(RedirectResponse(inside, 303))

    def _with_cookies(self, response: Response) -> Response:
        for name, value in self._cookies.items():
            if value is None:
                response.delete_cookie(name)
            else:
                response.set_cookie(name, value, httponly=True, samesite="lax")
        return response


class Site:
    """The pages of one site. `@site.get("/product/{id:int}")` and `@site.post(...)` add them."""

    def __init__(self, key: str, folder: Path) -> None:
        self.place: Place = PLACES[key]
        self.folder = folder
        self.routes: list[Route] = []
        self.templates = Environment(
            loader=ChoiceLoader([FileSystemLoader(folder / "templates"), FileSystemLoader(_HERE / "templates")]),
            autoescape=True,
            undefined=StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
            auto_reload=False,
        )
        cast("dict[str, Any]", self.templates.globals).update(places=PLACES, now=NOW)

    def get(self, path: str) -> Callable[[Page], Page]:
        """Register a read-only page."""
        return self._add(path, "GET")

    def post(self, path: str) -> Callable[[Page], Page]:
        """Register a form handler; it may write, and usually ends in `visit.redirect`."""
        return self._add(path, "POST")

    def _add(self, path: str, method: str) -> Callable[[Page], Page]:
        def add(page: Page) -> Page:
            self.routes.append(self.route(path, page, method))
            return page

        return add

    def route(self, path: str, page: Page, method: str = "GET") -> Route:
        """Return a route to a page without registering it."""

        async def endpoint(request: Request) -> Response:
            form = await request.form() if method == "POST" else FormData()
            return self._answer(request, page, form, dict(request.path_params))

        return Route(path, endpoint, methods=[method], name=f"{method} {path}")

    def not_found(self, request: Request) -> Response:
        """Render the page for an unknown address."""

        def nothing(visit: Visit) -> Response:
            raise NotFound("page")

        return self._answer(request, nothing, FormData(), {})

    def _answer(self, request: Request, page: Page, form: FormData, values: Mapping[str, Any]) -> Response:
        if any(isinstance(value, int) and value >= _LARGEST for value in values.values()):
            raise HTTPException(404)
        folder: Path = request.state.databases
        db = _open_database(folder, self.place, reading=request.method != "POST")
        try:
            visit = Visit(self, request, db, form)
            response = _run_page(visit, page, values)
            if db is not None:
                db.commit()
            return response
        finally:
            if db is not None:
                db.close()


def pages(total: int, size: int, current: int) -> dict[str, int]:
    """Return the values for the macro `pager`: the page count, the current page clamped to range, and its `offset`."""
    count = max(1, -(-total // size))
    current = min(max(1, current), count)
    return {"total": total, "count": count, "current": current, "offset": (current - 1) * size, "size": size}


def _run_page(visit: Visit, page: Page, values: Mapping[str, Any]) -> Response:
    """Run the page; if it exits early, roll back its writes."""
    try:
        return page(visit, **values)
    except SignInNeeded:
        _undo(visit)
        back = visit.address() if visit.request.method == "GET" else "/"
        return visit.redirect("/login?" + urlencode({"next": back}))
    except NotFound as missing:
        _undo(visit)
        return visit.render("message.html", 404, title="Not found", message=f"There is no such {missing}.")
    except Refused as refusal:
        _undo(visit)
        return visit.render("message.html", 403, title="That isn't possible", message=str(refusal))


def _undo(visit: Visit) -> None:
    if visit.site.place.database is not None:
        visit.db.rollback()


def _open_database(folder: Path, place: Place, *, reading: bool) -> sqlite3.Connection | None:
    if place.database is None:
        return None
    db = sqlite3.connect(folder / f"{place.database}.sqlite", timeout=10)
    db.row_factory = sqlite3.Row
    # An episode's copy lives as long as the episode, so it needs no durability across power failures.
    db.execute("PRAGMA synchronous = OFF")
    db.execute("PRAGMA journal_mode = MEMORY")
    db.execute("PRAGMA foreign_keys = ON")
    if reading:
        db.execute("PRAGMA query_only = ON")
    return db


def _parse_int(value: Any, default: int, low: int, high: int) -> int:
    try:
        return min(max(int(value), low), high)
    except (TypeError, ValueError):
        return default
