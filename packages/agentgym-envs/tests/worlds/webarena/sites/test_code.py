"""Tests of the code host: its data, permissions, pages, forms and task templates."""

from __future__ import annotations

import html
import re
import sqlite3
from collections import Counter
from collections.abc import Callable
from contextlib import closing
from functools import cache
from random import Random
from typing import Any

import pytest
from agentgym_envs.worlds.webarena.sites.code.diffs import diff_of
from agentgym_envs.worlds.webarena.sites.code.markup import to_html
from agentgym_envs.worlds.webarena.sites.code.tasks import TEMPLATES
from agentgym_envs.worlds.webarena.sites.store import database, make_database
from agentgym_envs.worlds.webarena.sites.tasks import Case, split_of

Browse = Callable[..., Any]
HOME = "/jonas/weather-station"
OTHERS_PROJECT = "/orchard-tools/pluck"


def count_rows(site: Any, table: str, condition: str = "1") -> int:
    return site.rows(f"SELECT count(*) FROM {table} WHERE {condition}")[0][0]


def project_id(site: Any, place: str = HOME) -> int:
    namespace, path = place.strip("/").split("/")
    return site.rows("SELECT id FROM projects WHERE namespace = ? AND path = ?", namespace, path)[0][0]


def open_issue(site: Any, place: str = HOME) -> tuple[int, int, str]:
    query = "SELECT id, iid, title FROM issues WHERE project = ? AND state = 'opened' AND confidential = 0 ORDER BY id"
    return site.rows(query, project_id(site, place))[0]


def open_merge_request(site: Any, role: int = 30) -> tuple[int, str]:
    """Return an open merge request of a project where Jonas has at least a role, and its path."""
    query = (
        "SELECT merges.id, namespace, path, iid FROM merges JOIN projects ON projects.id = merges.project"
        " JOIN members ON members.project = projects.id AND account = 1 AND role >= ? WHERE state = 'opened' ORDER BY 1"
    )
    merge, namespace, path, iid = site.rows(query, role)[0]
    return merge, f"/{namespace}/{path}/-/merge_requests/{iid}"


def checks(case: Case) -> list[dict[str, Any]]:
    return case.eval.get("database", [])


def test_database_is_large_compact_and_before_the_clock() -> None:
    path = database("code")
    assert path.stat().st_size < 5_000_000
    with closing(sqlite3.connect(path)) as db:
        minimum = {"accounts": 250, "projects": 125, "issues": 3300, "merges": 550, "commits": 4700, "groups": 15}
        for table, count in minimum.items():
            assert db.execute(f"SELECT count(*) FROM {table}").fetchone()[0] >= count, table
        for table in ("commits", "issues", "merges", "comments", "tags", "projects"):
            assert db.execute(f"SELECT max(created) FROM {table}").fetchone()[0] < "2025-06-16 09:30", table
        assert db.execute("SELECT count(DISTINCT title) = count(*) FROM issues").fetchone()[0] == 1
        assert db.execute("PRAGMA foreign_key_check").fetchall() == []


@pytest.mark.long
def test_database_is_reproducible() -> None:
    assert make_database("code") == database("code").read_bytes()


def test_links_of_a_random_walk_lead_to_pages(browse: Browse) -> None:
    site = browse("gitlab")
    seen, queue = {"/"}, ["/", HOME, "/jonas", "/robotics-club", f"{HOME}/-/settings"]
    random = Random(7)
    for _ in range(150):
        address = queue.pop(random.randrange(len(queue)))
        answer = site.get(address)
        assert answer.status_code == 200, address
        for link in map(html.unescape, re.findall(r'href="(/[^"#]*)', answer.text)):
            if link not in seen and not link.startswith("/static"):
                seen.add(link)
                queue.append(link)


