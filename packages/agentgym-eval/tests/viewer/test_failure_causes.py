"""Tests of failure causes in the viewer: index, filters, and the pages of runs, episodes and comparisons."""

from __future__ import annotations

import json
import os
import re
from dataclasses import replace
from pathlib import Path

import pytest
from agentgym_envs import Episode, Reply, Turn
from agentgym_eval.metrics.comparison import compare
from agentgym_eval.metrics.failure_causes import episode_key
from agentgym_eval.runs.comparisons import against_first, read_runs
from agentgym_eval.storage.distances import write_distances
from agentgym_eval.viewer.index.links import Address
from agentgym_eval.viewer.index.queries import Filters
from agentgym_eval.viewer.pages.comparison import ComparisonQuery, compare_page, open_side
from agentgym_eval.viewer.pages.comparison_table import TableQuery, result_rows, table_page
from agentgym_eval.viewer.pages.episode import episode_page
from agentgym_eval.viewer.pages.lists import episodes_page
from agentgym_eval.viewer.pages.run import run_page
from agentgym_eval.viewer.pages.site import Site
from agentgym_eval.viewer.server.export import export
from viewer_runs import episode, write_episodes, write_evaluation_run, write_training_run


def looping(task: str, sample: int = 0) -> Episode:
    """The same action in the same state, again and again."""
    return episode(task, sample, False, turns=5)


def refused(task: str, sample: int = 0) -> Episode:
    turns = tuple(Turn("A room.", Reply("fly"), "fly", False, 0.0, "s") for _ in range(4))
    return replace(episode(task, sample, False), turns=turns)


def walking(task: str, sample: int = 0) -> Episode:
    turns = tuple(Turn(f"Room {at}.", Reply("go"), "go", True, 0.0, f"s{at}") for at in range(4))
    return replace(episode(task, sample, False), turns=turns)


def test_episodes_are_filtered_and_sorted_by_their_cause(site: Site) -> None:
    broken = episode("t/5", success=None, error="it broke")
    attempts = [episode("t/1"), looping("t/2"), refused("t/3"), walking("t/4"), broken]
    write_evaluation_run(site.index.root / "eval", attempts)
    site.index.refresh()
    rows = site.index.list(Filters(sort="number")).rows
    assert [(row.cause, row.cause_turn) for row in rows] == [
        (None, None), ("loop", 1), ("invalid_actions", 0), ("turn_budget", 3), (None, None),
    ]  # fmt: skip
    assert [row.task for row in site.index.list(Filters(cause="loop")).rows] == ["t/2"]
    assert [row.task for row in site.index.list(Filters(sort="cause")).rows][:3] == ["t/3", "t/2", "t/4"]
    assert site.index.facets()["cause"] == [("invalid_actions", 1), ("loop", 1), ("turn_budget", 1)]
    text = episodes_page(site, Filters.parse({"cause": "loop"}))
    assert '<option value="loop" selected>loop (1)</option>' in text
    assert '<a href="/episode/eval/episodes/1?cause=loop#turn-1" title="The turn that decided">loop</a>' in text


def test_distances_written_later_change_the_causes(site: Site) -> None:
    folder = write_evaluation_run(site.index.root / "eval", [walking("t/1"), walking("t/1", 1)])
    site.index.refresh()
    assert site.index.causes("eval") == {"episodes": {"turn_budget": 2}}
    file = folder / "episodes.jsonl"
    write_distances(file, {("agentgym/Near-v0", "t/1", 1): [2, 1, 2, 3, 4]})
    site.index.refresh()
    assert site.index.causes("eval") == {"episodes": {"turn_budget": 1, "over_interaction": 1}}
    assert [run.slug for run in site.index.runs] == ["eval"]
    assert len(site.index.run("eval").files) == 1  # the distances are no file of episodes
    stat = file.with_suffix(".distances.jsonl").stat()
    write_distances(file, {})
    os.utime(file.with_suffix(".distances.jsonl"), ns=(0, stat.st_mtime_ns + 1))
    site.index.refresh()
    assert site.index.causes("eval") == {"episodes": {"turn_budget": 2}}


