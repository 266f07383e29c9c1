from __future__ import annotations

import json
import re
from collections.abc import Iterable
from html.parser import HTMLParser
from pathlib import Path
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
from agentgym_eval.reports.plots import draw_curves, inline
from agentgym_eval.reports.tables import Cell, Table, groups, summary
from report_episodes import BROKEN, EVIL, GOOD, POOR, episode  # the file beside this one

FILES = {"report.html", "report.md", "report.json", "turns.png", "turns.svg", "k.png", "k.svg"}


def evaluated(
    episodes: list[Episode], policy: str = "p", *, world: str = "w", ks: tuple[int, ...] = (1, 2, 4)
) -> Evaluated:
    return Evaluated(policy, world, report(episodes, ks=ks), about={"settings": {"policy": policy, "k": list(ks)}})


def the(title: str, found: Iterable[Table]) -> dict[str, dict[str, Cell]]:
    """The table of that title, by row and column."""
    (table,) = (table for table in found if table.title == title)
    return {row[0].text: dict(zip(table.columns, row, strict=True)) for row in table.rows}


class Elements(HTMLParser):
    """What a page consists of."""

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


def test_one_run_leaves_its_report_as_json_and_everything_else_beside_it(tmp_path: Path) -> None:
    run = evaluated(GOOD)
    written = write_reports(tmp_path, [run], title="A run")
    assert {path.name for path in written} == {path.name for path in tmp_path.iterdir()} == FILES
    left = json.loads((tmp_path / "report.json").read_text())
    assert left == json.loads(json.dumps(run.report.to_dict() | {"settings": {"policy": "p", "k": [1, 2, 4]}}))


def test_several_runs_are_told_apart_and_compared(tmp_path: Path) -> None:
    runs, apart = [evaluated(GOOD, "good"), evaluated(POOR, "poor")], compare(GOOD, POOR, names=("good", "poor"))
    write_reports(tmp_path, runs, [apart], title="Two runs")
    left = json.loads((tmp_path / "report.json").read_text())
    assert [(run["policy"], run["overall"]["episodes"]) for run in left["runs"]] == [("good", 16), ("poor", 16)]
    assert left["comparisons"] == [json.loads(json.dumps(apart.to_dict()))]
    for name in ("report.md", "report.html"):
        assert "poor vs. good" in (tmp_path / name).read_text()


def test_tables_have_the_figures_of_the_report() -> None:
    run = evaluated(BROKEN)
    row = the("Results", summary([run], []))["p"]
    success = run.report.overall.success
    assert row["success"] == Cell(f"{success.mean:.1%}", f"{success.low * 100:.1f} to {success.high * 100:.1f}")
    assert (row["tasks"].text, row["episodes"].text, row["failed"].text) == ("5", "20", "3")
    assert row["pass^4"].text == f"{run.report.overall.pass_hat[4].mean:.1%}"
    assert "tokens" not in row
    assert the("By difficulty", groups(run))["3"]["pass@2"].text == "100.0%"


def test_what_pass_at_k_leaves_out_and_what_broke_is_said() -> None:
    run = evaluated(BROKEN)
    (results,), (*_, stops) = summary([run], []), groups(run)
    assert "p: pass@4 and pass^4 exclude 1 of 5 tasks, which have fewer attempts." in results.notes
    assert any(note.startswith("3 episodes failed: Fault") for note in stops.notes)
    ended = {row[0].text: row[1:] for row in stops.rows}
    assert stops.columns == ("episodes", "failed", "terminated")
    assert ended["all"] == (Cell("3", "15.0%"), Cell("17", "85.0%"))
    assert ended["easy"] == (Cell("0", "0.0%"), Cell("16", "100.0%"))
    assert ended["difficulty 9"] == (Cell("3", "75.0%"), Cell("1", "25.0%"))