@pytest.mark.parametrize(
    "text", ["'", "%", "\x00", "<b>", "-1", "99999999999999999999", "ü" * 300, "../..", "{{7*7}}", "NaN"]
)
def test_pages_and_forms_survive_unusual_input(browse: Browse, text: str) -> None:
    site = browse("gitlab")
    fields = (
        "search",
        "page",
        "sort",
        "state",
        "label",
        "author",
        "assignee",
        "milestone",
        "topic",
        "since",
        "tab",
        "scope",
    )
    for address in (
        "/explore",
        "/search",
        f"{HOME}/-/issues",
        f"{HOME}/-/merge_requests",
        f"{HOME}/-/commits/main",
        "/jonas",
    ):
        assert site.get(address, params=dict.fromkeys(fields, text)).status_code in (200, 404), address
    names = (
        "title",
        "body",
        "due",
        "weight",
        "labels",
        "assignees",
        "milestone",
        "name",
        "path",
        "text",
        "message",
        "key",
    )
    form = dict.fromkeys(
        (*names, "person", "role", "expires", "source", "target", "colour", "namespace", "visibility"), text
    )
    places = ("issues/new", "labels", "milestones/new", "members", "merge_requests/new", "write", "branches")
    for address in (*(f"{HOME}/-/{place}" for place in places), "/projects/new", "/groups/new", "/-/profile/keys"):
        assert site.post(address, data=form).status_code in (200, 403, 404, 422), address


def test_guests_see_only_public_projects_and_must_sign_in(browse: Browse) -> None:
    site = browse("gitlab", signed_in=False)
    assert site.get(HOME).status_code == 200
    assert site.get("/jonas/dotfiles").status_code == 404  # internal
    assert site.get("/jonas/budget-planner").status_code == 404  # private
    assert "Budget Planner" not in site.get("/search", params={"search": "budget"}).text
    assert site.get("/dashboard/todos").url.path == "/login"
    assert "wrong" in site.post("/login", data={"name": "jonas", "password": "guess"}).text
    answer = site.post("/login", data={"name": "jonas", "password": "rebase-58", "next": "/jonas/dotfiles"})
    assert answer.url.path == "/jonas/dotfiles"
    site.post("/logout")
    assert site.get("/jonas/dotfiles").status_code == 404


def test_new_issue_has_the_values_of_the_form(browse: Browse) -> None:
    site = browse("gitlab")
    project = project_id(site)
    label = site.rows("SELECT id FROM labels WHERE project = ? AND name = 'bug'", project)[0][0]
    form = {
        "title": "Rain <b>twice</b>",
        "body": "See `log`",
        "labels": label,
        "assignees": 1,
        "due": "2025-07-01",
        "weight": 3,
    }
    assert "YYYY-MM-DD" in site.post(f"{HOME}/-/issues/new", data=form | {"due": "soon"}).text
    assert site.post(f"{HOME}/-/issues/new", data=form | {"title": " "}).status_code == 422
    answer = site.post(f"{HOME}/-/issues/new", data=form)
    assert "Rain &lt;b&gt;twice&lt;/b&gt;" in answer.text and "<code>log</code>" in answer.text
    issue = site.rows("SELECT id, title, due, weight, state FROM issues ORDER BY id DESC")[0]
    assert issue[1:] == ("Rain <b>twice</b>", "2025-07-01", 3, "opened")
    assert site.rows("SELECT label FROM issue_labels WHERE issue = ?", issue[0]) == [(label,)]
    assert site.rows("SELECT account FROM issue_assignees WHERE issue = ?", issue[0]) == [(1,)]


def test_issue_can_be_closed_reopened_labelled_assigned_and_edited(browse: Browse) -> None:
    site = browse("gitlab")
    issue, iid, title = open_issue(site)
    address = f"{HOME}/-/issues/{iid}"
    site.post(f"{address}/state")
    assert site.rows("SELECT state FROM issues WHERE id = ?", issue) == [("closed",)]
    assert title not in site.get(f"{HOME}/-/issues", params={"search": title}).text.split('<ul class="list">')[1]
    site.post(f"{address}/state")
    site.post(f"{address}/labels")
    assert count_rows(site, "issue_labels", f"issue = {issue}") == 0
    site.post(f"{address}/assignees", data={"assignees": ["1", "249", "x"]})
    assert (1,) in site.rows("SELECT account FROM issue_assignees WHERE issue = ?", issue)
    site.post(f"{address}/edit", data={"title": "Another title", "body": "", "weight": "5"})
    assert site.rows("SELECT title, weight, state FROM issues WHERE id = ?", issue) == [("Another title", 5, "opened")]
    assert site.post(f"{address}/comment", data={"body": " "}).status_code == 422
    assert "Thank you!" in site.post(f"{address}/comment", data={"body": "Thank you!"}).text