def test_page_of_an_episode_links_to_the_turn_that_decided(site: Site) -> None:
    folder = write_evaluation_run(site.index.root / "eval", [episode("t/1"), looping("t/2"), walking("t/3")])
    write_distances(folder / "episodes.jsonl", {("agentgym/Near-v0", "t/3", 0): [3, 3, 1, 1, 1]})
    site.index.refresh()
    assert "Failure cause" not in episode_page(site, Address("eval", "episodes", 0))
    text = episode_page(site, Address("eval", "episodes", 1))
    assert '<a href="/episodes?run=eval&amp;cause=loop"' in text
    assert '<a href="#turn-1">decided in turn 1</a>' in text
    assert "No progress in the last 4 turns" in text
    turns = text.split('<article class="turn')[1:]
    assert ["decided: loop" in turn for turn in turns] == [False, True, False, False, False, False]
    timeline = text.partition('<svg class="timeline"')[2].partition("</svg>")[0].split("<a ")[1:]
    assert ['class="decision"' in mark for mark in timeline] == [False, True, False, False, False, False]
    assert ", decided: loop</title>" in timeline[1]
    assert '<span class="decision">' in text
    assert "decision" not in episode_page(site, Address("eval", "episodes", 0))
    measured = episode_page(site, Address("eval", "episodes", 2))
    assert "over-interaction</a>" in measured
    assert "The goal was 1 action away, with 2 turns left" in measured


def test_page_of_a_run_counts_the_causes_of_each_file(site: Site) -> None:
    folder = write_training_run(site.index.root / "trained")
    write_episodes(
        folder / "evaluations" / "step-000000-sampled.jsonl", [looping("t/1"), refused("t/2"), episode("t/3")]
    )
    write_episodes(
        folder / "evaluations" / "step-000004-sampled.jsonl", [looping("t/1"), episode("t/2"), episode("t/3")]
    )
    write_evaluation_run(site.index.root / "perfect", [episode("t/1")])
    site.index.refresh()
    table = run_page(site, "trained").partition("<h2>Why episodes failed</h2>")[2].partition("</table>")[0]
    cells = [re.sub(r"<[^>]+>", " ", row).split() for row in table.split("<tr>")[1:]]
    assert cells == [
        ["File", "Invalid", "actions", "Loop"],
        ["evaluations/step-000004-sampled", "1", "33.3%"],
        ["evaluations/step-000000-sampled", "1", "33.3%", "1", "33.3%"],
    ]
    assert 'href="/episodes?run=trained&amp;file=evaluations-step-000000-sampled-' in table
    assert "Why episodes failed" not in run_page(site, "perfect")


def test_page_of_a_run_tells_unmeasured_files_from_files_without_a_cause(site: Site) -> None:
    folder = write_training_run(site.index.root / "trained") / "evaluations"
    for step in (0, 4):
        file = write_episodes(folder / f"step-{step:06d}-sampled.jsonl", [walking("t/1"), walking("t/2")])
    write_distances(file, {("agentgym/Near-v0", "t/1", 0): [2, 1, 2, 3, 4], ("agentgym/Near-v0", "t/2", 0): [9] * 5})
    site.index.refresh()
    table = run_page(site, "trained").partition("<h2>Why episodes failed</h2>")[2].partition("</section>")[0]
    cells = [re.sub(r"<[^>]+>", " ", row).split() for row in table.split("<tr>")[2:]]
    assert cells[0] == ["evaluations/step-000004-sampled", "1", "50.0%", "1", "50.0%"]
    assert cells[1][:4] == ["evaluations/step-000000-sampled", "–", "2", "100.0%"]
    assert "not known (–)" in table


