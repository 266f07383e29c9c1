"""Sign-in, sign-out and personal settings: profile, status, SSH keys."""

from __future__ import annotations

from starlette.responses import Response

from agentgym_envs.worlds.webarena.sites.code.base import RIGHT_NOW, site
from agentgym_envs.worlds.webarena.sites.web import Visit

_KEY_KINDS = ("ssh-ed25519", "ssh-rsa", "ecdsa-sha2-nistp256")


@site.get("/login")
def login_form(visit: Visit) -> Response:
    """Show the sign-in form."""
    return visit.render("login.html", next=visit.text("next") or "/", name="", error="")


@site.post("/login")
def login(visit: Visit) -> Response:
    """Sign in with a user name or e-mail address."""
    name, password = visit.text("name"), str(visit.form.get("password", ""))
    account = visit.value(
        "SELECT id FROM accounts WHERE (name = ? OR email = ?) AND password = ?", name, name, password
    )
    if account is None:
        error = "The user name or the password is wrong."
        return visit.render("login.html", 422, next=visit.text("next") or "/", name=name, error=error)
    visit.sign_in(account)
    return visit.redirect(visit.text("next") or "/", "Signed in.")


@site.post("/logout")
def logout(visit: Visit) -> Response:
    """Sign out."""
    visit.sign_out()
    return visit.redirect("/explore", "Signed out.")


@site.get("/-/profile")
def profile_form(visit: Visit) -> Response:
    """Show the profile form."""
    return visit.render("profile_form.html", me=visit.signed_in(), error="")


@site.post("/-/profile")
def save_profile(visit: Visit) -> Response:
    """Save the visitor's profile."""
    me = visit.signed_in()
    fields = {name: visit.text(name, 500) for name in ("full_name", "job", "location", "bio", "email")}
    if not fields["full_name"] or "@" not in fields["email"]:
        error = "A full name and an e-mail address are needed."
        return visit.render("profile_form.html", 422, me=dict(me) | fields, error=error)
    visit.run(
        "UPDATE accounts SET full_name = ?, job = ?, location = ?, bio = ?, email = ? WHERE id = ?",
        *fields.values(),
        me["id"],
    )
    return visit.redirect(f"/{me['name']}", "Profile saved.")


@site.post("/-/status")
def save_status(visit: Visit) -> Response:
    """Set or clear the visitor's status."""
    me = visit.signed_in()
    status = visit.text("status", 100)
    visit.run("UPDATE accounts SET status = ? WHERE id = ?", status, me["id"])
    return visit.redirect(f"/{me['name']}", "Status set." if status else "Status cleared.")


@site.get("/-/profile/keys")
def keys(visit: Visit) -> Response:
    """List the visitor's SSH keys."""
    return _keys(visit, 200, "", "", "")


@site.post("/-/profile/keys")
def add_key(visit: Visit) -> Response:
    """Add an SSH key."""
    me = visit.signed_in()
    key, title = visit.text("key", 2000), visit.text("title", 100)
    kind, _, rest = key.partition(" ")
    if kind not in _KEY_KINDS or len(rest.strip()) < 8:
        return _keys(visit, 422, title, key, f"A key begins with one of {', '.join(_KEY_KINDS)}.")
    if not title:
        return _keys(visit, 422, title, key, "The key needs a title.")
    visit.run(
        "INSERT INTO ssh_keys (account, title, key, created) VALUES (?, ?, ?, ?)", me["id"], title, key, RIGHT_NOW
    )
    return visit.redirect("/-/profile/keys", f"The key {title} was added.")


@site.post("/-/profile/keys/{key:int}/delete")
def delete_key(visit: Visit, key: int) -> Response:
    """Delete one of the visitor's SSH keys."""
    visit.run("DELETE FROM ssh_keys WHERE id = ? AND account = ?", key, visit.signed_in()["id"])
    return visit.redirect("/-/profile/keys", "The key was deleted.")


def _keys(visit: Visit, status: int, title: str, key: str, error: str) -> Response:
    mine = visit.all("SELECT * FROM ssh_keys WHERE account = ? ORDER BY id", visit.signed_in()["id"])
    return visit.render("keys.html", status, keys=mine, title=title, key=key, error=error)
