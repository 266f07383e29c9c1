"""What messages tell the reader to type, in each kind of installation."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest
from agentgym_envs.util.installation import Installation, command, found, here, install

ROOT = Path(__file__).parents[4]
SOURCE = "packages/agentgym-envs/src/agentgym_envs"


@pytest.mark.parametrize(
    ("installation", "view", "wandb", "lucene", "mcp"),
    [
        (
            Installation(checkout=True, by_uv=True),
            "uv run view",
            "uv run wandb",
            "uv sync --inexact --package agentgym-envs --extra pyserini",
            "uv pip install 'mcp>=2'",
        ),
        (
            Installation(checkout=False, by_uv=True),
            "agentgym view",
            "wandb",
            "uv pip install 'agentgym-envs[pyserini]'",
            "uv pip install 'mcp>=2'",
        ),
        *(
            (
                Installation(checkout=checkout, by_uv=False),
                "agentgym view",
                "wandb",
                "pip install 'agentgym-envs[pyserini]'",
                "pip install 'mcp>=2'",
            )
            for checkout in (False, True)
        ),
    ],
    ids=["uv's workspace", "uv pip", "pip", "pip in a checkout"],
)
def test_what_is_said(
    installation: Installation, view: str, wandb: str, lucene: str, mcp: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("agentgym_envs.util.installation.here", lambda: installation)
    assert (command("view"), command("wandb", ours=False)) == (view, wandb)
    assert (install("agentgym-envs[pyserini]"), install("mcp>=2")) == (lucene, mcp)


def test_other_extras_go_only_where_they_have_to() -> None:
    checkout = Installation(checkout=True, by_uv=True)
    assert checkout.install("agentgym-trainer[vllm]", exact=True) == "uv sync --extra vllm"
    assert checkout.install("agentgym-trainer") == "uv sync --inexact --package agentgym-trainer"
    assert Installation(False, by_uv=True).install("agentgym-trainer[vllm]", exact=True).startswith("uv pip install")


def test_a_checkout_is_known_by_its_lock(tmp_path: Path) -> None:
    source = tmp_path / SOURCE
    assert found(source, "uv\n") == Installation(checkout=False, by_uv=True)
    (tmp_path / "uv.lock").touch()
    assert found(source, "uv\n") == Installation(checkout=True, by_uv=True)
    assert found(source, "pip") == found(source, None) == Installation(checkout=True, by_uv=False)
    # A project of the user's, which has a lock as well, and where ours are among the installed packages.
    assert not found(Path("/deps/agentgym_envs"), "pip").checkout  # of pip install --target
    assert not found(tmp_path / ".venv/lib/python3.13/site-packages/agentgym_envs", "uv").checkout


def test_this_is_a_checkout() -> None:
    assert here().checkout


@pytest.mark.parametrize("package", ["envs", "eval", "trainer"])
def test_messages_ask_how_they_were_installed(package: str) -> None:
    """No text in the source names `uv run`, `uv sync` or `pip install` by itself, whoever reads it."""
    fixed = re.compile("uv run |uv sync|pip install")
    found: list[str] = []
    for path in (ROOT / f"packages/agentgym-{package}/src").rglob("*.*"):
        # The last writes the files of a fictional forge.
        if path.suffix not in (".py", ".html") or path.name in ("installation.py", "data_files.py"):
            continue
        text = path.read_text("utf-8")
        if not fixed.search(text):
            continue
        nodes = ast.walk(ast.parse(text)) if path.suffix == ".py" else [ast.Constant(text)]
        said = [node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str)]
        found += [f"{path}: {value}" for value in said if fixed.search(value)]
    assert found == []
