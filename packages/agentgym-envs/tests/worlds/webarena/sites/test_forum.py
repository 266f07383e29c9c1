# ruff: noqa: SIM905 - paths are easier to read as lines of text
"""Tests of the forum: its data, pages, forms, permissions and task templates."""

from __future__ import annotations

import json
import sqlite3

import pytest
from agentgym_envs.worlds.webarena.sites import store
from agentgym_envs.worlds.webarena.sites.forum.markup import markup
from agentgym_envs.worlds.webarena.sites.forum.tasks import TEMPLATES
from agentgym_envs.worlds.webarena.sites.tasks import deal

PAGES = (
    "/ /all /all?sort=top&period=month /communities /communities?q=bo&sort=name /communities/new /c/books "
    "/c/books?sort=controversial&period=year /c/books/guide /c/books/bans /c/photography /u/marlow_reads "
    "/u/marlow_reads/comments?sort=top /u/marlow_reads/message /settings /saved /submit /submit?c=books /messages "
    "/messages/3 /notifications /search?q=bread /search?q=bread&kind=comments&c=baking /search?q=a&kind=members "
    "/search?q=a&kind=communities /login /register"
).split()
UNUSUAL_PATHS = (
    "/?page=-3 /?page=9999999999999999 /?sort=' /all?period=%00 /c/nothing /c/books/99999999 /c/books/1/comment/1 "
    "/c/books/99999999999999999999 /u/nobody /u/%27 /messages/0 /messages/999 /search?q=%25%27%22&kind=x "
    "/search?q=_&kind=comments&author=%27 /search?kind=posts&c=%F0%9F%A6%8A /post/1/edit /comment/1/edit /nothing"
).split()


@pytest.fixture
def forum(browse):
    return browse("reddit")


def post_of(forum, where: str) -> tuple[str, int, str]:
    sql = f"SELECT c.name, p.id, p.title FROM posts p JOIN communities c ON c.id = p.community WHERE {where} LIMIT 1"
    return forum.rows(sql)[0]


OWN_ACCOUNT = "(SELECT id FROM accounts WHERE name = 'marlow_reads')"


def test_database_is_large_and_counts_are_consistent(forum):
    counts = "SELECT (SELECT count(*) FROM posts), (SELECT count(*) FROM comments), (SELECT count(*) FROM accounts)"
    posts, comments, members = forum.rows(counts)[0]
    assert (posts > 3_400, comments, members) == (True, 13_000, 400)
    assert forum.rows("SELECT count(*) = count(DISTINCT title) FROM posts")[0] == (1,)
    assert forum.rows("SELECT count(DISTINCT body) > 11000 FROM comments")[0] == (1,)
    miscounted = "SELECT id FROM posts WHERE comments != (SELECT count(*) FROM comments WHERE post = posts.id)"
    assert forum.rows(miscounted) == []


def test_posts_and_comments_are_in_chronological_order(forum):
    violations = "SELECT count(*) FROM posts JOIN accounts a ON a.id = author WHERE created < joined"
    assert forum.rows(violations) == [(0,)]
    violations = "SELECT count(*) FROM comments m JOIN posts p ON p.id = m.post WHERE m.created < p.created"
    assert forum.rows(violations) == [(0,)]
    violations = "SELECT count(*) FROM comments m JOIN comments o ON o.id = m.parent WHERE m.created < o.created"
    assert forum.rows(violations) == [(0,)]


@pytest.mark.parametrize("path", PAGES)
def test_pages_load(forum, path):
    assert forum.get(path).status_code == 200


@pytest.mark.parametrize("signed_in", [True, False])
def test_pages_survive_unusual_paths(browse, signed_in):
    forum = browse("reddit", signed_in=signed_in)
    for path in (*UNUSUAL_PATHS, *PAGES):
        assert forum.get(path).status_code < 500, path


def test_forms_survive_unusual_input(forum):
    paths = (
        "/submit /vote/post/1 /vote/comment/1 /vote/x/0 /save/0 /c/books/subscribe /c/books/bans /c/books/1/comment "
        "/settings /u/marlow_reads/block /u/marlow_reads/message /messages/1 /communities/new /register /login "
        "/preview /post/1/moderate/x /post/0/moderate/pin /comment/0/remove /c/books/bans/x/lift /notifications/seen"
    ).split()
    for data in ({}, {"body": "\x00<b>", "value": "7", "parent": "-1", "next": "//evil", "c": "'", "title": "x" * 999}):
        for path in paths:
            answer = forum.post(path, data=data, follow_redirects=False)
            assert answer.status_code < 500, path
            assert "evil" not in answer.headers.get("location", "")


