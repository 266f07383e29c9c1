"""Execute the notebooks of the documentation, each in an empty folder, and write their outputs into them.

    uv run --group docs scripts/run_notebooks.py                  # all in docs/notebooks
    uv run --group docs scripts/run_notebooks.py NOTEBOOK...
    uv run --group docs scripts/run_notebooks.py --check          # write nothing; fail if an output has changed

Outputs don't depend on the machine, except in cells tagged `varies`, of which `--check` only compares the kinds.
"""

from __future__ import annotations

import argparse
import difflib
import os
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import nbformat
from nbclient import NotebookClient

NOTEBOOKS = Path(__file__).parent.parent / "docs" / "notebooks"
QUIET = {"PYTHONWARNINGS": "ignore:IProgress not found"}  # with the path of tqdm, which wants a widget for its bars
VARIES = "varies"
"""Tag of cells whose outputs depend on the machine, such as the figures of a training run."""


def main() -> int:
    """Execute notebooks, and write or check them."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("notebooks", nargs="*", type=Path, help="default: all in docs/notebooks")
    parser.add_argument("--check", action="store_true", help="write nothing; fail if an output has changed")
    args = parser.parse_args()
    changed = False
    for path in args.notebooks or sorted(NOTEBOOKS.glob("*.ipynb")):
        before: Any = nbformat.read(path, as_version=4)
        after = executed(before)
        if args.check:
            report = differences(before, after, path.name)
            changed |= bool(report)
            print("\n".join(report) or f"{path.name}: the outputs are the committed ones")
        else:
            path.write_text(nbformat.writes(after).rstrip() + "\n", encoding="utf-8")
            print(f"{path.name}: executed")
    return int(changed)


def executed(notebook: Any) -> Any:
    """Return a copy with the outputs of an execution by this Python, whose working folder is empty.

    Raises:
        CellExecutionError: with the traceback, if a cell fails.
    """
    copy = nbformat.from_dict(notebook)
    with TemporaryDirectory() as folder:
        place = {"metadata": {"path": folder}}
        options = {"kernel_name": "python3", "record_timing": False, "coalesce_streams": True, "timeout": 600}
        NotebookClient(copy, resources=place, **options).execute(env={**os.environ, **QUIET})
    copy.metadata["language_info"] = {"name": "python"}  # without the version that executed it
    return copy


def differences(before: Any, after: Any, name: str) -> list[str]:
    """Return the lines of a diff of the outputs, cell by cell."""
    lines: list[str] = []
    for old, new in zip(before.cells, after.cells, strict=True):
        if old.cell_type == "code":
            where = [f"{name}, cell {old.id}, {state}" for state in ("committed", "executed")]
            lines += difflib.unified_diff(comparable(old), comparable(new), *where, lineterm="")
    return lines


def comparable(cell: Any) -> list[str]:
    """Return the lines of the cell's outputs; of pictures, and in cells that vary, only the kinds."""
    lines: list[str] = []
    for output in cell.outputs:
        data = output.get("data", {})
        kinds = f"{output.output_type}: {output.get('name') or ', '.join(sorted(data))}"
        text = output.get("text") or data.get("text/plain", "")
        is_text = VARIES not in cell.metadata.get("tags", ()) and not any(kind.startswith("image/") for kind in data)
        lines += [kinds, *(text.splitlines() if is_text else ())]
    return lines


if __name__ == "__main__":
    sys.exit(main())
