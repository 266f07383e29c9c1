"""Tests of the page with the curves of several runs."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
from agentgym_eval.util.errors import UsageError
from agentgym_eval.viewer.index.run_notes import RunNotes, write_notes
from agentgym_eval.viewer.pages.curves import CurvesQuery, curves_page
from agentgym_eval.viewer.pages.site import Site
from agentgym_eval.viewer.server.app import make_app
from starlette.testclient import TestClient
from viewer_runs import EVIL, episode, write_evaluation_run, write_training_run


def write_run(site: Site, name: str, steps: int = 3, metrics: int = 1, **settings: Any) -> Path:
    """Write a training run without episodes."""
    folder = site.index.root / name
    folder.mkdir(parents=True)
    record = {"schema": "agentgym.train/2", "kind": "rl", "recipe": "quickstart", "config": settings}
    (folder / "run.json").write_text(json.dumps(record))
    names = [f"m{number}" for number in range(metrics)]
    lines = [{"step": step, "success": 0.5, **dict.fromkeys(names, step / 7)} for step in range(1, steps + 1)]
    (folder / "metrics.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    return folder


def page(site: Site, *runs: str, **query: str) -> str:
    return curves_page(site, CurvesQuery.parse(query, runs))


def names(text: str) -> list[str]:
    """Return the names of the charts."""
    return re.findall(r"<figcaption><span>(.*?)</span>", text)


def test_success_evaluations_and_every_metric_are_drawn_for_each_run(site: Site) -> None:
    for name in ("a", "b"):
        write_training_run(site.index.root / name, split="dev", with_test=True)
    site.index.refresh()
    text = page(site, "a", "b", group="none")
    expected = [
        "success",
        "dev tasks, sampled",
        "test tasks, sampled",
        "loss",
        "horizon",
        "stage.number",
        "stage.since",
    ]
    assert names(text) == expected
    dev = text.partition("dev tasks, sampled</span>")[2].partition("</figure>")[0]
    assert re.findall(r'data-name="(\w)" data-x="([\d ]+)" data-y="([\d. ]+)"', dev) == [
        ("a", "0 1 2 3 4", "0.25 0.5 0.5 0.5 0.75"),
        ("b", "0 1 2 3 4", "0.25 0.5 0.5 0.5 0.75"),
    ]


def test_seeds_are_drawn_as_a_mean_or_each(site: Site) -> None:
    for seed in (0, 1):
        write_run(site, f"lr=1_seed={seed}", lr=1, seed=seed)
    write_run(site, "other", lr=2, seed=0)
    site.index.refresh()
    runs = [run.slug for run in site.index.runs]
    text = page(site, *runs, metric="m0")
    assert re.findall(r'data-name="(.*?)"', text) == ["lr=1 (n = 2)", "other"]
    assert 'class="area"' in text
    assert "n = 2 seeds" in text
    each = page(site, *runs, metric="m0", group="none")
    assert len(re.findall("data-name=", each)) == 3
    assert 'class="area"' not in each


def tagged_runs(site: Site) -> list[str]:
    """Write four training runs, of which two have the tags a and b, and one has b and c; return their slugs."""
    for number, tags in enumerate((["a", "b"], ["a", "b"], ["b", "c"], [])):
        folder = write_run(site, f"run-{number}", lr=number, seed=0)
        write_notes(folder, RunNotes(tags=tuple(tags)))
    site.index.refresh()
    return [run.slug for run in site.index.runs]


def test_runs_with_a_tag_are_one_band(site: Site) -> None:
    text = page(site, *tagged_runs(site), metric="m0", group="tag")
    assert re.findall(r'data-name="(.*?)"', text) == ["a (n = 2)", "b (n = 3)", "c: run-2", "run-3"]
    assert text.count('class="area"') == 2
    assert "n = 3 runs" in text and "The runs differ in lr." in text
    assert "means over the runs with a tag" in text
    assert re.findall('data-name="(.*?)"', page(site, "run-0", "run-1", metric="m0", group="tag")) == ["a, b (n = 2)"]


def test_runs_with_a_tag_can_be_chosen(site: Site) -> None:
    tagged_runs(site)
    chip = re.search(r'href="([^"]+)">b <small>3</small>', page(site, group="tag"))
    assert chip and chip[1] == "/curves?run=run-0&amp;run=run-1&amp;run=run-2&amp;group=tag"


def test_unknown_names_in_the_address_are_refused() -> None:
    with pytest.raises(UsageError, match="There is no seeds; there are"):
        CurvesQuery.parse({"seeds": "each"})


def test_search_finds_metrics_by_name_and_title(site: Site) -> None:
    write_run(site, "a", metrics=20)
    site.index.refresh()
    assert names(page(site, "a", metric="m1")) == ["m1", *(f"m{number}" for number in range(10, 20))]
    assert "No metric matches" in page(site, "a", metric="nothing")
    write_training_run(site.index.root / "b")
    site.index.refresh()
    assert names(page(site, "b", metric="los")) == ["loss"]


def test_smoothing_leaves_the_raw_line(site: Site) -> None:
    write_run(site, "a")
    site.index.refresh()
    assert 'class="raw"' not in page(site, "a")
    text = page(site, "a", smooth="0.5", metric="m0")
    assert text.count('class="raw"') == 1
    assert text.count("data-smooth=") == 1


@pytest.mark.long
def test_many_long_runs_stay_within_the_page(site: Site) -> None:
    for number in range(200):
        write_run(site, f"run-{number:03d}", steps=60, metrics=30, number=number)
    write_run(site, "long", steps=20_000)
    site.index.refresh()
    slugs = [run.slug for run in site.index.runs]
    text = page(site, *slugs)
    assert text.count("<figure") >= 5
    assert len(text) < 4_000_000
    assert "The page has no space for" in text
    assert names(page(site, *slugs, metric="m29")) == ["m29"]
    assert text.count('class="swatch"') == 201
    long = re.search(r'data-name="long" data-x="([^"]*)"', page(site, "long", metric="m0"))
    assert long and len(long[1].split()) <= 400


def test_runs_without_curves_and_deleted_ones_are_named(site: Site) -> None:
    write_evaluation_run(site.index.root / "eval", [episode()])
    shutil.rmtree(write_run(site, "gone"))
    write_run(site, "train")
    site.index.refresh()
    text = page(site, "eval", "gone", "train", x="hours")
    assert "1 of the chosen runs no longer exists: gone" in text
    assert re.search(r"No metrics \(yet\): <a href=\"/run/eval\">eval</a>", text)
    assert "Without hours, and not drawn" in text
    assert "Choose the training runs" in page(site)


def test_names_of_runs_and_metrics_are_escaped(site: Site) -> None:
    folder = write_run(site, "<b>x & y", lr=1)
    (folder / "metrics.jsonl").write_text(json.dumps({"step": 1, EVIL: 1, 'a"b': 2}) + "\n")
    site.index.refresh()
    text = page(site, site.index.runs[0].slug)
    assert EVIL not in text and "<b>x" not in text
    assert 'a"b' not in text


@pytest.mark.parametrize(
    "query",
    [{"x": "time"}, {"group": "2"}, {"band": "sd"}, {"smooth": "1"}, {"smooth": "nan"}, {"smooth": "-1"}, {"y": "1"}],
)
def test_wrong_values_are_refused(query: dict[str, str]) -> None:
    with pytest.raises(UsageError):
        CurvesQuery.parse(query)


def test_page_follows_a_running_run_over_http(site: Site) -> None:
    folder = write_run(site, "a")
    site.index.refresh()
    client = TestClient(make_app(site), "http://127.0.0.1:8000")
    response = client.get("/curves?run=a&smooth=0.6")
    assert response.status_code == 200
    assert 'hx-get="/curves?run=a&amp;smooth=0.6"' in response.text
    seen = {"x-seen": site.index.version}
    assert client.get("/curves?run=a", headers=seen).status_code == 204
    with (folder / "metrics.jsonl").open("a") as file:
        file.write(json.dumps({"step": 4, "success": 0.75}) + "\n")
    site.index.refresh()
    again = client.get("/curves?run=a&metric=success", headers=seen)
    assert 'data-x="1 2 3 4" data-y="0.5 0.5 0.5 0.75"' in again.text
    assert client.get("/curves?run=a&x=time").status_code == 400


def test_list_of_runs_offers_the_curves_of_selected_ones(site: Site) -> None:
    write_run(site, "a")
    write_run(site, "b")
    site.index.refresh()
    client = TestClient(make_app(site), "http://127.0.0.1:8000")
    assert 'formaction="/curves"' in client.get("/").text
