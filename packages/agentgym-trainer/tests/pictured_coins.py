"""The coin environment with a screenshot: one gray level per flip."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from coin_world import Coin
from screenshot_option import ScreenshotOption

ENV = "pictured_coins:pictured/Coin-v0"


class PicturedCoin(ScreenshotOption, Coin):
    def _seen(self) -> dict[str, Any]:
        return {"screenshot": np.full((32, 48, 3), 60 * self._flip, np.uint8)}


gymnasium.register("pictured/Coin-v0", "pictured_coins:PicturedCoin", max_episode_steps=3, disable_env_checker=True)
