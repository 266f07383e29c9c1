"""Saving interactively played episodes to a regular run folder, which the viewer lists and all commands can read."""

from __future__ import annotations

import re
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import Any

from agentgym_envs import Episode

from agentgym_eval.runs.environments import world_id
from agentgym_eval.runs.settings import PlaySettings, short_name
from agentgym_eval.storage.store import PROMPT_DIGEST, Store
from agentgym_eval.viewer.index.runs import HUMAN

FOLDER = "played"


def save(root: Path, settings: PlaySettings, episode: Episode) -> Path:
    """Append `episode` to the run in `root/played` for its environment, agent, options, seed and prompt.

    Returns:
        The run folder.

    Raises:
        UsageError: if the folder can't be written, or another process writes to it.
    """
    played = replace(settings, env=world_id(settings.env), policy=HUMAN, task=(), agent=episode.agent)
    parts = [short_name(settings.env), episode.agent, episode.split, *settings.shown_options, f"seed {settings.seed}"]
    about: dict[str, Any] = replace(played, split=episode.split).identity()
    if settings.prompt:  # after a change of its text, games are another run
        about[PROMPT_DIGEST] = sha256(bytes(episode.instructions, "utf-8", "replace")).hexdigest()
        parts += ["prompt", Path(settings.prompt).name[-40:], about[PROMPT_DIGEST][:6]]
    folder = root / FOLDER / re.sub(r"[^\w.]+", "-", " ".join(parts)).strip("-")
    with Store(folder, about) as store:
        sample = sum(other.task_id == episode.task_id for other in store.episodes)
        store.append(replace(episode, sample=sample))
    return folder
