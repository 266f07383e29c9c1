"""Configurations in files: `run.json` of a run folder, and files with settings for `train --config`. No torch."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

from agentgym_eval.util.errors import UsageError, nearest
from agentgym_eval.util.settings_files import read_file

from agentgym_trainer.cli_choices import choices, with_choice
from agentgym_trainer.config import BaseConfig
from agentgym_trainer.config.serialization import from_json, to_json
from agentgym_trainer.kinds import KINDS

_TRAINING = "agentgym.train/"
SCHEMA = f"{_TRAINING}4"
SETTINGS = "run.json"
"""Name of the file with the settings in a run folder."""


def read_run(path: Path) -> tuple[BaseConfig, str]:
    """Return the configuration of the run in a folder, and the name of its recipe.

    Raises:
        UsageError: The folder holds no run, one of another version, or one with unknown settings.
    """
    file = path / SETTINGS
    if not file.is_file():
        raise UsageError(f"{path} holds no training run ({SETTINGS} is missing).")
    try:
        record = json.loads(file.read_text(encoding="utf-8"))
        if not record["schema"].startswith(_TRAINING):
            raise UsageError(f"{path} holds no training run: {SETTINGS} is of the schema {record['schema']}.")
        if record["schema"] != SCHEMA:
            raise UsageError(
                f"The run in {path} was started by another version of this package, with other settings and files "
                f"({record['schema']}; this version has {SCHEMA}). Resume it with that version, or start a new run."
            )
        return from_json(_config_type(record["kind"]), record["config"]), record["recipe"]
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise UsageError(f"{file} can't be used: {error}") from error


def read_settings(path: Path) -> tuple[dict[str, Any], str | None]:
    """Return the settings in a JSON or TOML file, and the recipe that it names as `recipe`, or None.

    The file contains any of the settings that `run.json` has under `config`. `run.json` itself is also read.

    Raises:
        UsageError: The file can't be read or isn't of this form.
    """
    record = read_file(path)
    recipe = record.pop("recipe", None)
    if recipe is not None and not isinstance(recipe, str):
        raise UsageError(f"--config {path}: recipe must be the name of a recipe, not {recipe!r}.")
    if "schema" not in record:
        return record, recipe
    if record["schema"] != SCHEMA or not isinstance(record.get("config"), dict):
        raise UsageError(f"--config {path} is a {SETTINGS} of another version ({record['schema']}, not {SCHEMA}).")
    return record["config"], recipe


def with_settings(config: BaseConfig, settings: Mapping[str, Any], path: Path) -> BaseConfig:
    """Return a configuration with the settings of a file.

    An algorithm, estimator of advantages, horizon, sampler or reward that is only a name, such as `algorithm = "ppo"`,
    is selected as by its flag. Settings that the file doesn't have keep their values.

    Raises:
        UsageError: There is no such setting (the message names the nearest one), or its value is wrong.
    """
    left = json.loads(json.dumps(settings, default=str))
    try:
        for flag, choice in choices(config).items():
            *outer, last = flag.split(".")
            holder = left
            for name in outer:
                holder = holder.get(name)
                holder = holder if isinstance(holder, dict) else {}
            if isinstance(holder.get(last), str):
                config = with_choice(config, flag, choice, holder.pop(last))
        return from_json(type(config), _merged(to_json(config), left))
    except (ValueError, TypeError) as error:
        raise UsageError(f"--config {path}: {error}") from error


def _merged(old: Any, new: Any) -> Any:
    """Return nested records with the values of `new` in place of those of `old`; other types are replaced."""
    if not (isinstance(old, Mapping) and isinstance(new, Mapping)):
        return new
    before, after = cast(Mapping[str, Any], old), cast(Mapping[str, Any], new)
    if "type" in after and after["type"] != before.get("type"):
        return after
    return {**before, **{key: _merged(before.get(key), value) for key, value in after.items()}}


def _config_type(kind: str) -> type[BaseConfig]:
    """Return the configuration class of this kind of run."""
    if kind not in KINDS:
        raise ValueError(f"There is no kind of run {kind!r}. {nearest(kind, KINDS)}")
    return KINDS[kind].config
