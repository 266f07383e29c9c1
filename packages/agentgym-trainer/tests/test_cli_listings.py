"""Tests of the sections of `agentgym list` for training."""

from __future__ import annotations

import subprocess
import sys
from importlib.metadata import EntryPoint

import pytest
from agentgym_trainer import cli_listings
from agentgym_trainer.algorithms import ADVANTAGES, PRESETS
from agentgym_trainer.cli import _parse
from agentgym_trainer.curriculum.horizon import KINDS
from agentgym_trainer.curriculum.task_sampler import SAMPLERS
from agentgym_trainer.engines.factory import ENGINES
from agentgym_trainer.recipes import RECIPES
from agentgym_trainer.reward_shaping import REWARDS


@pytest.mark.parametrize(
    ("section", "known"),
    [
        ("recipes", RECIPES),
        ("algorithms", PRESETS),
        ("advantages", ADVANTAGES),
        ("samplers", SAMPLERS),
        ("horizons", KINDS),
        ("rewards", REWARDS),
        ("engines", ENGINES),
    ],
)
def test_sections_list_everything_with_a_description(section: str, known: object) -> None:
    entries = list(getattr(cli_listings, section)())
    assert [entry.name for entry in entries] == list(known)  # type: ignore[call-overload]
    assert all(len(entry.about) > 10 for entry in entries)


def test_settings_are_flags_with_their_values() -> None:
    (grpo,) = [entry for entry in cli_listings.algorithms() if entry.name == "grpo"]
    assert (
        grpo.about
        == "Group-relative policy optimization (Shao et al. 2024, arXiv 2402.03300, eqs. 3 and 4, section 4.1.2)."
    )
    assert {one.name: one.default for one in grpo.settings}["kl.where"] == "loss"
    assert all(one.about for one in grpo.settings if "." in one.name)
    config = _parse(["quickstart", "--algorithm", "grpo", "--algorithm.kl.weight", "0.25"])[1].config
    assert config.algorithm.kl.weight == 0.25


def test_what_other_packages_registered_is_listed_with_its_package(monkeypatch: pytest.MonkeyPatch) -> None:
    point = EntryPoint("mine", "my_package:MINE", "agentgym.samplers")
    monkeypatch.setattr(cli_listings, "installed", lambda *groups: {group: {"mine": point} for group in groups})
    *_, last = cli_listings.samplers()
    assert (last.name, last.about) == ("mine", "Of another package: my_package:MINE.")


def test_nothing_imports_torch() -> None:
    code = "import sys, agentgym_trainer.cli_listings as c\n"
    code += "list(c.recipes()), list(c.algorithms()), list(c.engines())\nassert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
