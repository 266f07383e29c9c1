"""Tasks that create posts, comments, messages or a community."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from random import Random

from agentgym_envs.worlds.webarena.sites.forum.prose import topics
from agentgym_envs.worlds.webarena.sites.forum.task_parts import (
    PERIOD_WORDS,
    SITES,
    STAMP,
    asked,
    community_entity,
    me,
    member_entity,
    post_entity,
    posts,
    rankings,
    shuffled,
    sorted_by,
    to_community,
    to_letter,
    to_listed_post,
    to_member,
    to_post,
)
from agentgym_envs.worlds.webarena.sites.names import BRANDS, TOWNS
from agentgym_envs.worlds.webarena.sites.tasks import Case, Databases, Template, choose, click, fill, rows, stop

_REMARKS = (
    "Thank you for this, it helped me a great deal.",
    "I had the same trouble last year and a little patience solved it.",
    "Could you tell us how it went in the end?",
    "This deserves a place in the guide.",
    "I will try that at the weekend and report back.",
    "My grandfather always said the same.",
)
_BODIES = (
    "I have read the guide already and could not find it there.",
    "Any experience is welcome, good or bad.",
    "I would like to do it properly from the start.",
    "My neighbours all say something different.",
)


def _new_posts(mine: int) -> str:
    return (
        "SELECT c.name, posts.title, coalesce(url, ''), flair, body FROM posts JOIN communities c ON c.id = community"
        f" WHERE author = {mine} AND posts.created = '{STAMP}' AND NOT (deleted OR removed)"
    )


def _new_comments(mine: int) -> str:
    return (
        f"SELECT post, parent, body FROM comments WHERE author = {mine} AND created = '{STAMP}'"
        " AND NOT (deleted OR removed)"
    )


def _question(databases: Databases, random: Random) -> Iterator[Case]:
    found = [(topic, ask) for topic in topics() for ask in topic.words["ask"][:4]]
    random.shuffle(found)
    for topic, ask in found:
        title, body = f"{ask[0].upper()}{ask[1:]}?", random.choice(_BODIES)
        form = [choose("Community", topic.name), fill("textbox", "Title", title), fill("textbox", "Text", body)]
        yield Case(
            {"hint": topic.hint, "title": title, "body": body},
            frozenset({community_entity(topic.name)}),
            rows("reddit", _new_posts(me(databases)), [topic.name, title, "", "", body]),
            [click("link", "Submit"), *form, click("button", "Publish post"), stop()],
        )


def _link(databases: Databases, random: Random) -> Iterator[Case]:
    flairs = "SELECT c.name, f.name AS flair FROM flairs f JOIN communities c ON c.id = f.community ORDER BY 1, 2"
    for row in shuffled(databases, random, flairs):
        town, brand = random.choice(TOWNS), random.choice(BRANDS)
        url = f"https://{town.lower()}-courier.example/2025/06/{brand.lower()}-{random.randrange(100, 999)}"
        title = f"{town} talks about {brand}"
        form = [fill("textbox", "Title", title), fill("textbox", "Link (leave empty for a text post)", url)]
        yield Case(
            {"url": url, "community": row["name"], "title": title, "flair": row["flair"]},
            frozenset({community_entity(row["name"])}),
            rows("reddit", _new_posts(me(databases)), [row["name"], title, url, row["flair"], ""]),
            [
                *to_community(row["name"]),
                click("link", f"Submit a post to {row['name']}"),
                *form,
                choose("Flair", row["flair"]),
                click("button", "Publish post"),
                stop(),
            ],
        )


def _reply(databases: Databases, random: Random) -> Iterator[Case]:
    mine = me(databases)
    sql = """
        SELECT m.id, a.name FROM comments m JOIN accounts a ON a.id = m.author WHERE post = ?1 AND a.id != ?2
        AND a.id NOT IN (SELECT blocked FROM blocks) GROUP BY m.author HAVING count(*) = 1 ORDER BY m.id
    """
    for post in islice(posts(databases, random, "p.comments BETWEEN 3 AND 12 AND NOT p.locked"), 150):
        found = asked(databases, sql, post["id"], mine)
        if not found:
            continue
        comment, text = random.choice(found), random.choice(_REMARKS)
        yield Case(
            {"member": comment["name"], "title": post["title"], "text": text},
            frozenset({post_entity(post["id"])}),
            rows("reddit", _new_comments(mine), [post["id"], comment["id"], text]),
            [
                *to_post(post),
                click("link", f"Reply to comment #{comment['id']} by {comment['name']}"),
                fill("textbox", f"Your reply to {comment['name']}", text),
                click("button", "Post reply"),
                stop(),
            ],
        )


def _comment_on_top(databases: Databases, random: Random) -> Iterator[Case]:
    for place, period, post in rankings(databases, random, "top", "score"):
        if post["locked"]:
            continue
        text = random.choice(_REMARKS)
        yield Case(
            {"period": PERIOD_WORDS[period], "community": place["name"], "text": text},
            frozenset({community_entity(place["name"])}),
            rows("reddit", _new_comments(me(databases)), [post["id"], None, text]),
            [
                *to_community(place["name"]),
                *sorted_by("top", period),
                to_listed_post(post),
                fill("textbox", "Your comment", text),
                click("button", "Post comment"),
                stop(),
            ],
        )


def _message(databases: Databases, random: Random) -> Iterator[Case]:
    mine = me(databases)
    sql = "SELECT * FROM accounts WHERE id != ? AND id NOT IN (SELECT blocked FROM blocks) ORDER BY id"
    written = f"""
        SELECT a.name, subject, body FROM threads t JOIN messages ON thread = t.id JOIN accounts a ON a.id = receiver
        WHERE author = {mine} AND sender = {mine} AND created = '{STAMP}'
    """
    for member in islice(shuffled(databases, random, sql, mine), 120):
        town = random.choice(TOWNS)
        subject, body = (
            f"The meeting in {town}",
            f"Would you like to come to {town} with us on the {random.choice('789')}th?",
        )
        yield Case(
            {"member": member["name"], "subject": subject, "body": body},
            frozenset({member_entity(member["name"])}),
            rows("reddit", written, [member["name"], subject, body]),
            [
                *to_member(member["name"]),
                click("link", "Send message"),
                fill("textbox", "Subject", subject),
                fill("textbox", "Message", body),
                click("button", "Send"),
                stop(),
            ],
        )


def _answer(databases: Databases, random: Random) -> Iterator[Case]:
    mine = me(databases)
    sql = "SELECT t.id, subject, name FROM threads t JOIN accounts a ON a.id = sender WHERE receiver = ? ORDER BY t.id"
    written = f"SELECT thread, body FROM messages WHERE author = {mine} AND created = '{STAMP}'"
    for thread in shuffled(databases, random, sql, mine):
        text = random.choice(("That suits me well.", "Sorry, I have to cancel.", "Can we talk on the telephone?"))
        yield Case(
            {"member": thread["name"], "text": text},
            frozenset({member_entity(thread["name"])}),
            rows("reddit", written, [thread["id"], text]),
            [
                *to_letter(thread["subject"], thread["name"]),
                fill("textbox", "Your answer", text),
                click("button", "Send"),
                stop(),
            ],
        )


def _create(databases: Databases, random: Random) -> Iterator[Case]:
    for town in random.sample(TOWNS, len(TOWNS)):
        kind, about = random.choice(
            (("walkers", "Walks in and around"), ("readers", "Books read in"), ("cooks", "Recipes from"))
        )
        name, title = f"{town}_{kind}".lower(), f"{town} {kind.capitalize()}"
        description, rule = f"{about} {town}.", random.choice(("Be kind.", "Bring pictures.", "No selling."))
        made = f"""
            SELECT name, title, about, group_concat(text) FROM communities JOIN rules ON community = id
            WHERE created = '{STAMP}' GROUP BY id
        """
        yield Case(
            {"name": name, "title": title, "description": description, "rule": rule},
            frozenset({f"town:{town}"}),
            rows("reddit", made, [name, title, description, rule]),
            [
                click("link", "Communities"),
                click("link", "Create a community"),
                fill("textbox", "Name", name),
                fill("textbox", "Title", title),
                fill("textbox", "Description", description),
                fill("textbox", "Rules, one per line", rule),
                click("button", "Create community"),
                stop(),
            ],
        )


TEMPLATES = (
    Template(
        "forum/ask-where-it-fits",
        SITES,
        "Ask a question in the community that is about {{hint}}. The title is “{{title}}” and the text “{{body}}”",
        _question,
    ),
    Template(
        "forum/share-link",
        SITES,
        "Share the link {{url}} in {{community}}, titled “{{title}}”, with the flair “{{flair}}” and no text.",
        _link,
        held_out=True,
    ),
    Template(
        "forum/reply-to-comment",
        SITES,
        "Reply to the comment that {{member}} left on “{{title}}” with this: “{{text}}”",
        _reply,
    ),
    Template(
        "forum/comment-on-top-post",
        SITES,
        "Comment on the post {{period}} in {{community}} that has the most points. Write “{{text}}”",
        _comment_on_top,
    ),
    Template(
        "forum/send-message",
        SITES,
        "Send {{member}} a private message with the subject “{{subject}}” and the text “{{body}}”",
        _message,
    ),
    Template(
        "forum/answer-message",
        SITES,
        "There is a message from {{member}} in my inbox. Answer in the same conversation: “{{text}}”",
        _answer,
    ),
    Template(
        "forum/create-community",
        SITES,
        "Found a community named {{name}} with the title “{{title}}”, the description “{{description}}” and one rule: "
        "“{{rule}}”",
        _create,
    ),
)