@pytest.mark.parametrize(("kind", "place"), [("issue", "issues"), ("merge", "merge_requests")])
def test_only_its_author_can_delete_a_comment(browse: Browse, kind: str, place: str) -> None:
    site = browse("gitlab")
    path, iid, foreign = site.rows(
        f"SELECT namespace || '/' || path, iid, comments.id FROM {kind}s JOIN comments ON {kind} = {kind}s.id"
        " JOIN projects ON projects.id = project"
        " WHERE comments.author <> 1 AND NOT system AND visibility = 'public' AND NOT archived"
    )[0]
    address = f"/{path}/-/{place}/{iid}"
    before = site.rows("SELECT id, author, system FROM comments ORDER BY id")
    assert "Your words" in site.post(f"{address}/comment", data={"body": "Your words"}).text
    own = site.rows("SELECT max(id) FROM comments")[0][0]
    assert f"{address}/comment/{own}/delete" in site.get(address).text
    assert f"{address}/comment/{foreign}/delete" not in site.get(address).text
    for number in (foreign, 999_999):
        assert site.post(f"{address}/comment/{number}/delete").status_code == 403
    deleted = site.post(f"{address}/comment/{own}/delete").text
    assert "Your comment was deleted." in deleted and "Your words" not in deleted
    assert site.rows("SELECT id, author, system FROM comments ORDER BY id") == before


def test_nonmembers_may_open_and_comment_but_not_edit_issues(browse: Browse) -> None:
    site = browse("gitlab")
    issue, iid, _ = open_issue(site, OTHERS_PROJECT)
    before = site.rows("SELECT label FROM issue_labels WHERE issue = ?", issue)
    assert site.post(f"{OTHERS_PROJECT}/-/issues/{iid}/labels").status_code == 403
    assert site.rows("SELECT label FROM issue_labels WHERE issue = ?", issue) == before
    assert site.post(f"{OTHERS_PROJECT}/-/issues/{iid}/comment", data={"body": "Me too"}).status_code == 200
    for place in ("settings", "milestones/new", "merge_requests/new"):
        assert site.get(f"{OTHERS_PROJECT}/-/{place}").status_code == 403, place
    site.post(f"{OTHERS_PROJECT}/-/issues/new", data={"title": "A wish", "weight": "4"})
    assert site.rows("SELECT title, weight FROM issues ORDER BY id DESC")[0] == ("A wish", None)


def test_merging_changes_the_file(browse: Browse) -> None:
    site = browse("gitlab")
    merge, address = open_merge_request(site)
    path, line, added = site.rows(
        "SELECT path, line, text FROM commits JOIN contents ON contents.id = patch WHERE merge = ? ORDER BY commits.id",
        merge,
    )[0]
    raw = address.partition("/-/")[0] + "/-/raw/" + site.rows("SELECT target FROM merges WHERE id = ?", merge)[0][0]
    before = site.get(f"{raw}/{path}").text.splitlines()
    assert "Approved by" in site.post(f"{address}/approve").text
    site.post(f"{address}/merge")
    after = site.get(f"{raw}/{path}").text.splitlines()
    assert after == before[: line - 1] + added.splitlines() + before[line - 1 :]
    assert site.rows("SELECT state, merged_by FROM merges WHERE id = ?", merge) == [("merged", 1)]
    assert site.post(f"{address}/merge").status_code == 403
    assert site.get(f"{address}/diffs").text.count('class="plus"') >= added.count("\n")


def test_branch_has_at_most_one_merge_request(browse: Browse) -> None:
    site = browse("gitlab")
    branch = site.rows("SELECT name FROM branches WHERE project = ? AND name LIKE 'jonas-%'", project_id(site))[0][0]
    target = site.rows("SELECT default_branch FROM projects WHERE id = ?", project_id(site))[0][0]
    form = {"title": "My branch", "source": branch, "target": target}
    assert site.post(f"{HOME}/-/merge_requests/new", data=form | {"source": target}).status_code == 422
    answer = site.post(f"{HOME}/-/merge_requests/new", data=form)
    assert 'class="plus"' in site.get(f"{answer.url.path}/diffs").text
    assert "already" in site.post(f"{HOME}/-/merge_requests/new", data=form).text


