"""Scripts of the pages with an inbox and with posts."""

from __future__ import annotations

import re
from collections.abc import Iterator

from agentgym_envs.worlds.webarena.miniwob.view import Element, NotFound, View, numbers

_POST_CLASSES = {
    "Reply": "reply", "Retweet": "retweet", "Like": "like", "Share": "share", "Share via DM": "share",
    "Copy link to Tweet": "copy", "Embed Tweet": "embed", "Mute": "menu-user", "Block": "block-user",
    "Report": "report",
}  # fmt: skip


def email_inbox(view: View) -> Iterator[str]:
    """All pages `email-inbox`: the objective is in fixed words, or the page gives its meaning."""
    sender, task, text = _email_task(view)
    thread = _thread(view, sender)
    if task in ("delete", "important", "star"):
        icon = view.inside_elements(thread, "span", class_="trash" if task == "delete" else "star")[0]
        yield view.click_element(icon)
        return
    yield view.act_on(next(node for node in view.inside(thread, "StaticText") if node.name == sender))
    yield view.click("StaticText", "Reply" if task == "reply" else "Forward")
    yield view.type(text)
    yield view.click_element(view.element("span", id=f"send-{task}"))


def _email_task(view: View) -> tuple[str, str, str]:
    """Return the sender, what is to be done, and the text of a reply or whom to forward to."""
    if view.fields:
        task = view.fields.get("task", "forward")
        return view.fields["by"], task, view.fields.get("message" if task == "reply" else "to", "")
    sender = view.asked(r"email by (\S+) and")
    if "reply" in view.objective:
        return sender, "reply", view.quoted()[0]
    if "forward" in view.objective:
        return sender, "forward", view.asked(r"email to (\S+)\.")
    return sender, "delete" if "delete" in view.objective else "important", ""


def _thread(view: View, sender: str) -> Element:
    for thread in view.elements("div", class_="email-thread"):
        if any(view.text_of(part) == sender for part in view.inside_elements(thread, "div", class_="email-sender")):
            return thread
    raise NotFound(sender)


def social_media(view: View) -> Iterator[str]:
    """`social-media`: one button of a user's post, or an entry of its menu."""
    user, action = view.asked(r"the user (\S+), click"), view.quoted()[0]
    post = _posts(view, user)[0]
    class_ = _POST_CLASSES[action]
    if class_ not in ("reply", "retweet", "like"):
        yield view.click_element(view.inside_elements(post, "span", class_="more")[0])
        post = _posts(view, user)[0]
        yield view.act_on(view.inside(view.inside_elements(post, "li", class_=class_)[0], "StaticText")[0])
    else:
        yield view.click_element(view.inside_elements(post, "span", class_=class_)[0])


def social_media_posts(view: View) -> Iterator[str]:
    """`social-media-all` and `social-media-some`: a button of all or of some posts of a user."""
    user, class_ = view.asked(r"by (\S+) and"), _POST_CLASSES[view.quoted()[0]]
    some = re.search(r"on (\d+) posts?", view.objective)
    count = int(numbers(some[1])[0]) if some else len(_posts(view, user))
    for index in range(count):
        icon = view.inside_elements(_posts(view, user)[index], "span", class_=class_)[0]
        if "active" not in icon.classes:
            yield view.click_element(icon)
    yield view.act_on(view.page.find("button", "Submit")[0])


def _posts(view: View, user: str) -> list[Element]:
    posts = [
        post
        for post in view.elements("div", class_="media")
        if any(view.text_of(name) == user for name in view.inside_elements(post, "span", class_="username"))
    ]
    if not posts:
        raise NotFound(user)
    return posts
