"""Pictures of what an agent saw, kept in a folder beside the episodes. A world with pictures writes them while it is
played, and a viewer finds them by the text that was shown with them; neither needs to know of the other.
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
"""What viewers look for in the folder of a run."""


Box = tuple[float, float, float, float]
"""Left, top, right and bottom in pixels of a picture."""


@dataclass(frozen=True, slots=True)
class ElementBoxes:
    """Where a picture shows the elements that the text beside it numbers."""

    width: int
    height: int
    """Of the picture, in the pixels that boxes are given in."""
    boxes: Mapping[int, Box]
    """By the element's number."""


class ScreenshotStore:
    """A folder of PNGs, each named after the task and the observation that it belongs to. Attempts at a task that are
    shown the same text share a picture. Several processes may write into one.
    """

    def __init__(self, folder: Path | str) -> None:
        """`folder` is made when the first picture is put in."""
        self.folder = Path(folder).expanduser()

    def put(self, task_id: str, observation: str, png: bytes, places: ElementBoxes | None = None) -> None:
        """Keep the picture that belongs to `observation`, and where its elements are, if that is known.

        Raises:
            OSError: when it can't be written.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        path = self._path(task_id, observation)
        write_whole(path, png)
        if places is not None:
            boxes = {str(number): [round(side, 1) for side in box] for number, box in places.boxes.items()}
            record = {"width": places.width, "height": places.height, "boxes": boxes}
            write_whole(path.with_suffix(".json"), json.dumps(record))

    def find(self, task_id: str, observation: str) -> Path | None:
        """The file of that picture, if there is one."""
        path = self._path(task_id, observation)
        return path if path.is_file() else None

    def places(self, task_id: str, observation: str) -> ElementBoxes | None:
        """Where the elements are in that picture; None where nobody wrote that down, or what was written is damaged."""
        try:
            return _places(json.loads(self._path(task_id, observation).with_suffix(".json").read_text()))
        except (OSError, ValueError, KeyError, TypeError, AttributeError, OverflowError):
            return None

    def _path(self, task_id: str, observation: str) -> Path:
        shown = f"{task_id}\n{observation}".encode(errors="replace")
        return self.folder / f"{hashlib.blake2b(shown, digest_size=16).hexdigest()}.png"


def _places(record: Any) -> ElementBoxes:
    """Raises ValueError, KeyError, TypeError, AttributeError or OverflowError for what `Album.put` didn't write."""
    boxes: dict[int, Box] = {}
    for number, (left, top, right, bottom) in record["boxes"].items():
        boxes[int(number)] = box = (float(left), float(top), float(right), float(bottom))
        if not all(map(math.isfinite, box)):
            raise ValueError(f"The box of {number} isn't finite.")
    return ElementBoxes(int(record["width"]), int(record["height"]), boxes)
