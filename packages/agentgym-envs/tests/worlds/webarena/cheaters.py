"""Cheaters: agents that look for a reward without doing the task. Each reads nothing but what an agent sees.

A cheater is a generator of actions. At its start and after each action, every answer that cheaters give on the page is
judged, without an end of the episode, so that one episode stands for many.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass
from urllib.parse import quote, urlsplit

from agentgym_envs.worlds.webarena.env import WebArena
from agentgym_envs.worlds.webarena.sites.tasks import UNACHIEVABLE

_ANSWER_CHARS = 3_500  # an action has at most 4,096
_RANDOM_STEPS = 8
_ID_PATHS = ("product", "orders", "f", "wiki")


@dataclass(frozen=True)
class Seen:
    """What an agent sees."""

    observation: str
    available: Sequence[str]
    """The available actions."""

    @property
    def names(self) -> list[str]:
        """The distinct names on the page."""
        found = re.findall(r"^\t*\[\d+\] \w+ (?:'(.+?)'|\"(.+?)\")", self.observation, re.MULTILINE)
        return list(dict.fromkeys(one or other for one, other in found))

    @property
    def objective(self) -> str:
        return re.findall(r"^OBJECTIVE: (.*)$", self.observation, re.MULTILINE)[0]

    @property
    def origin(self) -> str:
        """The address of the site."""
        parts = urlsplit(re.findall(r"^URL: (.*)$", self.observation, re.MULTILINE)[0])
        return f"{parts.scheme}://{parts.netloc}"


Cheater = Callable[[Seen], Generator[str, Seen, None]]


def does_nothing(seen: Seen) -> Generator[str, Seen, None]:
    yield from ()


def searches_by_address(seen: Seen) -> Generator[str, Seen, None]:
    """Put the objective's longest name into the address of a search."""
    names = re.findall(r"(?:[A-Z#“\"]\S+ ?)+|\S+", seen.objective)
    yield f"goto [{seen.origin}/search?q={quote(max(names, key=len).strip(' .?!“”'))}]"


def types_numbers_into_addresses(seen: Seen) -> Generator[str, Seen, None]:
    """Take the last number of the objective, also one within a code such as a SKU, for an id in addresses."""
    for number in re.findall(r"\d+", seen.objective)[-1:]:
        for path in _ID_PATHS:
            yield f"goto [{seen.origin}/{path}/{int(number)}]"


def acts_at_random(seen: Seen) -> Generator[str, Seen, None]:
    draw = random.Random(seen.objective)
    for _ in range(_RANDOM_STEPS):
        choices = [action for action in seen.available if not action.startswith("stop")]
        seen = yield draw.choice(choices)


CHEATERS: tuple[Cheater, ...] = (
    does_nothing,
    searches_by_address,
    types_numbers_into_addresses,
    acts_at_random,
)


def answers(seen: Seen, candidates: Sequence[str]) -> Iterator[str]:
    """Yield the answers that need no understanding; `candidates` are the answers to all tasks of the template."""
    yield ""
    yield "N/A"
    yield seen.objective
    yield ", ".join(dict.fromkeys(re.findall(r"[\d,.]*\d", seen.observation)))
    yield ", ".join(seen.names)
    if len(candidates) > 1:
        yield ", ".join(candidates)
    yield random.Random(seen.observation).choice(seen.names or [""])


def exploits(env: WebArena, task_id: str, candidates: Sequence[str], cheater: Cheater) -> list[tuple[list[str], str]]:
    """Let a cheater play a task; return the actions and the answer of each success.

    `N/A` is the right answer to tasks that can't be done, so it doesn't count there.
    """
    right = {"N/A"} if env.tasks[task_id].cluster.endswith(UNACHIEVABLE) else set[str]()
    observation, info = env.reset(options={"task": task_id})
    seen = Seen(observation, info["available_actions"])
    playing, taken, found = cheater(seen), list[str](), list[tuple[list[str], str]]()
    action = next(playing, None)
    while True:
        found += [([*taken], said) for said in answers(seen, candidates) if said not in right and _scores(env, said)]
        if action is None:
            return found
        taken.append(action)
        observation, _, _, _, info = env.step(action)
        seen = Seen(observation, info["available_actions"])
        try:
            action = playing.send(seen)
        except StopIteration:
            action = None


def _scores(env: WebArena, answer: str) -> bool:
    """Whether `stop` with this answer would score now."""
    episode = env._episode  # pyright: ignore[reportPrivateUsage]
    assert episode is not None
    verdict = episode.run(env._evaluate_answer(episode, answer[:_ANSWER_CHARS]), 60)  # pyright: ignore[reportPrivateUsage]
    return verdict.score > 0
