"""`--config FILE` and `--like RUN` of `evaluate` and `collect`: settings from a file or an earlier run, as defaults.

Nothing heavy is imported at the top, so that `--help` is fast.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import MISSING, fields, is_dataclass
from pathlib import Path
from typing import Any, TypeVar, get_origin, get_type_hints

import tyro
from agentgym_envs.cli.flags import given
from agentgym_envs.cli.from_files import FromFiles

from agentgym_eval.runs.protocols import find_protocol
from agentgym_eval.util.errors import UsageError, nearest
from agentgym_eval.util.settings_files import plain_value, read_file

_Settings = TypeVar("_Settings")
_FOUND_OUT = ("tasks_sha256", "tasks_before", "prompt_sha256")
"""What `run.json` has besides settings."""
_OF_COLLECT = ("keep", "min_score")
_OF_HARNESS = ("harness", "harness_command")


def defaults(settings_type: type[_Settings], arguments: Sequence[str]) -> FromFiles[_Settings] | None:
    """Return the settings of `--like` and `--config` as defaults of the flags, unchecked, since flags may change them;
    None if neither is given.

    Raises:
        UsageError: There is no such run or file, or it has unknown settings or values of other types.
    """
    like, file = given(arguments, "--like"), given(arguments, "--config")
    if like is None and file is None:
        return None
    values = dict[str, Any]()
    if like is not None:
        values |= _typed(settings_type, _of_run(Path(like), settings_type, arguments), f"--like {like}")
    if file is not None:
        record = read_file(Path(file))
        if "schema" in record:
            record = _of_record(record, f"--config {file}", settings_type, arguments, Path(file).parent)
        values |= _typed(settings_type, record, f"--config {file}")
    return FromFiles(_unchecked(settings_type, values))


def _typed(settings_type: type[Any], record: Mapping[str, Any], of: str) -> dict[str, Any]:
    hints = dict(_flat_hints(settings_type))
    found = dict[str, Any]()
    for name, value in record.items():
        if name not in hints:
            raise UsageError(f"{of}: There is no setting {name!r}. {nearest(name, hints)}")
        # As on the command line, one value needs no list.
        several = get_origin(hints[name]) is tuple and not isinstance(value, list)
        try:
            found[name] = plain_value(hints[name], [value] if several else value, name)
        except ValueError as error:
            raise UsageError(f"{of}: {error}") from error
    return found


def _flat_hints(settings_type: type[Any]) -> Iterator[tuple[str, Any]]:
    """Yield the names of all settings, those of nested ones without a prefix, with their types."""
    for name, hint in get_type_hints(settings_type).items():
        if is_dataclass(hint):
            yield from get_type_hints(hint).items()
        else:
            yield name, hint


def _unchecked(kind: type[_Settings], values: Mapping[str, Any]) -> _Settings:
    """Return an instance without `__post_init__`, in which required settings may be missing."""
    made, hints = object.__new__(kind), get_type_hints(kind)
    for f in fields(kind):  # type: ignore[arg-type]  # a dataclass
        if is_dataclass(hints[f.name]):
            value = _unchecked(hints[f.name], values)
        elif f.name in values:
            value = values[f.name]
        elif f.default_factory is not MISSING:
            value = f.default_factory()
        else:
            value = tyro.MISSING if f.default is MISSING else f.default
        object.__setattr__(made, f.name, value)
    return made


def _of_run(path: Path, settings_type: type[Any], arguments: Sequence[str]) -> dict[str, Any]:
    """Return the settings of a run of `evaluate` (its run.json) or of an output of `collect` (its data card)."""
    files = (path / "run.json", path / "card.json") if path.is_dir() else (path.with_suffix(".card.json"),)
    file = next((file for file in files if file.is_file()), None)
    if file is None:
        unfinished = path.with_name(f"{path.name}.partial")
        runs = sorted(str(found.parent) for folder in (path, unfinished) for found in folder.glob("*/run.json"))
        hint = f" Name one of the runs in it: {', '.join(runs)}." if runs else ""
        raise UsageError(
            f"--like {path} is no run of evaluate and no output of collect ({files[0].name} is missing).{hint}"
        )
    try:
        record = json.loads(file.read_text(encoding="utf-8"))
        return _of_record(record, f"--like {path}", settings_type, arguments, file.parent)
    except UsageError:
        raise
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise UsageError(f"{file} can't be used: {error!r}") from error


def _of_record(
    record: Mapping[str, Any], of: str, settings_type: type[Any], arguments: Sequence[str], folder: Path
) -> dict[str, Any]:
    """Return the settings in the content of a run.json or data card of this folder, by the names of flags."""
    from agentgym_eval.data.card import SCHEMA as CARD
    from agentgym_eval.storage.store import SCHEMA as RUN

    schema = record["schema"]
    if str(schema).startswith("agentgym.train/"):
        raise UsageError(f"{of} is a training run, with other settings; train takes it.{_of_model(record, folder)}")
    if schema not in (RUN, CARD) or not isinstance(record.get("settings"), dict):
        raise UsageError(f"{of} is of another version or kind ({schema}, not {RUN} or {CARD}).")
    settings = {name: value for name, value in record["settings"].items() if value is not None}
    known = dict(_flat_hints(settings_type))
    if "harness" not in known and any(settings.get(name) for name in _OF_HARNESS):
        raise UsageError(f"{of} was played by a harness, and collect takes none.")
    left = [*_FOUND_OUT, *(name for name in _OF_COLLECT if name not in known)]
    if settings.get("protocol"):
        if "protocol" in known:  # it determines these
            env = settings["env"]
            left += find_protocol(settings["protocol"]).settings(env, items=bool(settings.get("items")))
        else:
            left.append("protocol")
    if isinstance(settings.get("options"), dict):
        settings["options"] = list(_pairs(settings["options"]))
    for name in ("options", "body"):
        if given(arguments, f"--{name}") is None:
            _refuse_stars(settings.get(name, ()), of, name)
        else:
            left.append(name)
    return {name: value for name, value in settings.items() if name not in left}


def _of_model(record: Mapping[str, Any], folder: Path) -> str:
    """Return how to evaluate the model of a training run with its settings; empty if there is no model yet."""
    from agentgym_eval.api.training_run import TrainingRun
    from agentgym_eval.runs.trained_model import evaluation_commands

    run = TrainingRun(folder)
    model = run.model or run.best_checkpoint or next(reversed(run.checkpoints), None)
    if model is None:
        return ""
    try:
        commands = evaluation_commands(record["config"], model)
    except (KeyError, TypeError, ValueError):  # of another version
        return ""
    lines = "".join(f"\n  {each}" for each in commands)
    return f" To evaluate its model with the settings of its training:{lines}"


def _pairs(by_env: Mapping[str, Sequence[str]]) -> Iterator[str]:
    """Yield the options of a data card as flags; those of several environments begin with its name."""
    for env, pairs in by_env.items():
        yield from (pair if len(by_env) == 1 else f"{env}:{pair}" for pair in pairs)


def _refuse_stars(pairs: Sequence[str], of: str, name: str) -> None:
    from agentgym_envs.util.redaction import STARS

    for pair in pairs:
        if STARS in pair:
            raise UsageError(
                f"{of}: {pair} was a secret, which isn't kept. Give all of --{name} again, with "
                f"{pair.partition('=')[0]}='${{NAME}}' for an environment variable."
            )
