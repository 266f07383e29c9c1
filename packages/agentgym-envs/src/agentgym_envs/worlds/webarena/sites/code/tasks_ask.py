"""Information-seeking tasks: find a number, a name, a date or a page."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from datetime import date
from random import Random
from urllib.parse import quote

from agentgym_envs.worlds.webarena.sites.code.task_parts import (
    HOST,
    about,
    ask,
    issues,
    merges,
    names,
    projects,
    template,
    to_issues,
    to_merge,
    to_merges,
    to_project,
    value,
)
from agentgym_envs.worlds.webarena.sites.tasks import Case, at, choose, click, fill, said, stop

_CONTRIBUTORS = (
    "SELECT full_name, email, count(*) AS commits FROM commits JOIN accounts ON accounts.id = author"
    " WHERE project = ? AND branch = ? GROUP BY author ORDER BY commits DESC"
)
_RANGES = (
    ("2024-03-01", "2024-08-31"),
    ("2024-07-01", "2024-12-31"),
    ("2024-10-01", "2025-02-28"),
    ("2025-01-01", "2025-05-31"),
)


def shown(day: str) -> str:
    """Format a date as the pages do."""
    when = date.fromisoformat(day[:10])
    return f"{when.day} {when:%b %Y}"


@template(
    "commits-between",
    "How many commits did {{person}} make to {{project}} from {{since}} to {{until}}, both days included? Answer with"
    " the number alone.",
)
def commits_between(db: sqlite3.Connection, random: Random) -> Iterator[Case]:
    """Count commits, filtered by author and dates."""
    query = (
        "SELECT full_name, count(*) AS commits FROM commits JOIN accounts ON accounts.id = author WHERE project = ?"
        " AND branch = ? AND date(commits.created) BETWEEN ? AND ? GROUP BY author HAVING count(*) > 5 ORDER BY author"
    )
    for row in projects(db, random):
        since, until = random.choice(_RANGES)
        for found in ask(db, random, query, row["project_id"], row["branch"], since, until)[:1]:
            plan = [*to_project(row), click("link", "Commits"), choose("Author", found["full_name"])]
            plan += [fill("textbox", "From (YYYY-MM-DD)", since), fill("textbox", "To (YYYY-MM-DD)", until, enter=True)]
            values = {"person": found["full_name"], "project": row["place"], "since": since, "until": until}
            answer = str(found["commits"])
            yield Case(values, about(f"project:{row['place']}"), said(exact=answer), [*plan, stop(answer)])


@template("top-contributor", "Who has made the most commits to the default branch of {{project}}? Give the full name.")
def top_contributor(db: sqlite3.Connection, random: Random) -> Iterator[Case]:
    """Find the top contributor in the table of contributors."""
    for row, name, _ in _tops(db, random):
        plan = [*to_project(row), click("link", "Contributors"), stop(name)]
        yield Case({"project": row["place"]}, about(f"project:{row['place']}"), said(name, rivals=names(db)), plan)


@template(
    "mail-of-top-contributor",
    "I want to thank the person with the most commits in {{project}}. What is their e-mail address?",
    held_out=True,
)
def mail_of_top_contributor(db: sqlite3.Connection, random: Random) -> Iterator[Case]:
    """Find the top contributor's e-mail address in the same table."""
    for row, _, mail in _tops(db, random):
        plan = [*to_project(row), click("link", "Contributors"), stop(mail)]
        yield Case({"project": row["place"]}, about(f"project:{row['place']}"), said(mail), plan)


def _tops(db: sqlite3.Connection, random: Random) -> Iterator[tuple[sqlite3.Row, str, str]]:
    for row in projects(db, random):
        first, second = db.execute(_CONTRIBUTORS, (row["project_id"], row["branch"])).fetchall()[:2]
        if first["commits"] > second["commits"]:
            yield row, first["full_name"], first["email"]


@template("stars", "How many stars does the project {{project}} have? Answer with the number alone.")
def stars(db: sqlite3.Connection, random: Random) -> Iterator[Case]:
    """Read the stars on a project's front page."""
    for row in projects(db, random, 0, "stars > 9"):
        answer = str(row["stars"])
        yield Case(
            {"project": row["place"]},
            about(f"project:{row['place']}"),
            said(exact=answer),
            [*to_project(row), stop(answer)],
        )


@template(
    "open-issues-with-label",
    'How many open issues of {{project}} carry the label "{{label}}"? Answer with the number alone.',
)
def open_issues_with_label(db: sqlite3.Connection, random: Random) -> Iterator[Case]:
    """Count the issues with a label."""
    for row, label, count in _labelled(db, random):
        plan = [*to_issues(row), choose("Label", label), click("button", "Apply filters"), stop(str(count))]
        values = {"project": row["place"], "label": label}
        yield Case(values, about(f"project:{row['place']}"), said(exact=str(count)), plan)


