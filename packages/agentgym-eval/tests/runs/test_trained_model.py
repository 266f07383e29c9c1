"""Tests of the settings with which the model of a training run is evaluated."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from agentgym_eval.runs.settings import PlaySettings
from agentgym_eval.runs.trained_model import evaluation_commands, other_agent

pytestmark = pytest.mark.quick

WORLD: dict[str, Any] = {
    "env": "agentgym/BabyAI-v0", "agent": "bare", "instructions": False, "prompt": "", "options": ["levels='GoToObj'"],
}  # fmt: skip
CONFIG: dict[str, Any] = {
    "world": WORLD,
    "extra_worlds": [WORLD | {"env": "agentgym/TextCraft-v0", "agent": "react", "instructions": True, "options": []}],
    "horizon": {"type": "StepHorizon", "stages": [4, 12, 8]},
    "generation": {"max_tokens": 32, "temperature": 1.0},
}


def test_each_environment_has_a_command() -> None:
    first, second = evaluation_commands(CONFIG, Path("my runs/model"))
    assert first == (
        "uv run evaluate --env agentgym/BabyAI-v0 --policy 'hf:my runs/model' --split test --samples 4 --agent bare "
        """--no-instructions --horizon 12 --max-tokens 32 --temperature 1 --options "levels='GoToObj'\""""
    )
    assert second.endswith("--samples 4 --agent react --horizon 12 --max-tokens 32 --temperature 1")
    assert "--horizon 7 " in evaluation_commands(CONFIG, Path("model"), horizon=7)[0]
    of_harness = CONFIG | {"harness": "mine:play", "extra_worlds": []}
    assert "--samples 4 --harness mine:play --horizon 12" in evaluation_commands(of_harness, Path("model"))[0]
    with pytest.raises(KeyError):
        evaluation_commands(CONFIG | {"horizon": {"type": "mine:Own"}}, Path("model"))


@pytest.mark.parametrize("model", ["model", "checkpoints/step-000004"])
def test_another_agent_than_that_of_the_training_is_named(tmp_path: Path, model: str) -> None:
    (tmp_path / "run.json").write_text(json.dumps({"schema": "agentgym.train/1", "config": CONFIG}))
    policy = f"hf:{tmp_path / model}"
    sentence = f"{policy} was trained in agentgym/BabyAI-v0 with --agent bare --no-instructions, and is played with "
    assert other_agent(PlaySettings(env="babyai", policy=policy)) == f"{sentence}--agent react."
    assert other_agent(PlaySettings(env="babyai", policy=policy, agent="bare")) == f"{sentence}--agent bare."
    assert other_agent(PlaySettings(env="babyai", policy=policy, agent="bare", instructions=False)) == ""
    assert other_agent(PlaySettings(env="textcraft", policy=policy)) == ""
    assert other_agent(PlaySettings(env="sciworld", policy=policy)) == ""
    assert other_agent(PlaySettings(env="babyai", policy="oracle:0.3")) == ""
    (tmp_path / "run.json").write_text('{"schema": "agentgym.run/1", "settings": {}}')
    assert other_agent(PlaySettings(env="babyai", policy=policy)) == ""
