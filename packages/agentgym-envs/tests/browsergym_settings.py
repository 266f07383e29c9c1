"""Settings of BrowserGym's environments that save time in tests, as far as its version has them."""

from __future__ import annotations

import inspect
from typing import Any

from browsergym.core.env import BrowserEnv  # pyright: ignore[reportMissingImports]

NO_DELAY: dict[str, Any] = (
    {"pre_observation_delay": 0.0} if "pre_observation_delay" in inspect.signature(BrowserEnv).parameters else {}
)
"""No pause before an observation, from BrowserGym 0.14 on."""