@template("show-label", 'Show me the open issues of {{project}} that carry the label "{{label}}".')
def show_label(db: sqlite3.Connection, random: Random) -> Iterator[Case]:
    """Open the list filtered by a label."""
    for row, label, _ in _labelled(db, random):
        url = f"{HOST}/{row['place']}/-/issues?state=opened&label={quote(label)}"
        plan = [*to_issues(row), choose("Label", label), click("button", "Apply filters"), stop()]
        judged = at(url, defaults={"state": "opened"})
        yield Case({"project": row["place"], "label": label}, about(f"project:{row['place']}"), judged, plan)


def _labelled(db: sqlite3.Connection, random: Random) -> Iterator[tuple[sqlite3.Row, str, int]]:
    query = (
        "SELECT labels.name, count(*) AS count FROM labels JOIN issue_labels ON label = labels.id"
        " JOIN issues ON issues.id = issue AND state = 'opened' AND confidential = 0 WHERE labels.project = ?"
        " AND NOT EXISTS (SELECT 1 FROM issues WHERE project = labels.project AND confidential = 1)"
        " GROUP BY labels.id HAVING count(*) > 3 ORDER BY labels.id"
    )
    for row in projects(db, random):
        for found in ask(db, random, query, row["project_id"])[:1]:
            yield row, found["name"], found["count"]


@template("reviewer", 'Who is asked to review the open merge request "{{title}}" in {{project}}? Give the full name.')
def reviewer(db: sqlite3.Connection, random: Random) -> Iterator[Case]:
    """Find the reviewer on a merge request's page."""
    for row in merges(db, random, 0, "reviewer IS NOT NULL"):
        name = db.execute("SELECT full_name FROM accounts WHERE id = ?", (row["reviewer"],)).fetchone()[0]
        values = {"title": row["title"], "project": row["place"]}
        yield Case(values, about(f"merge:{row['title']}"), said(name, rivals=names(db)), [*to_merge(row), stop(name)])


@template(
    "milestone-due",
    'When is the milestone "{{title}}" of {{project}} due? Answer like 5 Mar 2024.',
    held_out=True,
)
def milestone_due(db: sqlite3.Connection, random: Random) -> Iterator[Case]:
    """Find a due date in the list of milestones."""
    for row in projects(db, random):
        query = "SELECT * FROM milestones WHERE project = ? AND state = 'active' ORDER BY id"
        for goal in ask(db, random, query, row["project_id"])[:1]:
            day = shown(goal["due"])
            plan = [*to_project(row), click("link", "Milestones"), stop(day)]
            values = {"title": goal["title"], "project": row["place"]}
            yield Case(values, about(f"project:{row['place']}"), said(exact=day), plan)


@template("ssh-address", "I want to clone {{project}}. What is its address for cloning with SSH?")
def ssh_address(db: sqlite3.Connection, random: Random) -> Iterator[Case]:
    """Find the SSH address in the clone menu."""
    for row in projects(db, random):
        address = f"git@code.example:{row['place']}.git"
        plan = [*to_project(row), stop(address)]
        yield Case({"project": row["place"]}, about(f"project:{row['place']}"), said(address), plan)


@template("tag-date", "On which day was {{project}} tagged {{tag}}? Answer like 5 Mar 2024.")
def tag_date(db: sqlite3.Connection, random: Random) -> Iterator[Case]:
    """Find a date in the list of tags."""
    for row in projects(db, random):
        for tag in ask(db, random, "SELECT * FROM tags WHERE project = ? ORDER BY name", row["project_id"])[:1]:
            day = shown(tag["created"])
            plan = [*to_project(row), click("link", "Tags"), stop(day)]
            yield Case(
                {"project": row["place"], "tag": tag["name"]}, about(f"project:{row['place']}"), said(exact=day), plan
            )


@template(
    "documented-limit",
    "According to the documentation in the repository of {{project}}, how many entries does the {{part}} keep by"
    " default? Answer with the number alone.",
)
def documented_limit(db: sqlite3.Connection, random: Random) -> Iterator[Case]:
    """Find a value in a file within a folder."""
    query = (
        "SELECT path, text FROM files JOIN contents ON contents.id = content WHERE project = ? AND path LIKE 'docs/%'"
        " ORDER BY path"
    )
    for row in projects(db, random):
        for file in ask(db, random, query, row["project_id"])[:1]:
            name, part = (
                file["path"].split("/")[1],
                file["text"].split("\n\n")[1].split(" works ")[0].removeprefix("The "),
            )
            answer = file["text"].split(" by default")[0].split()[-1]
            plan = [*to_project(row), click("link", "docs"), click("link", name), stop(answer)]
            values = {"project": row["place"], "part": part}
            yield Case(values, about(f"project:{row['place']}"), said(exact=answer), plan)


