"""Write docs/architecture.md: the layers of the packages, from the import contracts and the source.

uv run python scripts/make_architecture.py            write the page
uv run python scripts/make_architecture.py --check    exit with 1 if the committed page differs
"""

from __future__ import annotations

import argparse
import ast
import sys
import tomllib
from pathlib import Path
from typing import Any

import grimp

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "architecture.md"
PACKAGES = {"agentgym_envs": "agentgym-envs", "agentgym_eval": "agentgym-eval", "agentgym_trainer": "agentgym-trainer"}
INTRODUCTION = """# Architecture

<!-- Written by scripts/make_architecture.py from the import contracts in pyproject.toml and the source. -->

Three packages: `agentgym_trainer` builds on `agentgym_eval`, which builds on `agentgym_envs`. Inside a package, folders
are layers: a folder imports folders of the rows below it, and folders in one row don't import each other.
`uv run lint-imports` checks this, along with the other contracts in the root `pyproject.toml`: no environment imports
another, environments and evaluation don't need torch, algorithms take tensors and return tensors, engines know neither
text nor environments, and clients need nothing of the servers.
"""


def page() -> str:
    """Return the text of the page."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    contracts = settings["tool"]["importlinter"]["contracts"]
    graph = grimp.build_graph(*PACKAGES, cache_dir=None)
    drawn = [contract for contract in contracts if contract.get("containers")]
    return INTRODUCTION + "".join(section(contract, graph) for contract in drawn)


def section(contract: dict[str, Any], graph: grimp.ImportGraph) -> str:
    """Return a table of the layers of one container."""
    container = contract["containers"][0]
    rows = [[name.strip() for name in layer.split("|")] for layer in contract["layers"]]
    modules = [name for row in rows for name in row]
    lines = [f"\n## {contract['name']}\n", "| layer | module | content | imports |", "|---|---|---|---|"]
    for number, row in enumerate(rows):
        for name in row:
            imported = [other for other in modules if other != name and _imports(graph, container, name, other)]
            about = summary(f"{container}.{name}")
            lines.append(f"| {len(rows) - number} | `{name}` | {about} | {', '.join(f'`{o}`' for o in imported)} |")
    return "\n".join(lines) + "\n"


def _imports(graph: grimp.ImportGraph, container: str, importer: str, imported: str) -> bool:
    chains = graph.find_shortest_chains(f"{container}.{importer}", f"{container}.{imported}", as_packages=True)
    return any(len(chain) == 2 for chain in chains)


def summary(module: str) -> str:
    """Return the first paragraph of a module's docstring."""
    path = ROOT / "packages" / PACKAGES[module.partition(".")[0]] / "src" / Path(*module.split("."))
    file = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    text = ast.get_docstring(ast.parse(file.read_text(encoding="utf-8"))) or ""
    return " ".join(text.partition("\n\n")[0].split()).replace("|", "\\|")


def main() -> None:
    """Write the page, or check it."""
    parser = argparse.ArgumentParser(description="Writes docs/architecture.md.")
    parser.add_argument("--check", action="store_true", help="only compare")
    if not parser.parse_args().check:
        PAGE.write_text(page(), encoding="utf-8")
    elif PAGE.read_text(encoding="utf-8") != page():
        sys.exit("docs/architecture.md differs from the source: run scripts/make_architecture.py.")


if __name__ == "__main__":
    main()
