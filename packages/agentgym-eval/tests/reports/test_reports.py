"""Tests of written reports: tables, Markdown, HTML, JSON and plots."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from html.parser import HTMLParser
from itertools import combinations
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
from agentgym_envs import Episode
from agentgym_eval.metrics.comparison import compare
from agentgym_eval.metrics.summary import report
from agentgym_eval.reports import Evaluated, write_reports
from agentgym_eval.reports.evaluated import labels, view_commands
from agentgym_eval.reports.markdown import escaped, markdown
from agentgym_eval.reports.page import page
from agentgym_eval.reports.plots import TITLES, draw_curves, inline
from agentgym_eval.reports.tables import Cell, Table, groups, summary
from matplotlib.backends.backend_agg import FigureCanvasAgg
from report_episodes import BROKEN, EVIL, GOOD, POOR, episode

PLOTS = {f"{name}.{kind}" for name in TITLES for kind in ("png", "svg")}
FILES = {"report.html", "report.md", "report.json", *PLOTS}


def evaluated(
    episodes: list[Episode], policy: str = "p", *, env: str = "w", ks: tuple[int, ...] = (1, 2, 4)
) -> Evaluated:
    return Evaluated(policy, env, report(episodes, ks=ks), about={"settings": {"policy": policy, "k": list(ks)}})


def cells(title: str, tables: Iterable[Table]) -> dict[str, dict[str, Cell]]:
    """Return the cells of the table with the given title, by row and column."""
    (table,) = (table for table in tables if table.title == title)
    return {row[0].text: dict(zip(table.columns, row, strict=True)) for row in table.rows}


class Elements(HTMLParser):
    """The tags, attributes and text of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.text = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs

    def handle_data(self, data: str) -> None:
        self.text += data


def test_report_of_one_run_has_json_pages_and_plots(tmp_path: Path) -> None:
    run = evaluated(GOOD)
    written = write_reports(tmp_path, [run], title="A run")
    assert {path.name for path in written} == {path.name for path in tmp_path.iterdir()} == FILES
    record = json.loads((tmp_path / "report.json").read_text())
    assert record == json.loads(json.dumps(run.report.to_dict() | {"settings": {"policy": "p", "k": [1, 2, 4]}}))


def test_report_of_several_runs_has_their_comparison(tmp_path: Path) -> None:
    runs, comparison = [evaluated(GOOD, "good"), evaluated(POOR, "poor")], compare(GOOD, POOR, names=("good", "poor"))
    write_reports(tmp_path, runs, [comparison], title="Two runs")
    record = json.loads((tmp_path / "report.json").read_text())
    assert [(run["policy"], run["overall"]["episodes"]) for run in record["runs"]] == [("good", 16), ("poor", 16)]
    assert record["comparisons"] == [json.loads(json.dumps(comparison.to_dict()))]
    for name in ("report.md", "report.html"):
        assert "poor vs. good" in (tmp_path / name).read_text()


def test_tables_show_the_metrics_of_the_report() -> None:
    run = evaluated(BROKEN)
    row = cells("Results", summary([run], []))["p"]
    success = run.report.overall.success
    assert row["success"] == Cell(f"{success.mean:.1%}", f"{success.low * 100:.1f} to {success.high * 100:.1f}")
    assert (row["tasks"].text, row["episodes"].text, row["failed"].text) == ("5", "20", "3")
    assert row["pass^4"].text == f"{run.report.overall.pass_hat[4].mean:.1%}"
    assert "tokens" not in row
    assert cells("By difficulty", groups(run))["3"]["pass@2"].text == "100.0%"


def test_notes_name_exclusions_of_pass_at_k_and_failures() -> None:
    run = evaluated(BROKEN)
    (results,), (*_, stops) = summary([run], []), groups(run)
    assert "p: pass@4 and pass^4 exclude 1 of 5 tasks, which have fewer attempts." in results.notes
    assert any(note.startswith("3 episodes failed: Fault") for note in stops.notes)
    stop_counts = {row[0].text: row[1:] for row in stops.rows}
    assert stops.columns == ("episodes", "failed", "terminated")
    assert stop_counts["all"] == (Cell("3", "15.0%"), Cell("17", "85.0%"))
    assert stop_counts["easy"] == (Cell("0", "0.0%"), Cell("16", "100.0%"))
    assert stop_counts["difficulty 9"] == (Cell("3", "75.0%"), Cell("1", "25.0%"))


