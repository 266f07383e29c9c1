"""Tests of the page of a run: its report, stop reasons, usage, warnings and curves."""

from __future__ import annotations

import html
import json
import os
import re
from pathlib import Path

import pytest
from agentgym_envs import Episode
from agentgym_eval.metrics.summary import report
from agentgym_eval.reports import Evaluated, write_reports
from agentgym_eval.viewer.index.links import FileLinks
from agentgym_eval.viewer.pages.comparison import ComparisonQuery, compare_page
from agentgym_eval.viewer.pages.lists import runs_page
from agentgym_eval.viewer.pages.run import run_page
from agentgym_eval.viewer.pages.site import Site
from agentgym_eval.viewer.server.app import make_app
from starlette.testclient import TestClient
from viewer_runs import EVIL, episode, write_evaluation_run, write_training_run

EPISODES = [episode(f"t/{task}", sample, sample < task) for task in range(3) for sample in range(2)]


def write_reported_run(folder: Path, episodes: list[Episode]) -> Path:
    write_evaluation_run(folder, episodes)
    write_reports(folder, [Evaluated("oracle", "w", report(episodes, ks=(1, 2)))], title="t")
    return folder


def client(site: Site) -> TestClient:
    return TestClient(make_app(site), "http://127.0.0.1:8000")


def definitions(text: str) -> dict[str, str]:
    """Return the text under each name of the definition lists."""
    entries = re.findall(r"<dt>(.*?)<dd>(.*?)</div>", text, re.DOTALL)
    return {name: " ".join(re.sub(r"<[^>]+>", "", value).split()) for name, value in entries}