def test_a_comparison_shows_differences_with_their_p_values() -> None:
    apart = compare(GOOD, POOR, names=("good", "poor"))
    row = the("Compared task by task", summary([evaluated(GOOD), evaluated(POOR)], [apart]))["poor vs. good"]
    gain = apart.success.difference
    assert row["success"].text == f"{gain.mean * 100:+.1f} points" and gain.mean < 0
    assert row["success"].small.endswith(f", p {apart.success.p:.2f}")
    assert (row["better"].text, row["worse"].text) == ("0", "3")


@pytest.mark.parametrize(
    ("named", "told"),
    [
        ([("a", "w"), ("b", "w")], ["a", "b"]),
        ([("a", "w"), ("a", "v")], ["a in w", "a in v"]),
        ([("a", "w"), ("b", "v")], ["a in w", "b in v"]),
        ([("a", "w"), ("a", "w")], ["a in w, run 1", "a in w, run 2"]),
    ],
)
def test_names_are_as_short_as_tells_runs_apart(named: list[tuple[str, str]], told: list[str]) -> None:
    one = report(GOOD)
    assert labels([Evaluated(policy, world, one) for policy, world in named]) == told


def test_the_same_policy_in_the_same_world_is_told_apart_by_its_folder() -> None:
    runs = [Evaluated("a", "w", report(GOOD), folder=Path(name)) for name in ("x", "y")]
    assert labels(runs) == ["a in w (x)", "a in w (y)"]


def test_nothing_of_a_run_becomes_markup(tmp_path: Path) -> None:
    run = evaluated(BROKEN, EVIL, world=EVIL)
    write_reports(tmp_path, [run], title=EVIL)
    found = Elements((tmp_path / "report.html").read_text())
    assert "script" not in found.tags
    assert not [name for name, _ in found.attributes if name.startswith("on")]
    assert found.text.count(EVIL) >= 5  # title, heading, row, category, fault, settings
    assert "<script>" not in (tmp_path / "report.md").read_text()


def test_the_page_loads_nothing(tmp_path: Path) -> None:
    write_reports(tmp_path, [evaluated(GOOD)], title="A run")
    found = Elements((tmp_path / "report.html").read_text())
    assert not {"link", "img", "iframe", "script", "object", "embed"} & set(found.tags)
    links = [value for name, value in found.attributes if name in ("src", "href", "xlink:href", "action")]
    assert links and all(value and value.startswith("#") for value in links)  # shapes of the pictures
    assert "@import" not in found.text and not re.search(r"url\((?!#)", (tmp_path / "report.html").read_text())
    assert f"uv run view {tmp_path}" in found.text


def test_pictures_in_a_page_share_no_names_and_take_the_colours_of_the_page(tmp_path: Path) -> None:
    drawn = [inline(svg, label="a curve") for svg in draw_curves(tmp_path, [evaluated(GOOD)]).values()]
    names = [set(re.findall(r'\bid="([^"]+)"', svg)) for svg in drawn]
    assert len(drawn) == 2 and names[0] and not names[0] & names[1]
    for svg in drawn:
        root = ElementTree.fromstring(svg)
        assert root.attrib["role"] == "img"
        assert set(re.findall(r"#[0-9a-f]{6}\b", svg)) == {"#1f83cc"}  # the one run's line


def test_the_same_runs_give_the_same_files(tmp_path: Path) -> None:
    for name in ("once", "twice"):
        (tmp_path / name).mkdir()
        draw_curves(tmp_path / name, [evaluated(GOOD), evaluated(POOR, "poor")])
    for name in ("turns.svg", "turns.png", "k.svg", "k.png"):
        assert (tmp_path / "once" / name).read_bytes() == (tmp_path / "twice" / name).read_bytes()


def test_a_curve_without_points_is_left_out_and_an_old_one_taken_away(tmp_path: Path) -> None:
    assert draw_curves(tmp_path, [evaluated(GOOD)]).keys() == {"turns", "k"}
    assert draw_curves(tmp_path, [evaluated(GOOD, ks=(1,))]).keys() == {"turns"}
    assert {path.name for path in tmp_path.iterdir()} == {"turns.svg", "turns.png"}
    assert not draw_curves(tmp_path, [evaluated([episode(0, 0, None)], ks=(1,))])
    assert not list(tmp_path.iterdir())