def test_members_can_be_added_changed_and_removed(browse: Browse) -> None:
    site = browse("gitlab")
    project = project_id(site)
    outside = f"id NOT IN (SELECT account FROM members WHERE project = {project})"
    person, full_name = site.rows(f"SELECT id, full_name FROM accounts WHERE {outside} ORDER BY id")[0]
    where = f"FROM members WHERE project = {project} AND account = {person}"
    form = {"person": full_name, "role": "30", "expires": "2025-12-01"}
    assert "future" in site.post(f"{HOME}/-/members", data=form | {"expires": "2024-01-01"}).text
    assert "nobody called" in site.post(f"{HOME}/-/members", data=form | {"person": "Nobody Known"}).text
    site.post(f"{HOME}/-/members", data=form)
    assert site.rows(f"SELECT role, expires {where}") == [(30, "2025-12-01")]
    site.post(f"{HOME}/-/members/{person}", data={"role": "20"})
    assert site.rows(f"SELECT role {where}") == [(20,)]
    site.post(f"{HOME}/-/members/{person}/remove")
    assert site.rows(f"SELECT role {where}") == []
    assert site.post(f"{HOME}/-/members/1/remove").status_code == 403


def test_projects_can_be_created_forked_starred_archived_and_deleted(browse: Browse) -> None:
    site = browse("gitlab")
    form = {"name": "Kite Log", "visibility": "public", "readme": "1", "description": "Winds"}
    assert site.post("/projects/new", data=form).url.path == "/jonas/kite-log"
    assert "Winds" in site.get("/jonas/kite-log/-/raw/main/README.md").text
    assert "already" in site.post("/projects/new", data=form).text
    assert site.post(f"{OTHERS_PROJECT}/-/forks/new").url.path == "/jonas/pluck"
    stars = site.rows("SELECT stars FROM projects WHERE path = 'pluck' ORDER BY id")[0][0]
    starred = count_rows(site, "stars", f"account = 1 AND project = {project_id(site, OTHERS_PROJECT)}")
    site.post(f"{OTHERS_PROJECT}/-/star")
    assert site.rows("SELECT stars FROM projects WHERE path = 'pluck' ORDER BY id")[0][0] == stars + 1 - 2 * starred
    file = {"path": "a.txt", "text": "x", "message": "m"}
    assert "is archived now" in site.post("/jonas/kite-log/-/settings/archive").text
    refused = site.post("/jonas/kite-log/-/write", data=file)
    assert (refused.status_code, "is archived, so nothing in it can be changed" in refused.text) == (403, True)
    assert site.get("/jonas/kite-log/-/raw/main/a.txt").status_code == 404
    assert "is active again" in site.post("/jonas/kite-log/-/settings/archive").text
    assert site.post("/jonas/kite-log/-/write", data=file).status_code == 200
    assert site.get("/jonas/kite-log/-/raw/main/a.txt").text == "x"
    assert site.post("/jonas/kite-log/-/settings/delete", data={"confirm": "no"}).status_code == 403
    site.post("/jonas/kite-log/-/settings/delete", data={"confirm": "jonas/kite-log"})
    assert site.get("/jonas/kite-log").status_code == 404


def test_writing_a_file_creates_a_commit(browse: Browse) -> None:
    site = browse("gitlab")
    form = {"path": "docs/new.md", "text": "# New\n\nText\n", "message": "Say more"}
    answer = site.post(f"{HOME}/-/write", data=form)
    assert "Text" in answer.text and answer.url.path.endswith("docs/new.md")
    assert "already" in site.post(f"{HOME}/-/write", data=form).text
    sha = site.rows("SELECT sha FROM commits ORDER BY id DESC")[0][0]
    assert site.get(f"{HOME}/-/commit/{sha[:8]}").text.count('class="plus"') == 3
    assert site.post(f"{HOME}/-/write", data=form | {"path": "../../x"}).status_code == 422


