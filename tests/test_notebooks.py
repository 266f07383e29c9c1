"""Tests that the notebooks of the documentation run, and that their outputs are those that are committed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from dev_packages import require_packages
from documents import ROOT, name_of

pytestmark = pytest.mark.long
require_packages("ipykernel", "nbclient")

import nbformat
from nbformat.v4 import new_code_cell, new_notebook

NOTEBOOKS = sorted((ROOT / "docs/notebooks").glob("*.ipynb"))


def run_notebooks(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    script = ROOT / "scripts/run_notebooks.py"
    return subprocess.run([sys.executable, script, *arguments], capture_output=True, text=True, check=False)


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=name_of)
def test_the_notebook_runs_and_its_outputs_are_the_committed_ones(notebook: Path) -> None:
    cells: Any = [cell for cell in nbformat.read(notebook, as_version=4).cells if cell.cell_type == "code"]
    assert cells
    assert all(cell.execution_count for cell in cells)
    assert {output.get("name") for cell in cells for output in cell.outputs} <= {"stdout", None}
    checked = run_notebooks("--check", notebook)
    assert checked.returncode == 0, checked.stdout + checked.stderr


def write(path: Path, *sources: str, tags: tuple[str, ...] = ()) -> Path:
    cells = [new_code_cell(source, metadata={"tags": list(tags)}) for source in sources]
    path.write_text(nbformat.writes(new_notebook(cells=cells)))
    return path


def test_changed_outputs_are_shown(tmp_path: Path) -> None:
    path = write(tmp_path / "mine.ipynb", "import os\nprint(sorted(os.listdir()))", "'some text'")
    assert run_notebooks(path).returncode == 0
    before = path.read_text()
    assert "some text" in nbformat.reads(before, as_version=4).cells[1].outputs[0].data["text/plain"]
    assert run_notebooks("--check", path).returncode == 0
    path.write_text(before.replace('"[]\\n"', '"[1]\\n"'))
    checked = run_notebooks("--check", path)
    assert checked.returncode == 1
    assert {"-[1]", "+[]"} <= set(checked.stdout.splitlines())
    assert path.read_text() != before, "--check writes nothing"


def test_outputs_of_cells_that_vary_may_differ(tmp_path: Path) -> None:
    path = write(tmp_path / "mine.ipynb", "import time\nprint(time.time_ns())", tags=("varies",))
    assert run_notebooks(path).returncode == 0
    checked = run_notebooks("--check", path)
    assert checked.returncode == 0, checked.stdout
    path.write_text(path.read_text().replace("stdout", "stderr"))
    assert run_notebooks("--check", path).returncode == 1


def test_a_cell_that_fails_is_an_error(tmp_path: Path) -> None:
    path = write(tmp_path / "mine.ipynb", "1 / 0")
    before = path.read_text()
    failed = run_notebooks(path)
    assert failed.returncode == 1
    assert "ZeroDivisionError" in failed.stderr
    assert path.read_text() == before
