"""Sign-in and sign-out, registration, the contact form, the public newsletter form, and information pages."""

from __future__ import annotations

from starlette.responses import Response

from agentgym_envs.worlds.webarena.sites.shop.customer import keep_subscription
from agentgym_envs.worlds.webarena.sites.shop.front import guest, moment, site
from agentgym_envs.worlds.webarena.sites.shop.rules import FREE_FROM, METHODS
from agentgym_envs.worlds.webarena.sites.web import Visit


@site.get("/login")
def login_form(visit: Visit) -> Response:
    """Show the sign-in form."""
    return visit.render("login.html", next=visit.text("next", 300), name="", problems=[])


@site.post("/login")
def login(visit: Visit) -> Response:
    """Sign in by user name or e-mail address; the guest's cart is merged into the customer's."""
    name, password = visit.text("name", 120), visit.text("password", 120)
    rows = visit.all(
        "SELECT * FROM accounts WHERE (name = ? OR email = ?) AND password = ? AND role = 'customer' AND active",
        name,
        name,
        password,
    )
    if not rows:
        problems = ["The user name or the password is not right."]
        return visit.render("login.html", 422, next=visit.text("next", 300), name=name, problems=problems)
    _take_cart(visit, rows[0]["id"])
    visit.sign_in(rows[0]["id"])
    return visit.redirect(visit.text("next", 300) or "/account", f"Welcome back, {rows[0]['first_name']}.")


@site.post("/logout")
def logout(visit: Visit) -> Response:
    """Sign out."""
    visit.sign_out()
    return visit.redirect("/", "You are signed out.")


@site.get("/register")
def register_form(visit: Visit) -> Response:
    """Show the registration form."""
    values = dict.fromkeys(("first_name", "last_name", "name", "email", "phone"), "")
    return visit.render("register.html", values=values, problems=[])


@site.post("/register")
def register(visit: Visit) -> Response:
    """Create an account and sign in."""
    values = {field: visit.text(field, 120) for field in ("first_name", "last_name", "name", "email", "phone")}
    password = visit.text("password", 120)
    problems = [f"Please fill in the field {field.replace('_', ' ')}." for field in values if not values[field]][:4]
    if "@" not in values["email"]:
        problems.append("This is not an e-mail address.")
    if len(password) < 6:
        problems.append("The password needs six characters or more.")
    taken = visit.value("SELECT count(*) FROM accounts WHERE name = ? OR email = ?", values["name"], values["email"])
    if taken:
        problems.append("There is an account of this name or e-mail address already.")
    if problems:
        return visit.render("register.html", 422, values=values, problems=problems)
    number = visit.run(
        "INSERT INTO accounts (first_name, last_name, name, email, phone, password, role, customer_group, joined)"
        " VALUES (?, ?, ?, ?, ?, ?, 'customer', 'General', ?)",
        *values.values(),
        password,
        moment(),
    )
    _take_cart(visit, number)
    visit.sign_in(number)
    return visit.redirect("/account", f"Welcome, {values['first_name']}.")


def _take_cart(visit: Visit, account: int) -> None:
    who = guest(visit)
    if who is not None:
        visit.run("UPDATE cart_items SET account = ?, guest = NULL WHERE guest = ?", account, who.id)


@site.get("/contact")
def contact_form(visit: Visit) -> Response:
    """Show the contact form."""
    me = visit.account
    values = dict.fromkeys(("name", "email", "subject", "text"), "")
    if me is not None:
        values |= {"name": f"{me['first_name']} {me['last_name']}", "email": me["email"]}
    return visit.render("contact.html", values=values, problems=[])


@site.post("/contact")
def contact(visit: Visit) -> Response:
    """Send a message to the office."""
    values = {field: visit.text(field, 3000) for field in ("name", "email", "subject", "text")}
    labels = {"text": "message"}
    problems = [f"Please fill in the field {labels.get(field, field)}." for field in values if not values[field]]
    if values["email"] and "@" not in values["email"]:
        problems.append("This is not an e-mail address.")
    if problems:
        return visit.render("contact.html", 422, values=values, problems=problems)
    visit.run(
        "INSERT INTO messages (account, name, email, subject, text, created) VALUES (?, ?, ?, ?, ?, ?)",
        visit.account["id"] if visit.account else None,
        *values.values(),
        moment(),
    )
    return visit.redirect("/contact", "Thank you for your message. We answer within two working days.")


@site.post("/newsletter")
def subscribe(visit: Visit) -> Response:
    """Subscribe an e-mail address to the newsletter."""
    email = visit.text("email", 120)
    if "@" not in email:
        return visit.redirect("/", "This is not an e-mail address.")
    known = visit.value("SELECT id FROM accounts WHERE email = ?", email)
    keep_subscription(visit, email, known, "subscribed")
    return visit.redirect("/", f"{email} is subscribed to our newsletter.")


@site.get("/about/shipping")
def shipping(visit: Visit) -> Response:
    """Show the information on shipping and returns."""
    return visit.render("shipping.html", methods=METHODS, free_from=FREE_FROM)
