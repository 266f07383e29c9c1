"""Check that every extra of every package can be installed: resolve each, and build what has no wheel.

    uv run python scripts/check_extras.py              # minutes; downloads what it builds and what that needs
    uv run python scripts/check_extras.py --no-build   # only resolves

It works in a copy of the project's metadata, with an environment of its own, and changes neither `uv.lock` nor `.venv`.
Each extra is resolved by itself with `uv sync --dry-run`, as a user would install it. Packages of the lock without
wheels are built in isolation, from their published sources, without anything that happens to be installed here.
flash-attn is built without its CUDA kernels, which take nvcc and long: this shows that its build finds torch.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
BUILDS = {"FLASH_ATTENTION_SKIP_CUDA_BUILD": "TRUE"}
"""Environment variables of builds."""


@dataclass(frozen=True)
class Checked:
    """What was tried, and the last lines of the error (empty: it worked)."""

    name: str
    fault: str = ""


def extras(root: Path) -> Iterator[tuple[str, str]]:
    """Yield all extras of the root project and of its packages, as names of package and extra."""
    for path in (root / "pyproject.toml", *sorted(root.glob("packages/*/pyproject.toml"))):
        project = _read(path)["project"]
        yield from ((project["name"], extra) for extra in project.get("optional-dependencies", {}))


def source_only(lock: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return name and version of the packages of a lock that have a source distribution and no wheel."""
    packages = lock["package"]
    return [(p["name"], p["version"]) for p in packages if "sdist" in p and not p.get("wheels")]


def copy_metadata(root: Path, folder: Path) -> None:
    """Copy what uv reads of the project, without its code."""
    for path in (
        root / "pyproject.toml",
        root / "uv.lock",
        root / "README.md",
        *root.glob("packages/*/pyproject.toml"),
    ):
        target = folder / path.relative_to(root)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, target)


def resolve(folder: Path, package: str, extra: str) -> Checked:
    """Resolve one extra, as if nothing was installed."""
    return Checked(f"{package}[{extra}]", run(folder, "sync", "--package", package, "--extra", extra, "--dry-run"))


def build(folder: Path, name: str, version: str) -> Checked:
    """Build a package from its sources, in isolation; with `uv sync` if the project adds requirements of its build."""
    added = _read(folder / "pyproject.toml")["tool"]["uv"].get("extra-build-dependencies", {})
    if name in added:
        only = ("--no-default-groups", "--no-install-workspace", "--refresh-package", name)
        fault = run(folder, "sync", "--extra", name, *only)
    else:
        target = str(folder / "built" / name)
        fault = run(folder, "pip", "install", "--no-deps", "--no-cache", "--target", target, f"{name}=={version}")
    return Checked(f"build of {name} {version}", fault)


def run(folder: Path, *words: str) -> str:
    """Run uv in a folder, and return the end of its error; empty if it succeeded."""
    environment = {**os.environ, **BUILDS, "UV_PROJECT_ENVIRONMENT": str(folder / "environment")}
    environment.pop("VIRTUAL_ENV", None)
    done = subprocess.run(["uv", *words], cwd=folder, env=environment, capture_output=True, text=True)
    return "\n".join(done.stderr.splitlines()[-15:]) or f"exit code {done.returncode}" if done.returncode else ""


def check(root: Path, *, builds: bool) -> Iterator[Checked]:
    """Check all extras of the project in `root`."""
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        copy_metadata(root, folder)
        locked = Checked("uv lock", run(folder, "lock"))  # completes the committed form, see lock.py
        yield locked
        if locked.fault:
            return
        yield from (resolve(folder, package, extra) for package, extra in extras(folder))
        if builds:
            yield from (build(folder, *package) for package in source_only(_read(folder / "uv.lock")))


def _read(path: Path) -> dict[str, Any]:
    return tomllib.loads(path.read_text(encoding="utf-8"))


def main(arguments: Sequence[str] | None = None) -> None:
    """Check all extras, print each, and end with 1 if one can't be installed."""
    parser = argparse.ArgumentParser(description="Check that every extra of every package can be installed.")
    parser.add_argument("--no-build", action="store_true", help="don't build packages that have no wheel")
    failed = 0
    for checked in check(ROOT, builds=not parser.parse_args(arguments).no_build):
        print(f"{'FAILED' if checked.fault else 'ok':8}{checked.name}\n{checked.fault}".rstrip(), flush=True)
        failed += bool(checked.fault)
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
