"""The coin environment with a screenshot: one gray level per flip."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from coin_world import Coin

ENV = "pictured_coins:pictured/Coin-v0"


class PicturedCoin(Coin):
    def __init__(self, *, screenshot: bool = False) -> None:
        super().__init__()
        self._screenshot = screenshot

    @property
    def has_screenshots(self) -> bool:
        return self._screenshot

    def _info(self) -> dict[str, Any]:
        picture = {"screenshot": np.full((32, 48, 3), 60 * self._flip, np.uint8)} if self._screenshot else {}
        return super()._info() | picture


gymnasium.register("pictured/Coin-v0", "pictured_coins:PicturedCoin", max_episode_steps=3, disable_env_checker=True)