def test_mean_advantage_is_plotted_if_it_is_logged(site: Site) -> None:
    folder = write_training_run(site.index.root / "trained")
    site.index.refresh()
    assert "Mean advantage of a token in the loss" not in run_page(site, "trained")
    lines = [{"step": step, "success": 0.5, "advantage/mean_token": -0.1 * step} for step in (1, 2, 3)]
    (folder / "metrics.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    text = run_page(site, "trained")
    assert "Mean advantage of a token in the loss" in text
    assert "-0.3" in text


def test_warnings_are_listed_with_their_steps(site: Site) -> None:
    folder = write_training_run(site.index.root / "trained")
    site.index.refresh()
    assert "Warnings" not in run_page(site, "trained")
    warning = {"id": "flat-groups", "sentence": f"Nothing was learned. {EVIL}"}
    lines = [{"step": 1, "warnings": []}, {"step": 2, "warnings": [warning]}]
    lines += [{"step": 3, "warnings": invalid} for invalid in (None, 1, ["x"], [{}], [{"id": 1, "sentence": "odd"}])]
    (folder / "metrics.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    table = run_page(site, "trained").partition("<h2>Warnings</h2>")[2].partition("</table>")[0]
    assert re.findall(r"<td.*?</tr>", table) == [
        f'<td class="n">2<td><code>flat-groups</code><td>Nothing was learned. {html.escape(EVIL)}</tr>'
    ]


def test_the_curve_has_gaps_and_each_step_once(site: Site) -> None:
    """Null is a success that can't be computed; a run that was killed repeats steps."""
    folder = write_training_run(site.index.root / "trained", 0)
    stage = {"number": 0, "why": "begin"}
    steps = [(4, 0.25), (5, 0.5), (6, None), (7, 0.25), (8, 0.75), (8, 1.0), (9, 0.5)]
    lines = [{"step": at, "success": success, "horizon": 4 + at % 2, "stage": stage} for at, success in steps]
    (folder / "metrics.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    for file in (folder / "evaluations").iterdir():
        file.unlink()
    site.index.refresh()
    chart = run_page(site, "trained").partition('<figure class="chart">')[2].partition("</figure>")[0]
    assert re.findall(r'points="([^"]+)"', chart) == ["52.0,205.5 219.2,145.0", "553.6,205.5 720.8,24.0 888.0,145.0"]
    assert re.findall(r"<title>step (\d)", chart) == ["4", "5", "7", "8", "9"]
    bands = [tuple(map(float, band)) for band in re.findall(r'<rect x="([\d.]+)" y="24" width="([\d.]+)"', chart)]
    assert bands == [(x, pytest.approx(167.2)) for x in (52.0, 219.2, 386.4, 553.6, 720.8)]  # from step 4


def test_stopped_run_shows_how_to_resume(site: Site) -> None:
    folder = write_evaluation_run(site.index.root / "eval", [], done=False, command=["evaluate", "--out", EVIL])
    for path in folder.iterdir():
        os.utime(path, (0, 0))
    site.index.refresh()
    text = run_page(site, "eval")
    assert "This run stopped before it was complete, without a finished episode." in text
    assert "To resume it, run the same command again: <code>evaluate --out &#39;&lt;script&gt;" in text


def test_the_command_to_resume_is_quoted_and_has_its_working_folder(site: Site) -> None:
    command = ["/bin/evaluate", "--env", "textcraft", "--body", 'extra={"a": 1}', "--out", "runs/my run"]
    folder = write_evaluation_run(site.index.root / "e", [], done=False, command=command, folder="/data/a b")
    for file in folder.iterdir():
        os.utime(file, (1, 1))
    site.index.refresh()
    text = html.unescape(run_page(site, "e"))
    quoted = """<code>/bin/evaluate --env textcraft --body 'extra={"a": 1}' --out 'runs/my run'</code>"""
    assert f"run the same command again in <code>/data/a b</code>: {quoted}" in text
    assert f"command<td>{quoted}" in text
    assert "working folder<td><code>/data/a b</code>" in text


def test_failed_run_shows_its_stop_reason(site: Site) -> None:
    folder = write_evaluation_run(site.index.root / "eval", EPISODES, done=False)
    (folder / "stopped.json").write_text(json.dumps({"reason": f"It broke. {EVIL}"}))
    site.index.refresh()
    for page in (run_page(site, "eval"), runs_page(site)):
        assert 'class="state stopped"' in page
        assert "It broke. &lt;script&gt;" in page


USED = {"requests": 12, "prompt_tokens": 3400, "cached_tokens": 1200, "completion_tokens": 560}


@pytest.mark.parametrize(
    ("usage", "expected"),
    [
        ({**USED, "cost": 0.0123}, ("12 requests, 3,400", "0.0123")),
        ({**USED, "cost": None}, ("12 requests, 3,400", "unknown")),
        (USED, ("12 requests, 3,400", "unknown")),
        ({**USED, "requests": 0}, None),
        ({**USED, "requests": "12"}, None),
        ([], None),
    ],
)
def test_usage_and_cost_are_shown(site: Site, usage: object, expected: tuple[str, str] | None) -> None:
    folder = write_evaluation_run(site.index.root / "eval", EPISODES)
    write_evaluation_run(site.index.root / "other", EPISODES)
    (folder / "usage.json").write_text(json.dumps(usage))
    site.index.refresh()
    page, comparison = (
        definitions(run_page(site, "eval")),
        definitions(compare_page(site, ComparisonQuery("other", "eval"))),
    )
    if expected is None:
        assert "Usage" not in page and "Usage of B, all episodes" not in comparison
    else:
        assert page["Usage"].startswith(expected[0]) and page["Cost"] == expected[1]
        assert comparison["Usage of B, all episodes"].startswith(expected[0]) and comparison["Cost of B"] == expected[1]
        assert "Usage of A, all episodes" not in comparison


def test_metrics_of_the_report_and_stop_reasons_are_shown(site: Site) -> None:
    write_reported_run(site.index.root / "eval", [*EPISODES, episode("t/9", 0, None)])
    site.index.refresh()
    text = client(site).get("/run/eval").text
    values = definitions(text)
    assert {name: values[name].split()[0] for name in ("Success", "pass@1", "pass@2", "pass^2")} == {
        "Success": "50.0%",
        "pass@1": "50.0%",
        "pass@2": "66.7%",
        "pass^2": "33.3%",
    }
    assert "pass^1" not in values
    assert values["pass@2"].endswith("of 3 tasks")
    assert values["Stop reasons"] == "1 failed, 3 terminated, 3 truncated"
    (link,) = re.findall(r'href="([^"]+)">3 truncated', text)
    assert "3 episodes" in client(site).get(link.replace("&amp;", "&")).text


@pytest.mark.long
def test_page_states_whether_intervals_are_over_clusters(site: Site) -> None:
    for name, better in (("alone", 0), ("together", 0), ("better", 1)):
        cluster_fields = {} if name == "alone" else {"cluster": "kind"}
        episodes = [
            episode(
                f"t/{n}",
                0,
                n % 3 >= 1 - better,
                **{field: f"{prefix} {n % 12}" for field, prefix in cluster_fields.items()},
            )
            for n in range(36)
        ]
        write_reported_run(site.index.root / name, episodes)
    site.index.refresh()
    assert "with 95% intervals over tasks." in run_page(site, "alone")
    assert "with 95% intervals over 12 clusters of tasks." in run_page(site, "together")
    assert "(95% interval over 12 clusters of tasks +" in compare_page(site, ComparisonQuery("together", "better"))
    assert "clusters" not in compare_page(site, ComparisonQuery("alone", "alone"))


@pytest.mark.long
@pytest.mark.parametrize(
    "content",
    ["{}", '{"schema": "agentgym.rep', '{"schema": "agentgym.report/3", "overall": {"episodes": "x"}}', "[]", "\xff"],
)
def test_invalid_report_is_ignored(site: Site, content: str) -> None:
    folder = write_reported_run(site.index.root / "eval", EPISODES)
    (folder / "report.json").write_text(content, encoding="latin-1")
    site.index.refresh()
    response = client(site).get("/run/eval")
    assert response.status_code == 200
    assert "pass@" not in response.text
    assert "Stop reasons" in definitions(response.text)


def test_report_page_is_served_in_a_sandbox(site: Site) -> None:
    folder = write_reported_run(site.index.root / "eval", EPISODES)
    site.index.refresh()
    (link,) = re.findall(r'href="(/report/[^"]+)"', client(site).get("/run/eval").text)
    response = client(site).get(link)
    assert response.text == (folder / "report.html").read_text(encoding="utf-8")
    assert response.headers["content-security-policy"].startswith("sandbox; default-src 'none'")
    exported = run_page(Site(site.index, FileLinks("run/eval.html")), "eval")
    assert definitions(exported)["Report"] == "report.html in eval"
    assert "report/" not in exported


def test_report_outside_the_folder_is_not_served(site: Site, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("secret")
    (write_evaluation_run(site.index.root / "eval", EPISODES) / "report.html").symlink_to(tmp_path / "secret")
    site.index.refresh()
    assert "Report" not in definitions(client(site).get("/run/eval").text)
    assert client(site).get("/report/eval.html").status_code == 404
    assert client(site).get("/report/..%2Feval.html").status_code == 404


def test_names_in_a_report_are_escaped(site: Site) -> None:
    folder = write_reported_run(site.index.root / "eval", EPISODES)
    record = json.loads((folder / "report.json").read_text())
    record["overall"]["pass_at"] = {EVIL: record["overall"]["success"]}
    (folder / "report.json").write_text(json.dumps(record))
    site.index.refresh()
    assert "<script>alert" not in client(site).get("/run/eval").text


def test_curve_and_lists_distinguish_dev_and_test_split(site: Site) -> None:
    write_training_run(site.index.root / "rl", split="dev")
    site.index.refresh()
    (run,) = site.index.runs
    assert site.index.run_metrics()["rl"].split == "dev"
    write_training_run(site.index.root / "rl", split="dev", with_test=True)
    site.index.refresh()
    text = run_page(site, run.slug)
    labels = [label for _, label in re.findall(r'<a href="([^"]+)"><title>([^<]+)', text) if "training" not in label]
    assert labels == [
        "step 0: 25.0% (4.6% to 69.9%) on dev tasks, sampled; show episodes",
        "step 4: 75.0% (30.1% to 95.4%) on dev tasks, sampled; show episodes",
        "step 0: 25.0% (7.1% to 59.1%) on test tasks, sampled; show episodes",
        "step 4: 50.0% (21.5% to 78.5%) on test tasks, sampled; show episodes",
    ]
    assert [text.count(f"evaluation on {split} tasks, sampled") for split in ("dev", "test")] == [2, 2]
    # For each split, the last two evaluations are offered for comparison.
    compared = re.findall(r"a_file=([a-z0-9.-]+)&amp;b_file=([a-z0-9.-]+)", text)
    assert [[re.sub(r".*(step|test)-0*(\d).*", r"\1 \2", slug) for slug in pair] for pair in compared] == [
        ["step 0", "step 4"],
        ["test 0", "test 4"],
    ]
    metrics = site.index.run_metrics()["rl"]
    assert (metrics.success, metrics.split) == (0.5, "test")
    assert "50.0% <small>test</small>" in client(site).get("/").text


def test_comparison_choices_are_runs_with_common_tasks(site: Site) -> None:
    for name in ("poor", "good"):
        write_evaluation_run(site.index.root / name, EPISODES)
    write_training_run(site.index.root / "rl")
    write_evaluation_run(site.index.root / "alone", [episode("u/1")])
    write_evaluation_run(site.index.root / "elsewhere", [episode("t/1", env="agentgym/Far-v0")])
    write_evaluation_run(site.index.root / "empty", [])
    site.index.refresh()
    choices = {
        run.name: re.findall(r'<option value="([^"]*)"([^>]*)', run_page(site, run.slug)) for run in site.index.runs
    }
    assert choices["poor"] == [("", ""), ("good", ""), ("rl", "")]
    assert choices["rl"] == [("", ""), ("good", ""), ("poor", "")]
    assert choices["alone"] == choices["elsewhere"] == choices["empty"] == []


def test_small_charts_are_smoothed_and_searched(site: Site) -> None:
    folder = write_training_run(site.index.root / "trained")
    failures = {"loop": 0.5, "format": 0.25, "gave_up": 0.0}
    lines = [{"step": step, "loss": step, "odd": {"own": step}, "failures": failures} for step in (1, 2, 3)]
    (folder / "metrics.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    site.index.refresh()
    viewer = client(site)

    def charts(query: str) -> list[str]:
        return re.findall(r"<figcaption><span>(.*?)</span>", viewer.get(f"/run/trained{query}").text)

    assert charts("") == ["Failure causes in training, as shares of episodes", "Loss"]
    assert charts("?metric=own") == ["odd.own"]
    assert charts("?metric=nothing") == []
    text = viewer.get("/run/trained?smooth=0.5&metric=loss").text
    assert re.findall(r'data-smooth="(.*?)"', text) == ["1 1.6667 2.4286"]
    assert 'hx-get="/run/trained?smooth=0.5&amp;metric=loss"' in text
    assert len(re.findall("data-line=", viewer.get("/run/trained").text)) == 3
    assert viewer.get("/run/trained?smooth=2").status_code == 400
