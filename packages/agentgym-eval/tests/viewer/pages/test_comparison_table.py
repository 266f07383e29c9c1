"""Tests of the table that compares several runs with one of them."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from html import unescape
from typing import Any

import pytest
from agentgym_envs import Episode
from agentgym_eval.metrics.comparison import adjusted, compare, holm
from agentgym_eval.metrics.intervals import share
from agentgym_eval.metrics.summary import SCHEMA
from agentgym_eval.util.errors import UsageError
from agentgym_eval.viewer.index.run_notes import RunNotes, write_notes
from agentgym_eval.viewer.pages.comparison import ComparisonQuery, compare_page, open_side
from agentgym_eval.viewer.pages.comparison_table import ResultRow, TableQuery, comparable_runs, result_rows, table_page
from agentgym_eval.viewer.pages.site import Site
from agentgym_eval.viewer.server.app import make_app
from starlette.testclient import TestClient
from viewer_runs import EVIL, GetPage, episode, write_evaluation_run, write_training_run

CATEGORIES = ("easy", "hard")
EPISODES: Mapping[str, Sequence[Episode]] = {
    name: [
        episode(f"t/{n}", sample, (n * 7 + sample * 3) % 10 < level, category=CATEGORIES[n % 2], turns=1 + level % 4)
        for n in range(first, first + 20)
        for sample in range(2)
    ]
    for name, (level, first) in {"base": (2, 0), "mid": (5, 4), "top": (9, 0)}.items()
}


@pytest.fixture
def compared(site: Site) -> Site:
    for name, episodes in EPISODES.items():
        write_evaluation_run(site.index.root / name, episodes)
    site.index.refresh()
    return site


def rows_of(site: Site, *slugs: str, baseline: str = "") -> dict[str, ResultRow]:
    sides = [side for slug in slugs if (side := open_side(site, slug))]
    (first,) = [side for side in sides if side.run.slug == (baseline or slugs[0])]
    return {row.side.run.slug: row for row in result_rows(site, sides, first)}


def page(site: Site, *runs: str, **query: str) -> str:
    return table_page(site, TableQuery.parse(query, runs))


def test_results_and_adjusted_differences_are_those_of_the_command(compared: Site) -> None:
    rows = rows_of(compared, "base", "mid", "top")
    expected = adjusted([compare(EPISODES["base"], EPISODES[name]) for name in ("mid", "top")])
    assert rows["base"].success.change is None
    for name, comparison in zip(("mid", "top"), expected, strict=True):
        row = rows[name]
        assert row.success.change and row.success.change.to_dict() == comparison.success.to_dict()
        assert (row.common, row.better, row.worse) == (comparison.tasks, comparison.better, comparison.worse)
    assert [row.turns for row in rows.values()] == [3, 2, 2]
    assert rows["mid"].common == 16
    assert [row.success.value for row in rows.values()] == [
        compared.index.success(name, "episodes") for name in ("base", "mid", "top")
    ]


def test_incomplete_runs_are_named(compared: Site) -> None:
    for name, tasks in (("base", 20), ("mid", 50)):
        settings = {"policy": "oracle", "samples": 2, "tasks": tasks}
        write_evaluation_run(compared.index.root / name, EPISODES[name], settings=settings)
    (compared.index.root / "mid" / "report.json").unlink()
    compared.index.refresh()
    for text in (page(compared, "base", "mid", "top"), compare_page(compared, ComparisonQuery("base", "mid"))):
        plain = " ".join(re.sub("<[^>]+>", "", text).split())
        assert "mid is incomplete (running): 60 of 100 episodes have not been played yet." in plain
        assert plain.count("incomplete") == 1


def test_two_runs_are_compared_with_both_rates_even_without_failures(site: Site) -> None:
    for name in ("a", "b"):
        write_evaluation_run(site.index.root / name, [episode(f"t/{n}") for n in range(20 + (name == "b"))])
    site.index.refresh()
    text = compare_page(site, ComparisonQuery("a", "b"))
    rates = re.findall(r"<dt>Success of (.)<dd>(.*?)</div>", text)
    assert rates == [(name, "100.0% <small>83.9% to 100.0%</small>") for name in "AB"]
    assert "<h2>Tasks</h2>" in text and "<h2>Why episodes failed</h2>" not in text


def test_differences_are_to_the_chosen_baseline(compared: Site) -> None:
    rows = rows_of(compared, "base", "mid", "top", baseline="top")
    change = rows["base"].success.change
    assert change and change.difference.mean < 0 and rows["top"].success.change is None
    text = page(compared, "base", "mid", "top", baseline="top")
    assert re.search(r">top</a> <span class=\"tag\">baseline</span>", text)
    assert 'href="/compare?run=base&amp;run=mid&amp;run=top&amp;baseline=mid">Make baseline</a>' in text
    assert 'href="/compare?a=top&amp;b=mid">16</a>' in text
    assert page(compared, "base", "mid", "top", baseline="gone").count('class="tag">baseline') == text.count(
        'class="tag">baseline'
    )


def test_categories_and_causes_are_adjusted_over_their_table(compared: Site) -> None:
    rows = rows_of(compared, "base", "mid", "top")
    assert list(rows["mid"].cells) == [("", "easy"), ("", "hard")]
    easy = [each for each in EPISODES["top"] if each.category == "easy"]
    by_task: dict[str, list[float]] = {}
    for each in easy:
        by_task.setdefault(each.task_id, []).append(float(bool(each.success)))
    expected = share([sum(values) / len(values) for values in by_task.values()])
    assert rows["top"].cells["", "easy"].value.mean == expected.mean
    for cells in ([row.cells for row in rows.values()], [row.causes for row in rows.values()]):
        changes = [cell.change for each in cells for cell in each.values() if cell.change]
        ps = holm({str(number): change.p for number, change in enumerate(changes)})
        assert [change.p_adjusted for change in changes] == list(ps.values())
        assert any(change.p_adjusted > change.p for change in changes)
    failed = sum(not each.success for each in EPISODES["base"])
    assert sum(cell.episodes for cell in rows["base"].causes.values()) == failed
    assert sum(cell.value.mean for cell in rows["base"].causes.values()) + rows["base"].success.value.mean == (
        pytest.approx(1)
    )
    text = page(compared, "base", "mid", "top")
    assert "Success by category" in text and "Why episodes failed" in text


def test_environments_are_told_apart(site: Site) -> None:
    for name in ("a", "b"):
        episodes = [episode(f"t/{n}", env=f"agentgym/{env}-v0") for env in ("Near", "Far") for n in range(3)]
        write_evaluation_run(site.index.root / name, episodes)
    site.index.refresh()
    text = page(site, "a", "b", baseline="a")
    assert "Success by environment and category" in text
    heads = re.findall(r'<th class="n">([^<]*)', text)
    assert heads[-4:] == ["far", "far: easy", "near", "near: easy"]
    assert "env=agentgym%2FFar-v0&amp;category=easy" in text


def usage(site: Site, name: str, **counts: Any) -> None:
    record = {"requests": 4, "prompt_tokens": 4000, "cached_tokens": 0, "completion_tokens": 400} | counts
    (site.index.root / name / "usage.json").write_text(json.dumps(record))


def test_tokens_and_costs_are_shown_if_they_are_known(compared: Site) -> None:
    usage(compared, "base", cost=1.25)
    usage(compared, "mid", uncounted=4)
    overall = {"episodes": 40, "tasks": 20, "tokens": {"mean": 77.4}, "pass_at": {}, "pass_hat": {}}
    overall["success"] = {"mean": 0.5, "low": 0.4, "high": 0.6, "tasks": 20}
    (compared.index.root / "top" / "report.json").write_text(json.dumps({"schema": SCHEMA, "overall": overall}))
    rows = rows_of(compared, "base", "mid", "top")
    assert [(row.tokens, row.prompt_tokens) for row in rows.values()] == [(10, 100), (None, None), (77.4, None)]
    text = re.sub(r"<[^>]+>|\s+", " ", page(compared, "base", "mid", "top"))
    assert re.search(r"10 +prompt 100 +1\.2500", text) and re.search(r"77 +–", text) and "unknown" in text


def test_runs_without_results_are_named(compared: Site) -> None:
    root = compared.index.root
    write_evaluation_run(root / "empty", [], done=False)
    write_evaluation_run(root / "other", [episode(f"other/{n}") for n in range(3)])
    write_evaluation_run(root / "broken", [episode(f"t/{n}", 0, None) for n in range(3)])
    compared.index.refresh()
    text = unescape(page(compared, "base", "other", "broken", "empty", "gone"))
    assert 'No episodes (yet): <a href="/run/empty">' in text and "no longer exists: gone" in text
    rows = rows_of(compared, "base", "other", "broken")
    assert [row.common for row in rows.values()] == [20, 0, 0]
    assert rows["other"].success.change is None and rows["broken"].score is None
    for chosen in ((), ("base",), ("base", "empty")):
        assert "Choose two or more runs" in page(compared, *chosen)


def test_training_runs_are_compared_by_their_last_evaluation(site: Site) -> None:
    for name in ("a", "b"):
        write_training_run(site.index.root / name, split="dev", with_test=True)
    site.index.refresh()
    assert {row.side.file.name for row in rows_of(site, "a", "b").values()} == {"evaluations/test-000004-sampled"}


def test_names_are_escaped_and_settings_that_differ_are_named(site: Site) -> None:
    for name, temperature in (("a", 0.5), ("b", 1.0)):
        settings = {"policy": name, "temperature": temperature, "horizon": 3}
        folder = write_evaluation_run(site.index.root / name, [episode(category=EVIL)], settings=settings)
        write_notes(folder, RunNotes(EVIL, tags=(f"x{EVIL}",)))
    site.index.refresh()
    text = page(site, "a", "b")
    assert EVIL not in text
    assert "The runs differ in temperature." in text


def test_address_has_the_runs_and_the_baseline(compared: Site, get_page: GetPage) -> None:
    text = get_page("/compare?run=base&run=mid&run=top&baseline=mid&tag=")
    assert 'hx-get="/compare?run=base&amp;run=mid&amp;run=top&amp;baseline=mid"' in text
    assert "Compare two runs" in get_page("/compare?run=base&run=mid&tag=")
    assert "Compare runs" in get_page("/compare?run=base&run=mid&baseline=")
    browser = TestClient(make_app(compared), "http://127.0.0.1:8000")
    seen = {"x-seen": compared.index.version}
    assert browser.get("/compare?run=base&run=mid&run=top", headers=seen).status_code == 204
    assert "has no sort" in get_page("/compare?run=base&run=mid&run=top&sort=task", 400)


def test_too_many_runs_are_refused() -> None:
    with pytest.raises(UsageError, match="At most 20 runs can be compared at once, not 21"):
        TableQuery.parse({}, list(map(str, range(21))))
    assert TableQuery.parse({"run": "a"}, ["a", "b", "a", ""]) == TableQuery(("a", "b"))


def test_comparable_runs_share_tasks_directly_or_through_others(site: Site) -> None:
    names = {"a": (0, 1), "b": (4, 5), "c": (1, 4), "d": (9,), "e": (9, 10), "f": (20,)}
    for name, numbers in names.items():
        write_evaluation_run(site.index.root / name, [episode(f"t/{n}") for n in numbers])
    write_evaluation_run(site.index.root / "broken", [episode("t/1", 0, None)])
    write_evaluation_run(site.index.root / "elsewhere", [episode("t/1", env="agentgym/Far-v0")])
    write_evaluation_run(site.index.root / "empty", [], done=False)
    site.index.refresh()
    assert comparable_runs(site) == [("a", "b", "c"), ("d", "e")]
