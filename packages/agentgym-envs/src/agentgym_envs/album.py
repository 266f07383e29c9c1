"""Pictures of what an agent saw, kept in a folder beside the episodes. A world with pictures writes them while it is
played, and a viewer finds them by the text that was shown with them; neither needs to know of the other.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

from agentgym_envs.files import write_whole

FOLDER = "pictures"
"""What viewers look for in the folder of a run."""


class Album:
    """A folder of PNGs, each named after the task and the observation that it belongs to. Attempts at a task that are
    shown the same text share a picture. Several processes may write into one.
    """

    def __init__(self, folder: Path | str) -> None:
        """`folder` is made when the first picture is put in."""
        self.folder = Path(folder).expanduser()

    def put(self, task_id: str, observation: str, png: bytes) -> None:
        """Keep the picture that belongs to `observation`.

        Raises:
            OSError: when it can't be written.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        write_whole(self._path(task_id, observation), png)

    def find(self, task_id: str, observation: str) -> Path | None:
        """The file of that picture, if there is one."""
        path = self._path(task_id, observation)
        return path if path.is_file() else None

    def _path(self, task_id: str, observation: str) -> Path:
        shown = f"{task_id}\n{observation}".encode(errors="replace")
        return self.folder / f"{hashlib.blake2b(shown, digest_size=16).hexdigest()}.png"
