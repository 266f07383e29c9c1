"""Tests of the commands that messages tell users to type, in each kind of installation."""

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
            Installation(checkout=ROOT, by_uv=True),
            "uv run view",
            "uv run wandb",
            "uv sync --inexact --package agentgym-envs --extra pyserini",
            "uv pip install 'mcp>=2'",
        ),
        (
            Installation(checkout=None, by_uv=True),
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
            for checkout in (None, ROOT)
        ),
    ],
    ids=["uv's workspace", "uv pip", "pip", "pip in a checkout"],
)
def test_commands_match_the_installation(
    installation: Installation, view: str, wandb: str, lucene: str, mcp: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("agentgym_envs.util.installation.here", lambda: installation)
    assert (command("view"), command("wandb", ours=False)) == (view, wandb)
    assert (install("agentgym-envs[pyserini]"), install("mcp>=2")) == (lucene, mcp)


def test_sync_removes_other_extras_only_if_exact() -> None:
    checkout = Installation(ROOT, by_uv=True)
    assert checkout.install("agentgym-trainer[vllm]", exact=True) == "uv sync --extra vllm"
    assert checkout.install("agentgym-trainer") == "uv sync --inexact --package agentgym-trainer"
    assert Installation(None, by_uv=True).install("agentgym-trainer[vllm]", exact=True).startswith("uv pip install")


def test_checkout_is_detected_by_its_lock_file(tmp_path: Path) -> None:
    source = tmp_path / SOURCE
    assert found(source, "uv\n") == Installation(None, by_uv=True)
    (tmp_path / "uv.lock").touch()
    assert found(source, "uv\n") == Installation(tmp_path, by_uv=True)
    assert found(source, "pip") == found(source, None) == Installation(tmp_path, by_uv=False)
    # A user's project has a lock file too, but this package is among its installed ones.
    assert not found(Path("/deps/agentgym_envs"), "pip").checkout  # pip install --target
    assert not found(tmp_path / ".venv/lib/python3.13/site-packages/agentgym_envs", "uv").checkout


def test_tests_run_in_a_checkout() -> None:
    assert here().checkout == ROOT


def test_commands_in_another_project_name_the_checkout(tmp_path: Path) -> None:
    checkout = Installation(tmp_path / "agentgym", by_uv=True)
    assert checkout.command("pytest", folder=tmp_path / "work/lamps") == "uv run --project ../../agentgym pytest"
    assert checkout.command("pytest", folder=tmp_path / "agentgym/lamps") == "uv run --project .. pytest"


@pytest.mark.parametrize("package", ["envs", "eval", "trainer"])
def test_source_has_no_literal_install_commands(package: str) -> None:
    """No string in the source contains a literal `uv run`, `uv sync` or `pip install`."""
    commands = re.compile("uv run |uv sync|pip install")
    violations: list[str] = []
    for path in (ROOT / f"packages/agentgym-{package}/src").rglob("*.*"):
        # data_files.py writes the files of a fictional code forge.
        if path.suffix not in (".py", ".html") or path.name in ("installation.py", "data_files.py"):
            continue
        text = path.read_text("utf-8")
        if not commands.search(text):
            continue
        nodes = ast.walk(ast.parse(text)) if path.suffix == ".py" else [ast.Constant(text)]
        strings = [node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str)]
        violations += [f"{path}: {value}" for value in strings if commands.search(value)]
    assert violations == []
