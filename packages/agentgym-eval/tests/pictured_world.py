"""The counting environment with screenshots: as many colored squares as counted, each with a box."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from counting_world import Count
from screenshot_option import ScreenshotOption

ENV = "pictured_world:pictured/Count-v0"
WIDTH, HEIGHT, SIDE = 96, 48, 8
COLOR = (200, 30, 40)


class PicturedCount(ScreenshotOption, Count):
    def _seen(self) -> dict[str, Any]:
        image = np.full((HEIGHT, WIDTH, 3), 255, np.uint8)
        boxes = {str(square): [SIDE * square, 0, SIDE * square + SIDE, SIDE] for square in range(self._count)}
        for left, top, right, bottom in boxes.values():
            image[top:bottom, left:right] = COLOR
        return {"screenshot": image, "element_boxes": boxes}


gymnasium.register("pictured/Count-v0", "pictured_world:PicturedCount", max_episode_steps=20, disable_env_checker=True)
