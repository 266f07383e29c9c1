"""Collections of episodes on disk, written together with their data card, in full or not at all.

`--out FILE.jsonl` is a file with FILE.card.md and FILE.card.json next to it. Any other `--out` is a folder in the form
of a dataset: README.md, card.json and ENV/SPLIT.jsonl.
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
from agentgym_envs.util.screenshots import FOLDER, ScreenshotStore

from agentgym_eval.data.card import SCHEMA, Card, make_card
from agentgym_eval.data.page import page
from agentgym_eval.metrics.usage import Usage
from agentgym_eval.runs.settings import CollectSettings, short_name
from agentgym_eval.storage.store import is_empty as holds_nothing
from agentgym_eval.storage.store import write_json
from agentgym_eval.util.errors import UsageError

_CARD = "card.json"


class Collection:
    """The output of `collect` at `settings.out`."""

    def __init__(self, settings: CollectSettings) -> None:
        self._settings = settings
        self._out = settings.out

    @property
    def rule(self) -> str:
        """The flags that select the kept episodes."""
        least = self._settings.min_score
        return f"--keep {self._settings.keep}" + (f" and --min-score {least:g}" if least else "")

    def check(self) -> None:
        """Raise `UsageError` if existing files must not be replaced, or unfinished work doesn't match the settings."""
        out, settings = self._out, self._settings
        begun = {path.name for path in _entries(settings.folder) if _is_begun(path)}
        if out.is_symlink() and not self._is_file:
            raise UsageError(
                f"{out} is a link, which a folder can't replace: give the folder itself, --out {out.resolve()}."
            )
        if out.exists() and not (settings.overwrite or begun or _is_empty(out)):
            raise UsageError(f"{out} exists already; choose another --out, or replace it with --overwrite.")
        for path in self._foreign():
            raise UsageError(f"{path} was not written by `collect`; choose another --out.")
        others = begun - {folder.name for folder in settings.worlds()}
        if others and not settings.overwrite:
            raise UsageError(
                f"{settings.folder} holds unfinished work of another command ({', '.join(sorted(others))}): add its "
                "environments to --env, choose another --out, or start over with --overwrite."
            )

    def _foreign(self) -> Iterator[Path]:
        """Yield files that would be replaced or removed, but were not written by `collect`."""
        out = self._out
        if self._is_file:
            if out.is_dir() or not _is_card(self._cards[1]):
                yield from (path for path in (out, *self._cards) if path.exists())
        elif out.exists() and not (_is_empty(out) or _is_card(out / _CARD)):
            yield out
        yield from (path for path in _entries(self._settings.folder) if not _is_run(path))

    def write(self, played: Sequence[Episode], usage: Usage | None = None) -> Card:
        """Write the selected episodes and the data card, replacing existing output, and remove the unfinished work.
        `usage` is recorded in the card.
        """
        settings = self._settings
        used = usage.to_dict(settings.endpoint.price) if usage and usage.requests else None
        card = make_card(played, self._keeps, settings.resolved(), used)
        kept = [episode for episode in played if self._keeps(episode)]
        if self._is_file:
            self._write_file(card, kept)
        else:
            self._write_folder(card, kept)
        shutil.rmtree(self._settings.folder)
        return card

    def _keeps(self, episode: Episode) -> bool:
        settings = self._settings
        if episode.score is None or episode.score < settings.min_score:
            return False
        return settings.keep == "all" or episode.success is True

    @property
    def _is_file(self) -> bool:
        return self._out.suffix == ".jsonl"

    @property
    def _cards(self) -> tuple[Path, Path]:
        """Paths of a file's card as Markdown and as JSON."""
        return self._out.with_suffix(".card.md"), self._out.with_suffix(f".{_CARD}")

    def _write_file(self, card: Card, kept: Sequence[Episode]) -> None:
        markdown, statistics = self._cards
        self._copy_pictures(kept, self._out.parent / FOLDER)
        split = kept[0].split if kept and len(card.total.splits) == 1 else "train"
        write_json(statistics, card.to_dict())  # first, because it marks the other files as written by `collect`
        write_whole(markdown, page(card, self._out.stem, {"": {split: self._out.name}}))
        write_whole(self._out, _lines(kept))  # last, because it marks the output as complete

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
        self._copy_pictures(kept, fresh / FOLDER)
        if self._out.is_dir():
            shutil.rmtree(self._out)
        fresh.replace(self._out)

    def _copy_pictures(self, kept: Sequence[Episode], folder: Path) -> None:
        """Copy the pictures that the episodes refer to, from the unfinished runs to `folder`."""
        stores = [ScreenshotStore(run / FOLDER) for run in self._settings.worlds()]
        digests = {turn.picture for episode in kept for turn in episode.turns}
        digests |= {episode.final_picture for episode in kept}
        for path in filter(None, (store.get(digest) for digest in digests for store in stores)):
            folder.mkdir(parents=True, exist_ok=True)
            for file in (path, path.with_suffix(".json")):
                if file.is_file():
                    write_whole(folder / file.name, file.read_bytes())


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
    """Return the environments' short names, or full ids if short names aren't unique."""
    short = [short_name(env) for env in envs]
    return short if len(set(short)) == len(envs) else [re.sub(r"[^\w.-]+", "-", env) for env in envs]


def _lines(episodes: Iterable[Episode]) -> str:
    return "".join(f"{episode.to_json()}\n" for episode in episodes)
