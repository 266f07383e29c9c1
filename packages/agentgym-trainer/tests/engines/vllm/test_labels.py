"""Tests of the labels of weights."""

from __future__ import annotations

import pytest
from agentgym_trainer.engines.vllm.labels import FRESH, WeightLabels

pytestmark = pytest.mark.quick


@pytest.mark.parametrize("run", ["run", "me@host", "a.b@1.2"])
def test_labels_tell_version_and_load_of_their_run_only(run: str) -> None:
    labels, other = WeightLabels(run), WeightLabels(f"{run}2")
    label = labels.of(12, 3)
    assert labels.read(label) == (12, 3)
    assert labels.owns(label)
    for foreign in (FRESH, other.of(12, 3), other.replacing):
        assert not labels.owns(foreign)
        assert labels.read(foreign) is None
    assert labels.owns(labels.replacing)
    assert labels.read(labels.replacing) is None
    assert labels.of(12, 3) != labels.of(12, 4)