def test_repeated_vote_is_withdrawn(forum):
    _, post, _ = post_of(forum, f"p.author != {OWN_ACCOUNT} AND p.id NOT IN (SELECT post FROM post_votes)")
    score = f"SELECT score, (SELECT count(*) FROM post_votes WHERE post = {post}) FROM posts WHERE id = {post}"
    before = forum.rows(score)[0][0]
    wants_json = {"Accept": "application/json"}
    assert forum.post(f"/vote/post/{post}", data={"value": "1"}, headers=wants_json).json()["score"] == before + 1
    assert forum.post(f"/vote/post/{post}", data={"value": "-1"}, headers=wants_json).json()["score"] == before - 1
    assert forum.post(f"/vote/post/{post}", data={"value": "-1", "next": "/all"}).url.path == "/all"
    assert forum.rows(score) == [(before, 0)]


def test_post_can_be_published_edited_and_deleted(forum):
    form = {"c": "baking", "title": "Two <loaves>", "body": "**Good** morning", "flair": "Bread"}
    page = forum.post("/submit", data=form)
    assert "Two &lt;loaves&gt;" in page.text
    assert "<strong>Good</strong>" in page.text
    post = forum.rows("SELECT max(id) FROM posts")[0][0]
    forum.post(f"/post/{post}/edit", data={"title": "Three", "body": "x"})
    assert forum.rows("SELECT title, body, flair, score FROM posts WHERE id = ?", post) == [("Three", "x", "Bread", 1)]
    forum.post(f"/post/{post}/delete")
    assert "deleted by its author" in forum.get(f"/c/baking/{post}").text


def test_incomplete_post_is_shown_again_with_messages(forum):
    page = forum.post("/submit", data={"c": "", "title": "", "url": "javascript:alert(1)", "body": "kept"})
    assert page.status_code == 400
    for message in ("needs a title", "Choose a community", "starts with http", "kept"):
        assert message in page.text


def test_reply_has_a_parent_and_notifies_its_author(forum):
    place, post, _ = post_of(forum, "p.comments BETWEEN 3 AND 9 AND NOT p.locked")
    comment, author = forum.rows(f"SELECT id, author FROM comments WHERE post = ? AND author != {OWN_ACCOUNT}", post)[0]
    page = forum.post(f"/c/{place}/{post}/comment", data={"body": "So it is.", "parent": comment})
    assert "So it is." in page.text
    reply, parent = forum.rows("SELECT id, parent FROM comments ORDER BY id DESC LIMIT 1")[0]
    assert parent == comment
    assert forum.rows("SELECT account FROM notifications WHERE comment = ?", reply) == [(author,)]
    forum.post(f"/comment/{reply}/delete")
    assert "So it is." not in forum.get(f"/c/{place}/{post}").text


def test_content_of_others_cannot_be_changed(forum):
    _, post, title = post_of(forum, f"p.author != {OWN_ACCOUNT} AND c.name != 'books'")
    assert forum.post(f"/post/{post}/edit", data={"title": "Mine"}).status_code == 403
    assert forum.post(f"/post/{post}/delete").status_code == 403
    assert forum.post(f"/post/{post}/moderate/remove").status_code == 403
    assert forum.post("/c/baking/bans", data={"member": "marlow_reads", "reason": "x"}).status_code == 403
    assert forum.rows("SELECT title, removed, deleted FROM posts WHERE id = ?", post) == [(title, 0, 0)]
    comment = forum.rows(f"SELECT id FROM comments WHERE author != {OWN_ACCOUNT} LIMIT 1")[0][0]
    assert forum.post(f"/comment/{comment}/delete").status_code == 403


