"""The settings of a training run with which its model is evaluated, and whether it is played with others."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from agentgym_envs.core.registration import WORLDS, full_id
from agentgym_envs.util.installation import command

from agentgym_eval.runs.settings import PlaySettings
from agentgym_eval.storage.store import RUN


def evaluation_commands(config: Mapping[str, Any], model: Path, *, horizon: int | None = None) -> list[str]:
    """Return the command that evaluates a model on all test tasks, for each environment of a training run.

    Args:
        config: The configuration in the run's `run.json`.
        model: Folder of the model.
        horizon: Maximum number of actions; None: the longest of the training's.

    Raises:
        KeyError: The configuration is of another version, or its horizon of another package.
    """
    schedule = config["horizon"]
    longest = horizon or (schedule["turns"] if "turns" in schedule else max(schedule["stages"]))
    worlds = (config["world"], *config["extra_worlds"])
    return [" ".join([command("evaluate"), *_flags(config, world, model, longest)]) for world in worlds]


def other_agent(settings: PlaySettings) -> str:
    """Return a sentence if the policy is the model of a training run whose agent was another one in this environment,
    as its replies then may not contain actions; otherwise an empty string.
    """
    name, _, model = settings.policy.partition(":")
    if name not in ("hf", "vllm"):
        return ""
    for folder in Path(model).parents[:2]:  # of the final model, or of a checkpoint
        with suppress(OSError, ValueError, LookupError, TypeError):  # no training run
            config = json.loads((folder / RUN).read_text(encoding="utf-8"))["config"]
            worlds = (config["world"], *config["extra_worlds"])
            agents = {full_id(world["env"]): _agent(world["agent"], world["instructions"]) for world in worlds}
            env = full_id(settings.env)
            own = {world.id: world.agent for world in WORLDS}.get(env, "react")
            asked = _agent(settings.agent or own, settings.instructions)
            if agents.get(env, asked) != asked:
                return f"{settings.policy} was trained in {env} with {agents[env]}, and is played with {asked}."
    return ""


def _agent(agent: str, instructions: bool) -> str:
    return f"--agent {agent}{'' if instructions else ' --no-instructions'}"


def _flags(config: Mapping[str, Any], world: Mapping[str, Any], model: Path, horizon: int) -> Iterator[str]:
    yield f"--env {world['env']} --policy {shlex.quote(f'hf:{model}')} --split test --samples 4"
    if config.get("harness"):
        yield f"--harness {shlex.quote(config['harness'])}"
    elif config.get("harness_command"):
        yield f"--harness-command {shlex.quote(config['harness_command'])}"
    else:
        yield _agent(world["agent"], world["instructions"])
        if world["prompt"]:
            yield f"--prompt {shlex.quote(world['prompt'])}"
    sampling = config["generation"]
    yield f"--horizon {horizon} --max-tokens {sampling['max_tokens']} --temperature {sampling['temperature']:g}"
    if world["options"]:
        yield " ".join(["--options", *map(_quoted, world["options"])])


def _quoted(option: str) -> str:
    """Quote an option for a shell. Options are Python literals, which usually contain single quotes."""
    return f'"{option}"' if set('"$`\\!').isdisjoint(option) else shlex.quote(option)
