from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from agentgym_trainer.algorithms import GRPO
from agentgym_trainer.config import Config, Evaluation, from_json, to_json
from agentgym_trainer.horizon import FixedHorizon, StepHorizon
from agentgym_trainer.recipes import RECIPES, tiny
from agentgym_trainer.scratch import Scratch


@pytest.mark.parametrize("name", RECIPES)
@pytest.mark.parametrize("small", [False, True])
def test_every_recipe_comes_back_from_json(name: str, small: bool) -> None:
    config = tiny(RECIPES[name].config) if small else RECIPES[name].config
    again = from_json(Config, json.loads(json.dumps(to_json(config))))
    assert again == config
    assert repr(again) == repr(config)


def test_which_of_several_types_is_kept() -> None:
    for horizon in (FixedHorizon(7), StepHorizon((2, 3), every=4)):
        assert from_json(Config, to_json(Config(horizon=horizon))).horizon == horizon
    assert to_json(Config())["horizon"]["type"] == "FixedHorizon"


def test_settings_that_are_not_given_have_their_defaults() -> None:
    assert from_json(Config, {"steps": 3}) == Config(steps=3)


@pytest.mark.parametrize(
    ("record", "message"),
    [
        ({"step": 3}, "There is no setting 'step'. Did you mean 'steps'?"),
        ({"optimizer": {"learning_rate": 1}}, "There is no setting 'optimizer.learning_rate'. There are: .*lr"),
        ({"algorithm": {"clip_hihg": 1}}, "There is no setting 'algorithm.clip_hihg'. Did you mean 'clip_high'?"),
        (
            {"horizon": {"type": "StepHorizon", "stage": [1]}},
            "There is no setting 'horizon.stage'. Did you mean 'stages'?",
        ),
        (
            {"horizon": {"type": "StepHorizons"}},
            "horizon can't be of type 'StepHorizons'. Did you mean 'StepHorizon'?",
        ),
        ({"horizon": {"turns": 3}}, "horizon can't be of type None"),
    ],
)
def test_what_does_not_exist_is_refused_with_a_suggestion(record: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        from_json(Config, record)


@pytest.mark.parametrize(
    "name", ["tasks", "samples", "epochs", "minibatches", "save_every", "keep", "threads"]
)  # fmt: skip
def test_counts_are_at_least_one(name: str) -> None:
    with pytest.raises(ValueError, match=f"{name} must be at least 1, not 0"):
        replace(Config(), **{name: 0})
    with pytest.raises(ValueError, match=f"{name} must be at least 1, not 0"):
        from_json(Config, {name: 0})


def test_pass_at_k_needs_k_samples() -> None:
    with pytest.raises(ValueError, match="pass@8 needs"):
        Config(evaluation=Evaluation(samples=4, ks=(1, 8)))


def test_the_size_of_a_scratch_model_has_to_fit() -> None:
    with pytest.raises(ValueError, match="at least 259 entries, not 100"):
        Scratch(vocab=100)
    with pytest.raises(ValueError, match=r"hidden \(96\) must be a multiple of twice heads \(5\)"):
        Scratch(hidden=96, heads=5)


def test_the_miniature_keeps_what_the_recipe_is_about() -> None:
    for recipe in RECIPES.values():
        small = tiny(recipe.config)
        assert (small.model, small.steps, small.device) == ("scratch", 2, "cpu")
        for name in ("world", "horizon", "epochs", "minibatches"):
            assert getattr(small, name) == getattr(recipe.config, name)
        assert isinstance(small.algorithm, GRPO)
        assert small.algorithm.kl == recipe.config.algorithm.kl
