"""The sections of `agentgym list` for environments and agents."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.metadata import entry_points
from typing import Any

import gymnasium
from gymnasium.error import DependencyNotInstalled

from agentgym_envs.agents.formats import REPLY_FORMATS
from agentgym_envs.agents.names import GROUP as AGENTS
from agentgym_envs.agents.prompts import GROUP as PROMPTS
from agentgym_envs.agents.scaffold import SYNTAX, Scaffold
from agentgym_envs.core.descriptions import described_options, missing_dependency, task_counts
from agentgym_envs.core.registration import GROUP, WORLDS
from agentgym_envs.core.registry import find_spec, world_class
from agentgym_envs.util.listing import Listed, attribute_docs, first_sentence


def environments() -> Iterator[Listed]:
    """Yield the registered environments, and the names of those of installed packages without importing them."""
    for world in WORLDS:
        yield environment(world.id, world.short_name, about=world.about, agent=world.agent)
    yield from _registered(GROUP)


def _registered(group: str) -> Iterator[Listed]:
    for entry in entry_points(group=group):
        package = entry.dist.name if entry.dist else "another package"
        yield Listed(entry.name, f"Of {package}: {entry.value}.")


def environment(world_id: str, name: str, *, about: str = "", agent: str = "") -> Listed:
    """Describe an environment.

    Args:
        world_id: Its id, or MODULE:ID.
        name: The name that commands take.
        about: A sentence; by default the first one of its class's docstring.
        agent: The default agent of its registration.

    Raises:
        ValueError: if there is no such environment.
    """
    spec = find_spec(world_id)
    facts: dict[str, Any] = {"id": spec.id, "max_episode_steps": spec.max_episode_steps or "no limit"}
    facts |= {"agent": agent} if agent else {}
    missing = missing_dependency(world_id)
    facts["installed"] = missing or "yes"
    try:
        counts, options = task_counts(world_id), described_options(world_id)
        about = about or first_sentence(world_class(world_id))
    except (ImportError, DependencyNotInstalled, gymnasium.error.Error):
        return Listed(name, about, f"not installed: {missing}", facts)
    note = f"{', '.join(f'{count:,} {split}' for split, count in counts.items() if count)} tasks"
    facts["tasks"] = counts
    return Listed(name, about, f"{note}; not installed: {missing}" if missing else note, facts, options)


def agents() -> Iterator[Listed]:
    """Yield the reply formats, with those of installed packages, and the habits that can be added to each."""
    for name, kind in REPLY_FORMATS.items():
        yield Listed(name, first_sentence(kind), facts={"format": kind.format_instructions})
    yield from _registered(AGENTS)
    about = attribute_docs(Scaffold)
    for name, written in SYNTAX.items():
        yield Listed(f"+{written}", first_sentence(about[name]))


def prompts() -> Iterator[Listed]:
    """Yield the kinds of prompts, and the names of those of installed packages without importing them."""
    yield Listed(
        "FILE", "A text file, such as prompt.md, with {instructions} and {format_instructions} as placeholders."
    )
    yield Listed("MODULE:NAME", "A function that gets the environment's instructions and the reply format's.")
    yield from _registered(PROMPTS)
