"""The option `screenshot` for environments of tests."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

from agentgym_envs.core.text_env import TextEnv


class ScreenshotOption(TextEnv):
    """An environment with the option `screenshot`, before another environment in the order of base classes."""

    def __init__(self, *, screenshot: bool = False) -> None:
        super().__init__()
        self._screenshot = screenshot

    @abstractmethod
    def _seen(self) -> dict[str, Any]:
        """Return `screenshot`, and `element_boxes` if they are known."""

    @property
    def has_screenshots(self) -> bool:
        return self._screenshot

    def _info(self) -> dict[str, Any]:
        return super()._info() | (self._seen() if self._screenshot else {})
