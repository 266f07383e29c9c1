"""Where a collection of episodes lies on disk, and how it gets there: whole, with its data card, or not at all.

`--out FILE.jsonl` is a file, with FILE.card.md and FILE.card.json beside it. Any other `--out` is a folder in the form
of a dataset: README.md, card.json and WORLD/SPLIT.jsonl. Knows nothing about playing.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from agentgym_envs import Episode
from agentgym_envs.core.tasks import SPLITS
from agentgym_envs.util.files import write_whole

from agentgym_eval.data.card import SCHEMA, Card, make_card
from agentgym_eval.data.page import page
from agentgym_eval.metrics.usage import Usage
from agentgym_eval.runs.settings import CollectSettings, short_name
from agentgym_eval.storage.store import is_empty as holds_nothing
from agentgym_eval.storage.store import write_json
from agentgym_eval.util.errors import UsageError

_CARD = "card.json"


class Collection:
    """What `collect` leaves at `settings.out`."""

    def __init__(self, settings: CollectSettings) -> None:
        self._settings = settings
        self._out = settings.out

    @property
    def rule(self) -> str:
        """The flags that say which episodes are kept."""
        least = self._settings.min_score
        return f"--keep {self._settings.keep}" + (f" and --min-score {least:g}" if least else "")

    def check(self) -> None:
        """Raise `UsageError` where something lies at `out`, or beside it, that isn't to be replaced, or unfinished work
        that the settings don't go on with.
        """
        out, asked = self._out, self._settings
        begun = {path.name for path in _entries(asked.folder) if _is_begun(path)}
        if out.exists() and not (asked.overwrite or begun or _is_empty(out)):
            raise UsageError(f"{out} exists already; choose another --out, or replace it with --overwrite.")
        for path in self._foreign():
            raise UsageError(f"{path} is nothing that `collect` made; choose another --out.")
        others = begun - {folder.name for folder in asked.worlds()}
        if others and not asked.overwrite:
            raise UsageError(
                f"{asked.folder} holds unfinished work of another command ({', '.join(sorted(others))}): name its "
                "worlds in --env as well, choose another --out, or begin again with --overwrite."
            )

    def _foreign(self) -> Iterator[Path]:
        """What would be replaced or removed, and isn't `collect`'s."""
        out = self._out
        if self._is_file:
            if out.is_dir() or not _is_card(self._cards[1]):
                yield from (path for path in (out, *self._cards) if path.exists())
        elif out.exists() and not (_is_empty(out) or _is_card(out / _CARD)):
            yield out
        yield from (path for path in _entries(self._settings.folder) if not _is_run(path))

    def write(self, played: Sequence[Episode], usage: Usage | None = None) -> Card:
        """Write those of the episodes that are to be kept and the card in place of what is there, and remove the
        unfinished work. The card says what a player that is paid by the token used for them.
        """
        asked = self._settings
        used = usage.to_dict(asked.endpoint.price) if usage and usage.requests else None
        card = make_card(played, self._keeps, asked.resolved(), used)
        kept = [episode for episode in played if self._keeps(episode)]
        if self._is_file:
            self._write_file(card, kept)
        else:
            self._write_folder(card, kept)
        shutil.rmtree(self._settings.folder)
        return card

    def _keeps(self, episode: Episode) -> bool:
        asked = self._settings
        if episode.score is None or episode.score < asked.min_score:
            return False
        return asked.keep == "all" or episode.success is True

    @property
    def _is_file(self) -> bool:
        return self._out.suffix == ".jsonl"

    @property
    def _cards(self) -> tuple[Path, Path]:
        """Of a file: the page and the figures."""
        return self._out.with_suffix(".card.md"), self._out.with_suffix(f".{_CARD}")

    def _write_file(self, card: Card, kept: Sequence[Episode]) -> None:
        markdown, figures = self._cards
        split = kept[0].split if kept and len(card.total.splits) == 1 else "train"
        write_json(figures, card.to_dict())  # first, since it says that the others are ours
        write_whole(markdown, page(card, self._out.stem, {"": {split: self._out.name}}))
        write_whole(self._out, _lines(kept))  # last, since it says that all is there

    def _write_folder(self, card: Card, kept: Sequence[Episode]) -> None:
        fresh = self._settings.folder / ".dataset"
        shutil.rmtree(fresh, ignore_errors=True)
        files: dict[str, dict[str, str]] = {}
        for world, name in zip(card.worlds, _names([world.env for world in card.worlds]), strict=True):
            splits = [split for split in SPLITS if split in world.splits]
            files[name] = {split: f"{name}/{split}.jsonl" for split in splits}
            (fresh / name).mkdir(parents=True)
            for split in splits:
                some = (episode for episode in kept if (episode.env, episode.split) == (world.env, split))
                write_whole(fresh / files[name][split], _lines(some))
        write_whole(fresh / "README.md", page(card, self._out.name, files))
        write_json(fresh / _CARD, card.to_dict())
        if self._out.is_dir():
            shutil.rmtree(self._out)
        fresh.replace(self._out)


def _entries(folder: Path) -> list[Path]:
    return [path for path in folder.iterdir() if path.name != ".dataset"] if folder.is_dir() else []


def _is_empty(path: Path) -> bool:
    return path.is_dir() and not any(path.iterdir())


def _is_run(path: Path) -> bool:
    return _is_empty(path) or (path / "episodes.jsonl").is_file()


def _is_begun(run: Path) -> bool:
    return run.is_dir() and not holds_nothing(run)


def _is_card(path: Path) -> bool:
    try:
        return json.loads(path.read_text(encoding="utf-8"))["schema"] == SCHEMA
    except (OSError, ValueError, KeyError, TypeError):
        return False


def _names(envs: Sequence[str]) -> list[str]:
    """Short names of worlds; whole ids where two would be called the same."""
    short = [short_name(env) for env in envs]
    return short if len(set(short)) == len(envs) else [re.sub(r"[^\w.-]+", "-", env) for env in envs]


def _lines(episodes: Iterable[Episode]) -> str:
    return "".join(f"{episode.to_json()}\n" for episode in episodes)
