"""Screenshots of an agent's observations, stored in a folder next to the episodes.

An environment with images writes them during an episode. A viewer finds them by the text of the observation, so the two
need no reference to each other.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agentgym_envs.util.files import write_whole

FOLDER = "pictures"
"""The folder that viewers look for in a run folder."""

Box = tuple[float, float, float, float]
"""Left, top, right and bottom in pixels of a screenshot."""


@dataclass(frozen=True, slots=True)
class ElementBoxes:
    """The bounding boxes of the elements that the observation numbers."""

    width: int
    height: int
    """The size of the screenshot in pixels, the unit of the boxes."""
    boxes: Mapping[int, Box]
    """The boxes by element number."""


class ScreenshotStore:
    """A folder of PNGs, each named after its task and observation.

    Attempts at a task with the same observation share a screenshot. Several processes may write to one folder.
    """

    def __init__(self, folder: Path | str) -> None:
        """Use `folder`, which the first `put` creates."""
        self.folder = Path(folder).expanduser()

    def put(self, task_id: str, observation: str, png: bytes, places: ElementBoxes | None = None) -> None:
        """Store the screenshot of `observation`, with its element boxes if they are known.

        Raises:
            OSError: if it can't be written.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        path = self._path(task_id, observation)
        write_whole(path, png)
        if places is not None:
            boxes = {str(number): [round(side, 1) for side in box] for number, box in places.boxes.items()}
            record = {"width": places.width, "height": places.height, "boxes": boxes}
            write_whole(path.with_suffix(".json"), json.dumps(record))

    def find(self, task_id: str, observation: str) -> Path | None:
        """Return the file of the screenshot, or None if there is none."""
        path = self._path(task_id, observation)
        return path if path.is_file() else None

    def places(self, task_id: str, observation: str) -> ElementBoxes | None:
        """Return the element boxes of the screenshot, or None if they are missing or damaged."""
        try:
            return _places(json.loads(self._path(task_id, observation).with_suffix(".json").read_text()))
        except (OSError, ValueError, KeyError, TypeError, AttributeError, OverflowError):
            return None

    def _path(self, task_id: str, observation: str) -> Path:
        key = f"{task_id}\n{observation}".encode(errors="replace")
        return self.folder / f"{hashlib.blake2b(key, digest_size=16).hexdigest()}.png"


def _places(record: Any) -> ElementBoxes:
    """Parse a record of `ScreenshotStore.put`.

    Raises:
        ValueError, KeyError, TypeError, AttributeError, OverflowError: if the record is damaged.
    """
    boxes: dict[int, Box] = {}
    for number, (left, top, right, bottom) in record["boxes"].items():
        boxes[int(number)] = box = (float(left), float(top), float(right), float(bottom))
        if not all(map(math.isfinite, box)):
            raise ValueError(f"The box of {number} isn't finite.")
    return ElementBoxes(int(record["width"]), int(record["height"]), boxes)