def test_settings_labels_milestones_keys_groups_status_and_follows(browse: Browse) -> None:
    site = browse("gitlab")
    project = project_id(site)
    site.post(f"{HOME}/-/settings/visibility", data={"visibility": "private"})
    site.post(f"{HOME}/-/settings/general", data={"name": "Roof", "topics": "Rain, wind,,rain"})
    assert site.rows("SELECT name, visibility FROM projects WHERE id = ?", project) == [("Roof", "private")]
    assert site.rows("SELECT topic FROM topics WHERE project = ?", project) == [("rain",), ("wind",)]
    assert "already" in site.post(f"{HOME}/-/labels", data={"name": "bug", "colour": "#112233"}).text
    goal = {"title": "Storm season", "start": "2025-07-01", "due": "2025-06-01"}
    assert "before the start" in site.post(f"{HOME}/-/milestones/new", data=goal).text
    page = site.post(f"{HOME}/-/milestones/new", data=goal | {"due": "2025-08-01"})
    site.post(f"{page.url.path}/state")
    assert count_rows(site, "milestones", "title = 'Storm season' AND state = 'closed'") == 1
    assert "begins with" in site.post("/-/profile/keys", data={"title": "x", "key": "nonsense"}).text
    site.post("/-/profile/keys", data={"title": "Phone", "key": "ssh-ed25519 AAAAC3NzaC1lZDI1"})
    assert count_rows(site, "ssh_keys", "account = 1 AND title = 'Phone'") == 1
    assert "taken" in site.post("/groups/new", data={"name": "Kiln CI", "visibility": "public"}).text
    assert site.post("/groups/new", data={"name": "Rain Club", "visibility": "private"}).url.path == "/rain-club"
    site.post("/groups/rain-club/-/group_members", data={"person": "ada.lockwood", "role": "30"})
    assert "Ada Lockwood" in site.get("/groups/rain-club/-/group_members").text
    assert "Out walking" in site.post("/-/status", data={"status": "Out walking"}).text
    follows = count_rows(site, "follows", "follower = 1")
    site.post("/ada.lockwood/-/follow")
    assert abs(count_rows(site, "follows", "follower = 1") - follows) == 1
    assert site.post("/jonas/-/follow").status_code == 403


def test_filters_of_issues_and_commits_match_the_data(browse: Browse) -> None:
    site = browse("gitlab")
    project = project_id(site)
    bugs = count_rows(
        site, "issues JOIN issue_labels ON issue = issues.id JOIN labels ON labels.id = label",
        f"issues.project = {project} AND name = 'bug' AND state = 'closed'",
    )  # fmt: skip
    assert f"Closed {bugs}</a>" in site.get(f"{HOME}/-/issues?label=bug&state=closed").text
    branch = site.rows("SELECT default_branch FROM projects WHERE id = ?", project)[0][0]
    mine = count_rows(
        site, "commits", f"project = {project} AND branch = '{branch}' AND author = 1 AND created < '2025-01-01'"
    )
    text = site.get(f"{HOME}/-/commits/{branch}?author=jonas&until=2024-12-31").text
    assert re.search(rf"\b{mine} commits?</span>", text)


def test_markup_is_escaped_and_diffs_have_line_numbers() -> None:
    assert to_html("<script>`a<b`") == "<p>&lt;script&gt;<code>a&lt;b</code></p>"
    assert to_html("- one\n- **two**") == "<ul><li>one</li><li><strong>two</strong></li></ul>"
    assert "href" not in to_html("[x](javascript:alert)")
    diff = diff_of("a", "1\n2\nnew\n3\n", 3, 1, "old\n")
    assert [(line.before, line.after, line.sign) for line in diff.lines] == [
        (1, 1, " "), (2, 2, " "), (3, None, "-"), (None, 3, "+"), (4, 4, " "),
    ]  # fmt: skip


def test_templates_have_enough_cases_unsolved_at_the_start() -> None:
    with closing(sqlite3.connect(database("code"))) as db:
        db.row_factory = sqlite3.Row
        answer = cache(lambda query: [list(row) for row in db.execute(query)])
        assert len({template.name for template in TEMPLATES}) == len(TEMPLATES) >= 40
        for template in TEMPLATES:
            cases = list(template.cases({"code": db}, Random(template.name)))
            splits = Counter(split_of(entity) for case in cases for entity in case.entities)
            minimum = {"test": 4} if template.held_out else {"train": 5, "dev": 1, "test": 1}
            assert all(splits[split] >= count for split, count in minimum.items()), template.name
            solved = [check["rows"] == answer(check["query"]) for case in cases for check in checks(case)]
            assert not any(solved), template.name