def test_a_picture_has_its_line_where_the_figures_are(tmp_path: Path) -> None:
    """The curve of GOOD ends above that of POOR: more of the picture's upper half is of its colour."""
    from matplotlib.image import imread

    draw_curves(tmp_path, [evaluated(GOOD, "good", ks=(1,)), evaluated(POOR, "poor", ks=(1,))])
    pixels = np.asarray(imread(tmp_path / "turns.png"))[..., :3]
    rows = {
        name: np.nonzero(np.abs(pixels - np.array(colour)).max(axis=-1) < 0.02)[0] for name, colour in LINES.items()
    }
    assert rows["good"].min() < rows["poor"].min()


def test_the_last_step_of_success_against_turns_has_a_width(tmp_path: Path) -> None:
    svg = draw_curves(tmp_path, [evaluated(GOOD, ks=(1,))])["turns"]
    line, *_legend = re.findall(r'<path d="([^"]+)"[^>]*stroke: #1f83cc', svg)
    points = re.findall(r"([\d.]+) ([\d.]+)", line)
    level = [float(x) for x, y in points if y == points[-1][1]]
    assert max(level) > min(level)


def test_a_picture_grows_with_its_legend_and_cuts_long_names(tmp_path: Path) -> None:
    heights = list[float]()
    for count in (1, 6):
        svg = draw_curves(tmp_path, [evaluated(GOOD, f"{'n' * 100}-{number}", ks=(1,)) for number in range(count)])[
            "turns"
        ]
        heights.append(float(ElementTree.fromstring(svg).attrib["height"].removesuffix("pt")))
    assert heights[1] > heights[0] + 5 * 12
    assert f"…{'n' * 38}-5" in svg and "n" * 41 not in svg


LINES = {"good": (0x1F / 255, 0x83 / 255, 0xCC / 255), "poor": (0xE6 / 255, 0x9F / 255, 0.0)}


def test_markdown_tables_are_whole_whatever_names_hold() -> None:
    runs = [evaluated(BROKEN, EVIL)]
    text = markdown(runs, list(summary(runs, [])), title=EVIL, folder=Path("a b"), pictures=["turns"])
    for block in re.findall(r"(?:^\|.*\n)+", text, re.MULTILINE):
        widths = {len(re.findall(r"(?<!\\)\|", line)) for line in block.splitlines()}
        assert len(widths) == 1
    assert "![Success against the number of allowed turns](turns.png)" in text
    assert "uv run view 'a b'" in text


def test_the_command_that_shows_the_episodes_names_where_they_lie(tmp_path: Path) -> None:
    """The second run is a file beside others, as training leaves its evaluations."""
    file = tmp_path / "evaluations" / "step-000001-greedy.jsonl"
    file.parent.mkdir()
    file.touch()
    runs = [Evaluated("a", "w", report(GOOD), folder=path) for path in (tmp_path / "one", file)]
    assert view_commands(tmp_path, runs) == [f"uv run view {tmp_path}"]
    assert view_commands(tmp_path / "one", runs[:1]) == [f"uv run view {tmp_path / 'one'}"]
    apart = [f"uv run view {path}" for path in (tmp_path / "one", tmp_path / "evaluations")]
    assert view_commands(tmp_path / "compared", runs) == apart


def test_line_breaks_and_marks_stay_text() -> None:
    assert escaped("a\nb | *c* <d> & _e_") == r"a b \| \*c\* \<d\> &amp; \_e\_"


def test_a_page_of_nothing_but_failures_can_be_written() -> None:
    run = evaluated([episode(0, s, None) for s in range(2)])
    text = page([run], list(summary([run], [])), title="All failed", folder=Path("x"), curves={})
    assert "–" in Elements(text).text and "nan" not in text.lower()
