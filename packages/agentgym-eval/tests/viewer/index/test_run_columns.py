"""Tests of chosen columns in the list of runs, and of its CSV."""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from agentgym_eval.util.errors import UsageError
from agentgym_eval.viewer.index.index import Index
from agentgym_eval.viewer.index.links import FileLinks, Links
from agentgym_eval.viewer.index.run_columns import column_choices, column_label, column_values
from agentgym_eval.viewer.index.run_list import RunFilters
from agentgym_eval.viewer.pages.lists import runs_page
from agentgym_eval.viewer.pages.site import Site
from agentgym_eval.viewer.server.app import make_app
from starlette.testclient import TestClient
from viewer_runs import EVIL


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    root = tmp_path / "runs"
    write_run(root / "a", [3.0, 1.0, 2.0], optimizer={"lr": 0.002}, seed=10, note="x", betas=[0.9, 0.99])
    write_run(root / "b", [5.0, 4.0], optimizer={"lr": 0.01}, seed=9, note="x", betas=[0.9, 0.99])
    write_run(root / "=c", [], optimizer={"lr": "auto"}, seed=None, note="x", betas=[0.9, 0.99], own=EVIL)
    index = Index(root, tmp_path / "index.sqlite")
    index.refresh()
    yield Site(index, Links())
    index.close()


def write_run(folder: Path, losses: list[float], **settings: Any) -> None:
    folder.mkdir(parents=True)
    record = {"schema": "agentgym.train/2", "kind": "rl", "recipe": "quickstart", "config": settings}
    (folder / "run.json").write_text(json.dumps(record))
    lines = [json.dumps({"step": step, "loss": loss}) for step, loss in enumerate(losses, 1)]
    (folder / "metrics.jsonl").write_text("".join(f"{line}\n" for line in lines))


def client(site: Site) -> TestClient:
    return TestClient(make_app(site), "http://127.0.0.1:8000")


def listed(text: str) -> list[str]:
    return [name.replace("<wbr>", "") for name in re.findall(r'<a href="/run/[^"]*">(.*?)</a>', text)]


def test_settings_and_statistics_of_metrics_are_values(site: Site) -> None:
    run = site.index.run("a")
    columns = ["optimizer.lr", "betas", "last:loss", "max:loss", "min:loss", "last:kl", "unknown"]
    values = [0.002, "[0.9, 0.99]", 2, 3, 1, None, None]
    assert column_values(run, columns) == dict(zip(columns, values, strict=True))
    assert [column_label(name) for name in ("optimizer.lr", "max:loss", "last:")] == [
        "optimizer.lr",
        "loss, max",
        "last:",
    ]


def test_what_differs_is_offered_first(site: Site) -> None:
    choices = column_choices(site.index.runs)
    assert sorted(choices.differing) == ["optimizer.lr", "own", "seed"]
    assert choices.common == ["note", "betas"]
    assert choices.metrics == ["loss"]
    assert choices.absent(["seed", "max:loss", "max:kl"]) == ["max:kl"]
    text = client(site).get("/?columns=max:kl").text
    headings = re.findall(r"<legend>(.*?)</legend>", text)
    assert headings == ["Chosen, but in none of these runs", "Settings that differ", "Metrics", "Other settings"]


def test_chosen_columns_are_shown_sorted_and_kept_in_the_address(site: Site) -> None:
    query = "columns=optimizer.lr&columns=last%3Aloss&columns=own"
    text = client(site).get(f"/?{query}&sort=optimizer.lr").text
    assert listed(text) == ["a", "b", "=c"]
    assert "<td>0.002" in text and "<td>4" in text and "<td>auto" in text
    assert EVIL not in text
    assert "columns=optimizer.lr%2Clast%3Aloss%2Cown" in text
    assert listed(client(site).get(f"/?{query}&sort=-optimizer.lr").text) == ["=c", "b", "a"]
    assert listed(client(site).get("/?columns=last:loss,seed&sort=-last:loss").text) == ["b", "a", "=c"]
    assert listed(client(site).get("/?columns=seed&sort=seed").text) == ["b", "a", "=c"]


def test_sorting_by_a_column_that_is_not_chosen_is_refused(site: Site) -> None:
    with pytest.raises(UsageError, match="no sort column last:loss"):
        RunFilters(sort="last:loss")
    assert client(site).get("/?sort=seed").status_code == 400


def test_csv_has_all_matching_runs_with_the_chosen_columns(site: Site) -> None:
    response = client(site).get("/runs.csv?columns=optimizer.lr,min:loss,own&sort=name&size=1")
    assert response.headers["content-type"].startswith("text/csv")
    rows = list(csv.DictReader(io.StringIO(response.text)))
    assert [row["run"] for row in rows] == ["'=c", "a", "b"]
    assert [row["min:loss"] for row in rows] == ["", "1.0", "4.0"]
    assert [row["optimizer.lr"] for row in rows] == ["auto", "0.002", "0.01"]
    assert rows[0]["own"] == EVIL
    assert {row["kind"] for row in rows} == {"train"}
    assert len(list(csv.DictReader(io.StringIO(client(site).get("/runs.csv?text=b").text)))) == 1


def test_export_offers_no_columns(site: Site) -> None:
    text = runs_page(Site(site.index, FileLinks()))
    assert "details" not in text and "runs.csv" not in text
