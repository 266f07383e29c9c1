"""What `train` prints when it refuses its arguments."""

from __future__ import annotations

import pytest
from toy_learner import train_cli

LOADING = "Loading torch and transformers …"


def error_of(arguments: list[str], capfd: pytest.CaptureFixture[str]) -> str:
    """Return the one-line error with which `train` rejects these arguments."""
    assert train_cli(arguments) == 2
    out, err = capfd.readouterr()
    assert out == ""
    assert "Traceback" not in err
    err = err.removeprefix(f"{LOADING}\n")
    assert err.startswith("error: ")
    assert err.count("\n") == 1
    return err.removeprefix("error: ").strip()
