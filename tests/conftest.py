from __future__ import annotations

import sys
from pathlib import Path

HERE = Path(__file__).parent
# Makes `documents`, and the test helpers of eval and the trainer, importable.
PACKAGES = HERE.parent / "packages"
sys.path[:0] = [str(HERE), *(str(PACKAGES / name / "tests") for name in ("agentgym-eval", "agentgym-trainer"))]