def test_comparison_table_shows_differences_with_p_values() -> None:
    comparison = compare(GOOD, POOR, names=("good", "poor"))
    row = cells("Compared task by task", summary([evaluated(GOOD), evaluated(POOR)], [comparison]))["poor vs. good"]
    gain = comparison.success.difference
    assert row["success"].text == f"{gain.mean * 100:+.1f} points" and gain.mean < 0
    assert row["success"].small.endswith(f", p {comparison.success.p:.2f}")
    assert (row["better"].text, row["worse"].text) == ("0", "3")


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        ([("a", "w"), ("b", "w")], ["a", "b"]),
        ([("a", "w"), ("a", "v")], ["a in w", "a in v"]),
        ([("a", "w"), ("b", "v")], ["a in w", "b in v"]),
        ([("a", "w"), ("a", "w")], ["a in w, run 1", "a in w, run 2"]),
    ],
)
def test_labels_are_the_shortest_unique_names(names: list[tuple[str, str]], expected: list[str]) -> None:
    metrics = report(GOOD)
    assert labels([Evaluated(policy, env, metrics) for policy, env in names]) == expected


def test_labels_of_equal_runs_include_their_folders() -> None:
    runs = [Evaluated("a", "w", report(GOOD), folder=Path(name)) for name in ("x", "y")]
    assert labels(runs) == ["a in w (x)", "a in w (y)"]


def test_names_of_a_run_are_escaped(tmp_path: Path) -> None:
    run = evaluated(BROKEN, EVIL, env=EVIL)
    write_reports(tmp_path, [run], title=EVIL)
    elements = Elements((tmp_path / "report.html").read_text())
    assert "script" not in elements.tags
    assert not [name for name, _ in elements.attributes if name.startswith("on")]
    assert elements.text.count(EVIL) >= 5  # title, heading, row, category, fault, settings
    assert "<script>" not in (tmp_path / "report.md").read_text()


def test_page_references_no_external_resources(tmp_path: Path) -> None:
    write_reports(tmp_path, [evaluated(GOOD)], title="A run")
    elements = Elements((tmp_path / "report.html").read_text())
    assert not {"link", "img", "iframe", "script", "object", "embed"} & set(elements.tags)
    links = [value for name, value in elements.attributes if name in ("src", "href", "xlink:href", "action")]
    assert links and all(value and value.startswith("#") for value in links)  # references within the plots
    assert "@import" not in elements.text and not re.search(r"url\((?!#)", (tmp_path / "report.html").read_text())
    assert f"uv run view {tmp_path}" in elements.text


def test_inline_plots_have_unique_ids_and_inherit_colors(tmp_path: Path) -> None:
    plots = {name: inline(svg, label="a plot") for name, svg in draw_curves(tmp_path, [evaluated(GOOD)]).items()}
    names = [set(re.findall(r'\bid="([^"]+)"', svg)) for svg in plots.values()]
    assert len(plots) == 3 and all(names) and not any(a & b for a, b in combinations(names, 2))
    for name, svg in plots.items():
        root = ElementTree.fromstring(svg)
        assert root.attrib["role"] == "img"
        if name == "turns_k":
            assert "currentColor" in svg
        else:
            assert set(re.findall(r"#[0-9a-f]{6}\b", svg)) == {"#1f83cc"}  # the color of the run's line


def test_plots_are_deterministic(tmp_path: Path) -> None:
    for name in ("once", "twice"):
        (tmp_path / name).mkdir()
        draw_curves(tmp_path / name, [evaluated(GOOD), evaluated(POOR, "poor")])
    for name in PLOTS:
        assert (tmp_path / "once" / name).read_bytes() == (tmp_path / "twice" / name).read_bytes()


def test_plots_without_points_are_omitted_and_old_ones_removed(tmp_path: Path) -> None:
    assert draw_curves(tmp_path, [evaluated(GOOD)]).keys() == {"turns", "k", "turns_k"}
    assert draw_curves(tmp_path, [evaluated(GOOD, ks=(1,))]).keys() == {"turns"}
    assert {path.name for path in tmp_path.iterdir()} == {"turns.svg", "turns.png"}
    assert not draw_curves(tmp_path, [evaluated([episode(0, 0, None)], ks=(1,))])
    assert not list(tmp_path.iterdir())


