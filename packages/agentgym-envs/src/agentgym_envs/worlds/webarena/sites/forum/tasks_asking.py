"""Tasks that end with an answer."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import islice
from random import Random

from agentgym_envs.worlds.webarena.sites.forum.task_parts import (
    PERIOD_WORDS,
    SITES,
    THERE,
    asked,
    best,
    communities,
    community_entity,
    listed,
    me,
    member_entity,
    post_entity,
    posts,
    rankings,
    shuffled,
    sorted_by,
    to_community,
    to_letter,
    to_post,
)
from agentgym_envs.worlds.webarena.sites.tasks import Case, Databases, Template, back, click, said, split_of, stop

_QUESTIONS = {
    "Meeting up": ("At what time does {partner} want to meet me?", r"(\d+:\d\d)"),
    "The ": ("How many crowns does {partner} want for the thing I asked about?", r"(\d+) crowns"),
    "Something": ("Which book does {partner} recommend to me?", r"read (.+?)\. I"),
    "Address": ("Which house number in Mill Row does {partner} give as an address?", r"Row (\d+)"),
}


def _top_score(databases: Databases, random: Random) -> Iterator[Case]:
    for place, period, post in rankings(databases, random, "top", "score"):
        yield Case(
            {"period": PERIOD_WORDS[period], "community": place["name"]},
            frozenset({community_entity(place["name"])}),
            said(exact=str(post["score"])),
            [*to_community(place["name"]), *sorted_by("top", period), stop(str(post["score"]))],
        )


def _most_discussed(databases: Databases, random: Random) -> Iterator[Case]:
    for place, period, post in rankings(databases, random, "comments", "comments"):
        yield Case(
            {"period": PERIOD_WORDS[period], "community": place["name"]},
            frozenset({community_entity(place["name"])}),
            said(exact=post["author_name"]),
            [*to_community(place["name"]), *sorted_by("comments", period), stop(post["author_name"])],
        )


def _author_of_newest(databases: Databases, random: Random) -> Iterator[Case]:
    for place in communities(databases, random):
        first, second = best(databases, place["id"], "new", "all", 2)
        if first["created"] == second["created"]:
            continue
        counted = f"SELECT count(*) AS number FROM posts p WHERE author = ? AND {THERE}"
        number = asked(databases, counted, first["author"])[0]["number"]
        yield Case(
            {"community": place["name"]},
            frozenset({community_entity(place["name"])}),
            said(exact=str(number)),
            [*to_community(place["name"]), *sorted_by("new"), click("link", first["author_name"]), stop(str(number))],
        )


def _largest(databases: Databases, random: Random) -> Iterator[Case]:
    by_split: dict[str, list[tuple[str, int]]] = {"train": [], "dev": [], "test": []}
    for place in communities(databases, random):
        by_split[split_of(community_entity(place["name"]))].append((place["name"], place["subscribers"]))
    for _ in range(40):
        for places in by_split.values():
            if len(places) < 3:
                continue
            chosen = random.sample(places, 3)
            most = max(number for _, number in chosen)
            names = [name for name, _ in chosen]
            yield Case(
                {"communities": listed(names)},
                frozenset(map(community_entity, names)),
                said(exact=str(most)),
                [click("link", "Communities"), *([click("link", "Next")] * 3), stop(str(most))],
            )


def _first_moderator(databases: Databases, random: Random) -> Iterator[Case]:
    sql = "SELECT name, joined FROM accounts JOIN moderators ON account = id WHERE community = ? ORDER BY name"
    for place in communities(databases, random):
        moderators = asked(databases, sql, place["id"])
        looks = [step for row in moderators for step in (click("link", row["name"]), back())]
        for time, chosen in (("longest", min), ("shortest", max)):
            name = chosen(moderators, key=lambda row: row["joined"])["name"]
            yield Case(
                {"community": place["name"], "time": time},
                frozenset({community_entity(place["name"])}),
                said(exact=name),
                [*to_community(place["name"]), *looks, stop(name)],
            )


def _letters(databases: Databases, random: Random) -> Iterator[Case]:
    sql = """
        SELECT t.id, t.subject, a.name AS partner, m.body FROM threads t JOIN accounts a ON a.id = t.sender
        JOIN messages m ON m.thread = t.id WHERE t.receiver = ?
        AND m.id = (SELECT max(id) FROM messages WHERE thread = t.id) ORDER BY t.id
    """
    for letter in shuffled(databases, random, sql, me(databases)):
        question, pattern = next(found for start, found in _QUESTIONS.items() if letter["subject"].startswith(start))
        answer = re.search(pattern, letter["body"])
        assert answer is not None, letter["body"]
        yield Case(
            {"question": question.format(partner=letter["partner"])},
            frozenset({member_entity(letter["partner"])}),
            said(exact=answer[1]),
            [*to_letter(letter["subject"], letter["partner"]), stop(answer[1])],
        )


def _rule(databases: Databases, random: Random) -> Iterator[Case]:
    sql = """
        SELECT c.name, position, text FROM rules JOIN communities c ON c.id = community WHERE position > 1 ORDER BY 1, 2
    """
    texts = [rule["text"] for rule in asked(databases, "SELECT DISTINCT text FROM rules ORDER BY text")]
    for rule in shuffled(databases, random, sql):
        yield Case(
            {"number": rule["position"], "community": rule["name"]},
            frozenset({community_entity(rule["name"])}),
            said(rule["text"], rivals=texts),
            [*to_community(rule["name"]), stop(rule["text"])],
        )


def _comment_score(databases: Databases, random: Random) -> Iterator[Case]:
    sql = """
        SELECT m.id, m.score, a.name FROM comments m JOIN accounts a ON a.id = m.author WHERE m.post = ?
        GROUP BY m.author HAVING count(*) = 1 ORDER BY m.id
    """
    for post in islice(posts(databases, random, "p.comments BETWEEN 6 AND 18"), 150):
        comment = random.choice(asked(databases, sql, post["id"]) or [None])
        if comment is None or abs(comment["score"]) < 2:
            continue
        yield Case(
            {"member": comment["name"], "title": post["title"]},
            frozenset({post_entity(post["id"])}),
            said(exact=str(comment["score"])),
            [*to_post(post), stop(str(comment["score"]))],
        )


TEMPLATES = (
    Template(
        "forum/top-post-score",
        SITES,
        "How many points does the highest-scoring post {{period}} in the {{community}} community have? "
        "Answer with the number only.",
        _top_score,
    ),
    Template(
        "forum/most-discussed-author",
        SITES,
        "Find the post {{period}} with the most comments in {{community}}. Who wrote it? Give just the name.",
        _most_discussed,
    ),
    Template(
        "forum/posts-of-newest-author",
        SITES,
        "Look up who wrote the newest post in {{community}}. How many posts does that member have on Commons in all? "
        "Answer with the number only.",
        _author_of_newest,
    ),
    Template(
        "forum/largest-community",
        SITES,
        "I wonder which is the largest of {{communities}}. How many subscribers does that community have? "
        "Answer with digits only, without a separator.",
        _largest,
    ),
    Template(
        "forum/moderator-by-age",
        SITES,
        "Of the moderators of {{community}}, who has been a member of Commons for the {{time}} time? "
        "Give just the name.",
        _first_moderator,
        held_out=True,
    ),
    Template(
        "forum/look-into-messages",
        SITES,
        "I can't remember what my messages said. {{question}} Answer with that only.",
        _letters,
    ),
    Template("forum/rule", SITES, "What does rule number {{number}} of the {{community}} community say?", _rule),
    Template(
        "forum/comment-score",
        SITES,
        "How many points did {{member}}'s comment on the post “{{title}}” get? Answer with the number only.",
        _comment_score,
        held_out=True,
    ),
)
