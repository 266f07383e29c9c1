"""Skipping of tests that need packages of the dependency group `dev`, which isn't installed by default."""

from __future__ import annotations

import os
from importlib.util import find_spec

import pytest

INSTALL = "uv sync --inexact --group dev"


def require_packages(*modules: str) -> None:
    """Skip the calling test, or the file if called at module level, if a module is missing; fail in CI."""
    missing = [module for module in modules if not _is_installed(module)]
    if missing:
        message = f"{', '.join(missing)} is missing: {INSTALL}"
        if os.environ.get("CI"):
            pytest.fail(message)
        pytest.skip(message, allow_module_level=True)


def _is_installed(module: str) -> bool:
    # A folder of tests with a package's name counts as a namespace package, once pytest has put its parent in sys.path.
    spec = find_spec(module)
    return spec is not None and spec.origin is not None