def test_plotted_lines_match_the_values(tmp_path: Path) -> None:
    """The curve of GOOD ends above that of POOR, so its topmost pixel is higher."""
    from matplotlib.image import imread

    draw_curves(tmp_path, [evaluated(GOOD, "good", ks=(1,)), evaluated(POOR, "poor", ks=(1,))])
    pixels = np.asarray(imread(tmp_path / "turns.png"))[..., :3]
    rows = {
        name: np.nonzero(np.abs(pixels - np.array(color)).max(axis=-1) < 0.02)[0] for name, color in LINE_COLORS.items()
    }
    assert rows["good"].min() < rows["poor"].min()


def test_labels_of_pass_at_k_by_turns_are_within_their_panel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The last of 60 columns is much narrower than its label."""
    figures: list[Any] = []
    monkeypatch.setattr("agentgym_eval.reports.plots._save", lambda at, _, svg: (figures.append(at), svg.touch()))
    long = [episode(task, sample, sample < task, turns=60 - 10 * sample) for task in range(4) for sample in range(4)]
    draw_curves(tmp_path, [evaluated(long), evaluated(GOOD)])
    FigureCanvasAgg(figures[-1]).draw()
    first, second, bar = figures[-1].axes
    for axes in (first, second):
        assert len(axes.texts) in (24, 12)
        assert all(text.get_window_extent().x1 <= axes.bbox.x1 + 1 for text in axes.texts)
    assert bar.get_ylabel() == "pass@k" and bar.get_ylim() == (0, 1)


def test_last_step_of_success_by_turns_has_positive_width(tmp_path: Path) -> None:
    svg = draw_curves(tmp_path, [evaluated(GOOD, ks=(1,))])["turns"]
    line, *_legend = re.findall(r'<path d="([^"]+)"[^>]*stroke: #1f83cc', svg)
    points = re.findall(r"([\d.]+) ([\d.]+)", line)
    last_step = [float(x) for x, y in points if y == points[-1][1]]
    assert max(last_step) > min(last_step)


def test_plot_grows_with_its_legend_and_shortens_long_names(tmp_path: Path) -> None:
    heights = list[float]()
    for count in (1, 6):
        svg = draw_curves(tmp_path, [evaluated(GOOD, f"{'n' * 100}-{number}", ks=(1,)) for number in range(count)])[
            "turns"
        ]
        heights.append(float(ElementTree.fromstring(svg).attrib["height"].removesuffix("pt")))
    assert heights[1] > heights[0] + 5 * 12
    assert f"…{'n' * 38}-5" in svg and "n" * 41 not in svg


LINE_COLORS = {"good": (0x1F / 255, 0x83 / 255, 0xCC / 255), "poor": (0xE6 / 255, 0x9F / 255, 0.0)}


def test_markdown_tables_stay_valid_for_special_characters() -> None:
    runs = [evaluated(BROKEN, EVIL)]
    text = markdown(runs, list(summary(runs, [])), title=EVIL, folder=Path("a b"), pictures=["turns"])
    for block in re.findall(r"(?:^\|.*\n)+", text, re.MULTILINE):
        widths = {len(re.findall(r"(?<!\\)\|", line)) for line in block.splitlines()}
        assert len(widths) == 1
    assert "![Success against the number of allowed turns](turns.png)" in text
    assert "uv run view 'a b'" in text


def test_view_commands_name_the_folders_of_the_episodes(tmp_path: Path) -> None:
    """The second run is a file among others, like the evaluations of a training run."""
    file = tmp_path / "evaluations" / "step-000001-greedy.jsonl"
    file.parent.mkdir()
    file.touch()
    runs = [Evaluated("a", "w", report(GOOD), folder=path) for path in (tmp_path / "one", file)]
    assert view_commands(tmp_path, runs) == [f"uv run view {tmp_path}"]
    assert view_commands(tmp_path / "one", runs[:1]) == [f"uv run view {tmp_path / 'one'}"]
    separate = [f"uv run view {path}" for path in (tmp_path / "one", tmp_path / "evaluations")]
    assert view_commands(tmp_path / "compared", runs) == separate


def test_markdown_escapes_line_breaks_and_special_characters() -> None:
    assert escaped("a\nb | *c* <d> & _e_") == r"a b \| \*c\* \<d\> &amp; \_e\_"


def test_page_of_only_failed_episodes_can_be_written() -> None:
    run = evaluated([episode(0, s, None) for s in range(2)])
    text = page([run], list(summary([run], [])), title="All failed", folder=Path("x"), curves={})
    assert "–" in Elements(text).text and "nan" not in text.lower()
