"""Tests of `train --world.prompt`: training and evaluations send it, and a run isn't resumed with another text."""

from __future__ import annotations

import json
import shlex
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from agentgym_envs import read_episodes
from agentgym_eval.policies.policies import Oracle
from agentgym_eval.runs.trained_model import evaluation_commands
from agentgym_trainer.cli import _parse
from agentgym_trainer.config import WorldConfig
from agentgym_trainer.config.serialization import from_json, to_json
from agentgym_trainer.recipes import RECIPES
from agentgym_trainer.rollout.environments import open_environments
from agentgym_trainer.run.folder import RunFolder
from agentgym_trainer.trainers.training_data import played_otherwise
from toy_learner import coin_flags, train_cli

TEXT = "Guess well.\n{format_instructions}"
SENT = "Guess well.\nAnswer with one action on one line and nothing else."


def written(folder: Path, text: str = TEXT) -> Path:
    (folder / "prompt.md").write_text(text, encoding="utf-8")
    return folder / "prompt.md"


def flags(out: Path, prompt: Path) -> list[str]:
    kept = [flag for flag in coin_flags(out) if flag != "--world.no-instructions"]
    return [*kept, "--world.instructions", "--world.prompt", str(prompt)]


@pytest.mark.long
def test_training_and_evaluations_send_the_prompt_and_a_resumed_run_has_the_same(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    out, prompt = tmp_path / "run", written(tmp_path)
    assert train_cli([*flags(out, prompt), "--steps", "2", "--evaluation.every", "0"]) == 0
    command = next(line for line in capfd.readouterr().out.splitlines() if line.strip().startswith("uv run evaluate"))
    assert f"--agent bare --prompt {prompt} --horizon" in command
    files = [*out.glob("evaluations/*.jsonl"), *out.glob("rollouts/step-??????.jsonl")]
    assert {"evaluations", "rollouts"} == {file.parent.name for file in files}
    assert {episode.instructions for file in files for episode in read_episodes(file)} == {SENT}
    record = json.loads((out / "run.json").read_text(encoding="utf-8"))
    assert record["config"]["world"]["prompt"] == str(prompt)
    assert len(record["prompts"]) == 1

    written(tmp_path, "Guess otherwise.")
    assert train_cli(["--resume", str(out)]) == 2
    error = capfd.readouterr().err
    assert f"The prompt {prompt} in coin_world:coin/Coin-v0 has another text than when the run in {out} began" in error
    prompt.unlink()
    assert train_cli(["--resume", str(out)]) == 2
    assert f"There is no prompt file {prompt}" in capfd.readouterr().err
    written(tmp_path)
    assert train_cli(["--resume", str(out)]) == 0


@pytest.mark.long
def test_a_wrong_prompt_ends_a_new_run_without_leaving_a_folder(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert train_cli(flags(tmp_path / "run", tmp_path / "none.md")) == 2
    assert f"There is no prompt file {tmp_path / 'none.md'}" in capfd.readouterr().err
    assert not (tmp_path / "run").exists()


def test_the_prompt_is_a_setting_of_each_environment(tmp_path: Path) -> None:
    config = _parse(["textcraft-grpo", "--world.prompt", "a prompt.md"])[1].config
    assert config.world.prompt == "a prompt.md"
    assert from_json(type(config), json.loads(json.dumps(to_json(config)))) == config
    RunFolder.create(tmp_path / "run", config, "textcraft-grpo")
    assert RunFolder.open(tmp_path / "run")[1] == config
    words = shlex.split(evaluation_commands(to_json(config), Path("model"))[0])
    assert words[words.index("--prompt") + 1] == "a prompt.md"
    before: dict[str, Any] = to_json(RECIPES["textcraft-grpo"].config)
    del before["world"]["prompt"]  # as in runs of earlier versions
    assert from_json(type(config), before) == RECIPES["textcraft-grpo"].config


def test_settings_that_exclude_a_prompt() -> None:
    with pytest.raises(ValueError, match=r"The prompt a.md of a world writes its instructions, which are off"):
        WorldConfig(prompt="a.md", instructions=False)
    config: Any = RECIPES["textcraft-grpo"].config
    with pytest.raises(ValueError, match=r"A harness writes its own messages, so the prompt a.md doesn't apply"):
        replace(config, world=replace(config.world, prompt="a.md"), harness="mine:play")


def test_data_with_other_instructions_is_reported(tmp_path: Path) -> None:
    config: Any = _parse(flags(tmp_path / "run", written(tmp_path)))[1].config
    with open_environments(config) as worlds:
        tasks = worlds[0].tasks.train[:2]
        episodes = list(worlds[0].play(Oracle(), tasks, seed=0, horizon=3))
        assert list(played_otherwise(config, worlds, episodes)) == []
        others = [replace(episode, instructions="Guess.") for episode in episodes]
        (sentence,) = played_otherwise(config, worlds, others)
    assert "were played by bare with other instructions, but this run" in sentence
    assert sentence.endswith("--world.agent bare --world.instructions, with the --world.prompt that they had.")
