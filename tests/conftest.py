from __future__ import annotations

import sys
from pathlib import Path

HERE = Path(__file__).parent
# So that tests here find `documents`, and the endpoint that eval's tests ask.
sys.path[:0] = [str(HERE), str(HERE.parent / "packages/agentgym-eval/tests")]
