"""Screenshots of an agent's observations, stored in a folder next to the episodes.

Those that a policy saw (`Picture`) have a digest, by which episodes refer to them. Those that an environment writes by
itself, for policies that see only text, are found by the text of the observation.
"""

from __future__ import annotations

import base64
import hashlib
import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from agentgym_envs.util.files import write_whole
from agentgym_envs.util.images import png

FOLDER = "pictures"
"""The folder that viewers look for in a run folder."""

Box = tuple[float, float, float, float]
"""Left, top, right and bottom in pixels of a screenshot."""

_DIGEST = re.compile("[0-9a-f]{32}")


@dataclass(frozen=True, slots=True)
class ElementBoxes:
    """The bounding boxes of the elements in an observation."""

    width: int
    height: int
    """The size of the screenshot in pixels, the unit of the boxes."""
    boxes: Mapping[str, Box]
    """The boxes by what stands for the element in the observation, such as its number."""

    def to_json(self) -> str:
        """Return width, height and boxes as JSON, in tenths of a pixel."""
        boxes = {element: [round(side, 1) for side in box] for element, box in self.boxes.items()}
        return json.dumps({"width": self.width, "height": self.height, "boxes": boxes})


@dataclass(frozen=True, slots=True)
class Picture:
    """A screenshot of an observation, as a policy sees it. Pictures with the same digest are equal."""

    digest: str
    """Hash of the PNG and its boxes, by which episodes refer to the picture."""
    png: bytes = field(default=b"", compare=False, repr=False)
    """The image; empty where only the reference is known, as in a recorded episode."""
    places: ElementBoxes | None = field(default=None, compare=False, repr=False)
    """Where the elements of the observation are, if the environment reports it."""

    @classmethod
    def of(cls, info: Mapping[str, Any]) -> Picture | None:
        """Return the picture in the `info` of an environment; None if it has none.

        `info["screenshot"]` is an array (height, width, 3) of uint8, and `info["element_boxes"]`, which may be missing,
        has left, top, right and bottom in its pixels by what stands for the element in the observation.

        Raises:
            AttributeError, TypeError, ValueError: if they have another form.
        """
        pixels = info.get("screenshot")
        if pixels is None:
            return None
        height, width, _ = pixels.shape
        boxes = info.get("element_boxes")
        places = None if boxes is None else ElementBoxes(width, height, _boxes(boxes))
        image = png(pixels)
        return cls(_digest(image + (places.to_json() if places else "").encode()), image, places)

    @property
    def url(self) -> str:
        """The image as a `data:` URL."""
        return f"data:image/png;base64,{base64.b64encode(self.png).decode()}"


class ScreenshotStore:
    """A folder of PNGs, each with a file of its element boxes if they are known. Several processes may write to it.

    Attempts at a task with the same observation share a screenshot, and so do observations with the same picture.
    """

    def __init__(self, folder: Path | str) -> None:
        """Use `folder`, which is created by the first screenshot. Another working directory doesn't change it."""
        self.folder = Path(folder).expanduser().absolute()

    def put(self, task_id: str, observation: str, png: bytes, places: ElementBoxes | None = None) -> None:
        """Store the screenshot of `observation`, with its element boxes if they are known.

        Raises:
            OSError: if it can't be written.
        """
        self._write(self._path(task_id, observation), png, places)

    def find(self, task_id: str, observation: str) -> Path | None:
        """Return the file of an observation's screenshot, or None if there is none."""
        path = self._path(task_id, observation)
        return path if path.is_file() else None

    def add(self, picture: Picture) -> None:
        """Store a picture under its digest, unless it is there already.

        Raises:
            OSError: if it can't be written.
        """
        path = self.folder / f"{picture.digest}.png"
        if not path.is_file():
            self._write(path, picture.png, picture.places)

    def get(self, digest: str | None) -> Path | None:
        """Return the file of the picture with this digest, or None if there is none."""
        if digest is None or not _DIGEST.fullmatch(digest):  # may come from a foreign file of episodes
            return None
        path = self.folder / f"{digest}.png"
        return path if path.is_file() else None

    def _write(self, path: Path, png: bytes, places: ElementBoxes | None) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        if places is not None:  # first, as a picture that is there counts as complete
            write_whole(path.with_suffix(".json"), places.to_json())
        write_whole(path, png)

    def _path(self, task_id: str, observation: str) -> Path:
        key = f"{task_id}\n{observation}".encode(errors="replace")
        return self.folder / f"{_digest(key)}.png"


def element_boxes(path: Path) -> ElementBoxes | None:
    """Return the element boxes of the screenshot in a file, or None if they are missing or damaged."""
    try:
        return _places(json.loads(path.with_suffix(".json").read_text()))
    except (OSError, ValueError, KeyError, TypeError, AttributeError, OverflowError):
        return None


def _digest(content: bytes) -> str:
    return hashlib.blake2b(content, digest_size=16).hexdigest()


def _places(record: Any) -> ElementBoxes:
    """Parse the output of `ElementBoxes.to_json`.

    Raises:
        ValueError, KeyError, TypeError, AttributeError, OverflowError: if the record is damaged.
    """
    return ElementBoxes(int(record["width"]), int(record["height"]), _boxes(record["boxes"]))


def _boxes(record: Any) -> dict[str, Box]:
    boxes: dict[str, Box] = {}
    for element, (left, top, right, bottom) in record.items():
        boxes[str(element)] = box = (float(left), float(top), float(right), float(bottom))
        if not all(map(math.isfinite, box)):
            raise ValueError(f"The box of {element} isn't finite.")
    return boxes
