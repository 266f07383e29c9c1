"""Tests of the Dockerfiles that don't build them: registries of images can't be reached everywhere."""

from __future__ import annotations

import fnmatch
import shlex
from pathlib import Path

import pytest

pytestmark = pytest.mark.quick

ROOT = Path(__file__).parents[1]


def read(name: str) -> list[tuple[str, str]]:
    """Return the instructions of a Dockerfile, with continued lines joined."""
    text = (ROOT / name).read_text(encoding="utf-8").replace("\\\n", " ")
    lines = [line for line in text.splitlines() if line.strip() and not line.startswith("#")]
    return [(line.split(maxsplit=1)[0], line.split(maxsplit=1)[1]) for line in lines]


@pytest.fixture(scope="module", params=["Dockerfile", "Dockerfile.cpu"])
def instructions(request: pytest.FixtureRequest) -> list[tuple[str, str]]:
    return read(request.param)


def test_all_copied_files_exist_and_are_not_ignored(instructions: list[tuple[str, str]]) -> None:
    ignored = (ROOT / ".dockerignore").read_text(encoding="utf-8").split()
    for name, words in instructions:
        *sources, _ = [word for word in shlex.split(words) if not word.startswith("--")] if name == "COPY" else [""]
        for source in sources:
            assert (ROOT / source).exists(), source
            assert not any(fnmatch.fnmatch(source, pattern.removeprefix("**/")) for pattern in ignored), source


def test_the_metadata_of_all_packages_is_copied_before_their_code() -> None:
    copied = [words for name, words in read("Dockerfile") if name == "COPY"]
    before = " ".join(copied[: copied.index("--chown=agentgym . .")])
    for path in (ROOT / "packages").glob("*/pyproject.toml"):
        assert path.relative_to(ROOT).as_posix() in before


def test_the_image_runs_the_command_as_another_user_than_root(instructions: list[tuple[str, str]]) -> None:
    users = [words for name, words in instructions if name == "USER"]
    assert users[-1:] == ["agentgym"]
    assert f"useradd --create-home --uid 1000 {users[-1]}" in dict(instructions[:2])["RUN"]
    assert instructions[-1] == ("CMD", '["uv", "run", "train", "--help"]')


def test_the_image_without_cuda_installs_all_packages_from_the_checkout() -> None:
    """Only then do they have the short names, and `uv run` doesn't install torch with CUDA."""
    (install,) = (words for name, words in read("Dockerfile.cpu") if name == "RUN" and "--torch-backend cpu" in words)
    words = shlex.split(install)
    editable = {words[i + 1].partition("[")[0] for i, word in enumerate(words) if word == "--editable"}
    assert editable == {".", *(path.parent.relative_to(ROOT).as_posix() for path in ROOT.glob("packages/*/*.toml"))}
    assert "UV_NO_SYNC=1" in dict(read("Dockerfile.cpu"))["ENV"]


def test_local_files_that_are_not_in_the_repository_stay_out_of_the_image() -> None:
    ignored = (ROOT / ".dockerignore").read_text(encoding="utf-8").split()
    assert {".git", ".venv", "runs", "dist", "**/__pycache__"} <= {*ignored}
