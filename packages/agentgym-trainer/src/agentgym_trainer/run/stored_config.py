"""What a run folder can store of a configuration: what is read back unchanged, and no secrets."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import suppress
from typing import Any, cast

from agentgym_envs.core.registration import full_id
from agentgym_envs.core.registry import world_class
from agentgym_envs.util.redaction import redacted_option
from agentgym_eval.util.errors import UsageError
from gymnasium.error import DependencyNotInstalled

from agentgym_trainer.config import BaseConfig
from agentgym_trainer.config.serialization import from_json, to_json


def check_storable(config: BaseConfig) -> None:
    """Check that a run folder can store a configuration.

    Raises:
        UsageError: when it contains a secret, or a setting of another package that can't be read back.
    """
    _check_readable(config)
    _refuse_secrets(config)


def _check_readable(config: BaseConfig) -> None:
    """Check that --resume can read the configuration back unchanged."""
    try:
        again = from_json(type(config), json.loads(json.dumps(to_json(config))))
    except Exception as error:  # types and values of other packages may raise anything
        raise UsageError(
            f"The run folder stores all settings for --resume, but these can't be read back: {error}"
        ) from error
    if again != config:
        raise UsageError(
            "The run folder stores all settings for --resume, but these change when they are read back. The values of "
            "your own fields must match their types: numbers, strings, tuples, and frozen dataclasses of these."
        )


def _refuse_secrets(config: BaseConfig) -> None:
    for world in config.worlds:
        with suppress(ValueError, ImportError, DependencyNotInstalled):  # raised when the environment is created
            world_class(full_id(world.env))
    for text in _texts(to_json(config)):
        if (shown := redacted_option(text)) != text:
            raise UsageError(
                f"The run folder stores all settings in plain text, and {shown} is a secret. Export it as an "
                "environment variable, such as WORLD_TOKEN, and write '${WORLD_TOKEN}' in its place. --resume reads "
                "the variable again."
            )


def _texts(value: Any) -> Iterator[str]:
    """Yield all strings within JSON values."""
    match value:
        case str():
            yield value
        case list() | dict():
            for part in cast("list[Any]", value if isinstance(value, list) else list(value.values())):
                yield from _texts(part)
        case _:
            pass