def test_moderators_can_lock_remove_and_ban(browse):
    forum = browse("reddit")
    place, post, title = post_of(forum, "c.name = 'books' AND NOT p.locked AND NOT p.pinned")
    forum.post(f"/post/{post}/moderate/lock")
    assert forum.post(f"/c/{place}/{post}/comment", data={"body": "x"}).status_code == 403
    forum.post(f"/post/{post}/moderate/remove")
    assert title not in forum.get("/c/books?sort=top").text
    member, password = forum.rows(
        "SELECT name, password FROM accounts WHERE id NOT IN (SELECT account FROM bans) AND name != 'marlow_reads'"
    )[0]
    forum.post("/c/books/bans", data={"member": member, "reason": "Noise"})
    forum.post("/logout")
    forum.post("/login", data={"name": member, "password": password})
    assert forum.post("/submit", data={"c": "books", "title": "Still here"}).status_code == 403
    assert forum.post("/submit", data={"c": "baking", "title": "Still here"}).status_code == 200


def test_sign_in_redirects_back_and_registration_checks_names(browse):
    forum = browse("reddit", signed_in=False)
    assert forum.get("/submit").url.path == "/login"
    assert "no member with this name" in forum.post("/login", data={"name": "marlow_reads", "password": "x"}).text
    account = {"name": "marlow_reads", "password": "teapot-19", "next": "/submit"}
    assert forum.post("/login", data=account).url.path == "/submit"
    forum.post("/logout")
    assert "taken" in forum.post("/register", data={"name": "Marlow_Reads", "password": "secret-1"}).text
    assert forum.post("/register", data={"name": "new_one", "password": "secret-1"}).url.path == "/communities"


def test_subscriptions_messages_biography_blocks_and_new_communities(forum):
    before = forum.rows("SELECT subscribers FROM communities WHERE name = 'baking'")[0][0]
    forum.post("/c/baking/subscribe")
    assert forum.rows("SELECT subscribers FROM communities WHERE name = 'baking'") == [(before + 1,)]
    assert "Unsubscribe from baking" in forum.get("/c/baking").text
    other = forum.rows(
        f"SELECT name FROM accounts WHERE id != {OWN_ACCOUNT} AND id NOT IN (SELECT blocked FROM blocks)"
    )[0][0]
    assert "Good day" in forum.post(f"/u/{other}/message", data={"subject": "Hello", "body": "Good day"}).text
    forum.post(f"/u/{other}/block")
    assert forum.post(f"/u/{other}/message", data={"subject": "Hello", "body": "Again"}).status_code == 403
    assert "Rows boats." in forum.post("/settings", data={"bio": "Rows boats."}).text
    form = {"name": "tidal_pools", "title": "Tidal Pools", "about": "Between the tides.", "rules": "One\n\nTwo"}
    assert "Between the tides." in forum.post("/communities/new", data=form).text
    assert forum.post("/communities/new", data=form).status_code == 400
    assert forum.rows("SELECT count(*) FROM rules JOIN communities ON id = community WHERE name = 'tidal_pools'") == [
        (2,)
    ]


def test_markup_is_rendered_and_escaped():
    assert markup("a **b** *c* `d`\n\n- e\n- f\n\n> g") == (
        "<p>a <strong>b</strong> <em>c</em> <code>d</code></p>\n<ul><li>e</li><li>f</li></ul>\n"
        "<blockquote>g</blockquote>"
    )
    assert "<script" not in markup('<script>"[x](javascript:1)[y](http://a/"onclick=1)')
    assert 'onclick="' not in markup('[y](http://a/"onclick="1)')


@pytest.fixture(scope="module")
def databases():
    db = sqlite3.connect(store.database("forum"))
    db.row_factory = sqlite3.Row
    yield {"forum": db}
    db.close()


@pytest.mark.parametrize("template", TEMPLATES, ids=lambda template: template.name)
def test_templates_cover_all_splits_and_are_unsolved_at_the_start(databases, template):
    cases_by_split = deal(template, databases)
    assert all(cases_by_split[split] for split in (["test"] if template.held_out else ["train", "dev", "test"]))
    for case in (case for cases in cases_by_split.values() for case in cases):
        assert case.plan[-1]["do"] == "stop"
        assert case.eval.get("reference_url") != "http://forum.example"
        for check in case.eval.get("database", ()):
            assert [list(row) for row in databases["forum"].execute(check["query"])] != check["rows"]


@pytest.mark.parametrize("template", TEMPLATES, ids=lambda template: template.name)
def test_no_answer_is_common_within_a_template(databases, template):
    cases = [case for cases in deal(template, databases).values() for case in cases]
    evaluations = [json.dumps(case.eval, sort_keys=True) for case in cases]
    assert max(map(evaluations.count, evaluations)) <= len(evaluations) // 2
