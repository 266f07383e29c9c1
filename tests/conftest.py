from __future__ import annotations

import sys
from pathlib import Path

HERE = Path(__file__).parent
# So that tests here find `documents`, the endpoint that eval's tests ask, and the small runs of the trainer's.
PACKAGES = HERE.parent / "packages"
sys.path[:0] = [str(HERE), *(str(PACKAGES / name / "tests") for name in ("agentgym-eval", "agentgym-trainer"))]
