"""Skipping of tests that need a program of the system."""

from __future__ import annotations

import os
import shutil

import pytest


def require_program(name: str) -> str:
    """Return the path of a program; skip the calling test if it is missing, or fail in CI, whose script installs it."""
    path = shutil.which(name)
    if path is None:
        message = f"There is no {name}: install it with the system's package manager, such as apt-get install {name}."
        (pytest.fail if os.environ.get("CI") else pytest.skip)(message)
    return path