@template(
    "oldest-open-issue", "Who opened the issue of {{project}} that has been open the longest? Give the full name."
)
def oldest_open_issue(db: sqlite3.Connection, random: Random) -> Iterator[Case]:
    """Find the oldest open issue by sorting."""
    oldest: dict[str, sqlite3.Row] = {}
    for row in sorted(issues(db, random), key=lambda row: row["created"]):
        oldest.setdefault(row["place"], row)
    chosen = list(oldest.values())
    random.shuffle(chosen)
    first = "SELECT min(created) FROM issues WHERE project = ? AND state = 'opened'"
    for row in chosen:
        if value(db, first, row["project_id"]) < row["created"]:
            continue  # the oldest issue is confidential
        name = db.execute("SELECT full_name FROM accounts WHERE id = ?", (row["author"],)).fetchone()[0]
        plan = [*to_issues(row), choose("Sort by", "Oldest"), click("button", "Apply filters"), stop(name)]
        yield Case({"project": row["place"]}, about(f"project:{row['place']}"), said(name, rivals=names(db)), plan)


@template("show-merge", 'Open the page of the merge request "{{title}}" in {{project}}.')
def show_merge(db: sqlite3.Connection, random: Random) -> Iterator[Case]:
    """Open a merge request."""
    for row in merges(db, random):
        url = f"{HOST}/{row['place']}/-/merge_requests/{row['iid']}"
        values = {"title": row["title"], "project": row["place"]}
        yield Case(values, about(f"merge:{row['title']}"), at(url), [*to_merge(row), stop()])


@template("show-changes", 'Show me which files the merge request "{{title}}" in {{project}} changes.', held_out=True)
def show_changes(db: sqlite3.Connection, random: Random) -> Iterator[Case]:
    """Open the changes of a merge request."""
    for row in merges(db, random):
        url = f"{HOST}/{row['place']}/-/merge_requests/{row['iid']}/diffs"
        plan = [*to_merges(row), click("link", row["title"]), click("link", "Changes"), stop()]
        values = {"title": row["title"], "project": row["place"]}
        yield Case(values, about(f"merge:{row['title']}"), at(url), plan)


@template("show-file", "Show me the file {{path}} of {{project}} on its default branch.")
def show_file(db: sqlite3.Connection, random: Random) -> Iterator[Case]:
    """Open a file; the finder works, too."""
    query = "SELECT path FROM files WHERE project = ? AND path LIKE 'src/%' ORDER BY path"
    for row in projects(db, random):
        for file in ask(db, random, query, row["project_id"])[:1]:
            path = file["path"]
            find = [click("link", "Find file"), fill("textbox", "Find a file by its path", path), click("link", path)]
            plan = [*to_project(row), *find, stop()]
            url = f"{HOST}/{row['place']}/-/blob/{row['branch']}/{path}"
            yield Case({"path": path, "project": row["place"]}, about(f"project:{row['place']}"), at(url), plan)


@template("show-commits-of", "Show me the commits that {{person}} made to {{project}}.", held_out=True)
def show_commits_of(db: sqlite3.Connection, random: Random) -> Iterator[Case]:
    """Open the filtered list of commits."""
    query = (
        "SELECT DISTINCT name, full_name FROM commits JOIN accounts ON accounts.id = author"
        " WHERE project = ? AND branch = ? ORDER BY name"
    )
    for row in projects(db, random):
        person = ask(db, random, query, row["project_id"], row["branch"])[0]
        commits, author = f"{HOST}/{row['place']}/-/commits", f"?author={person['name']}"
        judged = at(f"{commits}/{row['branch']}{author}", commits + author)  # it is the default branch
        plan = [*to_project(row), click("link", "Commits"), choose("Author", person["full_name"])]
        plan += [click("button", "Apply filters"), stop()]
        values = {"person": person["full_name"], "project": row["place"]}
        yield Case(values, about(f"project:{row['place']}"), judged, plan)


TEMPLATES = (
    *(commits_between, top_contributor, mail_of_top_contributor, stars, open_issues_with_label, show_label, reviewer),
    *(milestone_due, ssh_address, tag_date, documented_limit, oldest_open_issue, show_merge, show_changes, show_file),
    show_commits_of,
)