def test_causes_in_training_are_plotted_if_they_occurred(site: Site) -> None:
    folder = write_training_run(site.index.root / "trained")
    lines = [{"step": at, "failures": {"loop": at / 10, "format": 0.0, "invalid_actions": 0.2}} for at in (1, 2, 3)]
    (folder / "metrics.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    site.index.refresh()
    chart = run_page(site, "trained").partition("Failure causes in training")[2].partition("</figure>")[0]
    assert re.findall(r'<span class="c\d d\d">(.*?)</span>', chart) == ["invalid actions", "loop"]


def test_comparison_shows_the_causes_as_the_report_compares_them(site: Site) -> None:
    first = [looping("t/1"), looping("t/1", 1), looping("t/2"), refused("t/3"), episode("t/4"), looping("only/first")]
    second = [looping("t/1"), episode("t/1", 1), episode("t/2"), refused("t/3"), episode("t/4")]
    for name, attempts in (("a", first), ("b", second)):
        write_evaluation_run(site.index.root / name, attempts)
    site.index.refresh()
    text = compare_page(site, ComparisonQuery("a", "b"))
    table = text.partition("<h2>Why episodes failed</h2>")[2].partition("</table>")[0]
    cells = [re.sub(r"<[^>]+>", " ", row).split() for row in table.split("<tr>")[1:]]
    found = compare(first, second).causes["loop"]
    assert [cell[0] for cell in cells] == ["Cause", "invalid", "loop"]
    assert cells[2][1:4] == ["50.0%", "12.5%", "-37.5"]
    assert found.difference.mean == pytest.approx(-0.375)
    low, high = (f"{100 * bound:+.1f}" for bound in (found.difference.low, found.difference.high))
    assert " ".join(cells[2][4:7]) == f"{low} to {high}"
    assert '<a href="/episodes?run=a&amp;file=episodes&amp;cause=loop">' in table
    assert "distances are known for" not in text
    for known, share in ((second[:1], "some"), ([second[0], second[3]], "all")):
        write_distances(site.index.root / "b" / "episodes.jsonl", {episode_key(each): (1, 2) for each in known})
        assert f"known for none of A's failures and {share} of B's" in compare_page(site, ComparisonQuery("a", "b"))


def test_comparisons_have_causes_of_the_oracle_only_if_all_runs_were_measured(site: Site) -> None:
    episodes = [episode("t/0"), *(walking(f"t/{n}") for n in range(1, 9))]
    folders = [write_evaluation_run(site.index.root / name, episodes) for name in ("a", "b", "c")]
    distances = {episode_key(each): [2, 1, 2, 3, 4] for each in episodes[1:]}
    for number, expected in enumerate(({"turn_budget"}, {"turn_budget"}, {"over_interaction"})):
        write_distances(folders[number] / "episodes.jsonl", distances)
        site.index.refresh()
        (command,) = against_first(read_runs([folders[0], folders[2]], (), 0), 0)
        assert set(command.causes) == expected
        two = compare_page(site, ComparisonQuery("a", "c"))
        several = table_page(site, TableQuery(("a", "b", "c"), "a"))
        sides = [side for name in ("a", "b", "c") if (side := open_side(site, name))]
        for row in result_rows(site, sides, sides[0]):
            shares = {kind: (cell.episodes, cell.value.mean) for kind, cell in row.causes.items()}
            assert shares == dict.fromkeys(expected, (8, 8 / 9))
            assert all(cell.change is None or cell.change.p == 1 for cell in row.causes.values())
        for text, note in ((two, "known for all of A's failures and none of B's"), (several, "not known for all")):
            table = text.partition("<h2>Why episodes failed</h2>")[2].partition("</section>")[0]
            assert ("cause=over_interaction" in table) == ("over_interaction" in expected)
            assert (note in table) == (expected == {"turn_budget"})


def test_export_filters_by_cause(site: Site, tmp_path: Path) -> None:
    write_evaluation_run(site.index.root / "eval", [episode("t/1"), looping("t/2"), refused("t/3")])
    site.index.refresh()
    export(site.index, tmp_path / "pages", 10)
    rows = re.findall(r"data-row=\"(.*?)\"", (tmp_path / "pages" / "episodes.html").read_text())
    causes = {
        json.loads(row.replace("&#34;", '"'))["task"]: json.loads(row.replace("&#34;", '"'))["cause"] for row in rows
    }
    assert causes == {"t/1": None, "t/2": "loop", "t/3": "invalid_actions"}
