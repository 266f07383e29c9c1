"""Why an unsuccessful episode failed: one cause for each, with the turn that decided.

A pure function of the recorded episode and, for two of the causes, of the expert's distance to the goal at each turn
(`agentgym_eval.runs.oracle_distances`). Successes have no cause, and neither have episodes that broke
(`Episode.failed`), since a fault of the environment is not a failure of the agent.

An episode of an agent that retries is explained by its last trial, in which all earlier ones had failed already.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import Literal, get_args

from agentgym_envs import Episode, Turn
from agentgym_envs.episodes.replay import without_turns_left

Kind = Literal[
    "gave_up",
    "wrong_answer",
    "format",
    "invalid_actions",
    "loop",
    "over_interaction",
    "moved_away",
    "token_budget",
    "turn_budget",
]
"""`gave_up`: the agent ended the episode without an attempt at an answer; `wrong_answer`: its last action ended the
episode without success; `format`: replies without an action; `invalid_actions`: actions that the environment rejected;
`loop`: actions repeated without effect; `over_interaction`: the goal was near and the agent went on; `moved_away`: it
ended further from the goal than it had been; `token_budget` and `turn_budget`: the budget ended the episode, and
nothing else explains it."""

KINDS: tuple[Kind, ...] = get_args(Kind)
"""All kinds, in display order: what the agent ended, procedural failures, failures that need the oracle, budgets."""
ORACLE_KINDS: frozenset[Kind] = frozenset({"over_interaction", "moved_away"})
"""Kinds that occur only with the expert's distances. They are parts of what is a budget without them."""
LABELS: Mapping[str, str] = {
    "gave_up": "gave up",
    "wrong_answer": "wrong answer",
    "format": "no action in replies",
    "invalid_actions": "invalid actions",
    "loop": "loop",
    "over_interaction": "over-interaction",
    "moved_away": "moved away from the goal",
    "token_budget": "token budget",
    "turn_budget": "turn budget",
}
"""Names of the kinds in reports and in the viewer."""

EpisodeKey = tuple[str, str, int]
"""Environment, task id and sample: what identifies an episode in a run."""
Distances = Sequence[int | None]
"""Number of actions that the expert needs to the goal before each turn of an episode and after its last one; None where
it doesn't reach the goal. Turns whose distance isn't known, since the replay deviated there, are missing at the end."""

_ANSWER = re.compile(r"<answer>(.*)</answer>|(?:stop|answer|finish|submit)\s*[\[(:](.*)", re.DOTALL)
_NO_ANSWER = re.compile(
    r"n/?a|none|null|unknown|no answer|(?:i )?give up|not (?:found|possible|available)|impossible|unanswerable"
    r"|report_infeasible\(.*"
    r"|(?:i )?(?:can ?not|can't|could ?n[o']t) (?:find|answer|determine|be (?:found|determined))\b.{0,80}"
    r"|(?:i )?(?:do not|don't) know\b.{0,80}"
)


@dataclass(frozen=True, slots=True)
class FailureCriteria:
    """Thresholds of `failure_cause`."""

    stall: int = 3
    """Number of turns without progress at the end of a trial that make a stall."""
    wasted: float = 0.5
    """Share of a trial's turns without progress from which they are the cause, wherever they occur."""
    near: int = 1
    """Distance to the goal, in the expert's actions, up to which the agent has what it needs: 1 is one action away."""
    away: int = 1
    """By how many of the expert's actions a trial ends further from the goal than it had been to count as moved
    away."""

    def __post_init__(self) -> None:
        if self.stall < 1 or self.near < 1 or self.away < 1 or not 0 < self.wasted <= 1:
            raise ValueError(f"stall, near and away are at least 1, and wasted is above 0 and at most 1; not {self}.")


@dataclass(frozen=True, slots=True)
class FailureCause:
    """Why an episode failed."""

    kind: Kind
    turn: int
    """Index in `Episode.turns` of the turn that decided; the number of turns for an episode without any."""
    detail: str
    """One sentence with the evidence."""


_DEFAULT = FailureCriteria()


def episode_key(episode: Episode) -> EpisodeKey:
    """Return what identifies the episode in its run."""
    return episode.env, episode.task_id, episode.sample


def failure_cause(
    episode: Episode, *, distances: Distances | None = None, criteria: FailureCriteria = _DEFAULT
) -> FailureCause | None:
    """Return the cause of an unsuccessful episode; None for a success, and for an episode that broke.

    The first of these that applies is the cause:

    1. `gave_up`, `wrong_answer`: the environment ended the episode (stop reason `terminated`). The cause is the action
       that did it; whether it says that there is no answer distinguishes the two.
    2. `format`, `invalid_actions`, `loop` (procedural failures): the last `stall` turns or more, or at least the share
       `wasted` of all turns, made no progress. A turn makes none if its reply has no action (`format`), if the
       environment rejected the action (`invalid_actions`), or if the same action was taken in the same state before,
       or got the same observation after the same one (`loop`). The most frequent of the three is the cause; of equally
       frequent ones, the first in this order. The first such turn of this kind in the stall, or in the trial, decides.
    3. `over_interaction`, with `distances` only: the expert was at most `near` actions from the goal, and the agent had
       more turns left than that. The first such turn decides.
    4. `moved_away`, with `distances` only: at the end the expert needs at least `away` more actions than at the best
       moment of the trial, or doesn't reach the goal any more. The turn at the last best moment decides, whose action
       led away.
    5. `token_budget`, `turn_budget`: the episode ended at a budget, and nothing of this explains why it didn't suffice.

    So distances only split up the budgets: counts of all other kinds are comparable with and without them.

    Args:
        episode: A recorded episode.
        distances: The expert's distances, if they are known.
        criteria: Thresholds.
    """
    if episode.success or episode.failed:
        return None
    if not episode.turns:
        return _at_budget(episode, 0)
    acts = _last_trial(episode)
    if episode.stop == "terminated":
        return _ended_by_agent(episode, acts)
    return (
        _procedural(episode, acts, criteria)
        or (_from_distances(acts, distances, criteria) if distances else None)
        or _at_budget(episode, len(episode.turns) - 1)
    )


def failure_causes(
    episodes: Sequence[Episode], distances: Mapping[EpisodeKey, Distances] | None = None
) -> list[FailureCause | None]:
    """Return the cause of each episode, in order; see `failure_cause`."""
    known = distances or {}
    return [failure_cause(episode, distances=known.get(episode_key(episode))) for episode in episodes]


def _last_trial(episode: Episode) -> list[int]:
    """Return the indices of the policy's actions in the last trial that has any, without a reply that was cut off."""
    acts = [
        at
        for at, turn in enumerate(episode.turns)
        if turn.kind == "act" and not turn.reply.expert and turn.reply.finish != "length"
    ]
    last = episode.turns[acts[-1]].trial if acts else 0
    return [at for at in acts if episode.turns[at].trial == last]


def _ended_by_agent(episode: Episode, acts: Sequence[int]) -> FailureCause:
    at = acts[-1] if acts else len(episode.turns) - 1
    action = (episode.turns[at].action or "").strip()
    answer = _ANSWER.fullmatch(action)
    given = " ".join(((answer[1] or answer[2] or "") if answer else action).split())
    empty = answer is not None and answer[1] is not None and not given  # unlike `stop []`, which says: done
    if empty or _NO_ANSWER.fullmatch(given.lower().replace("\u2019", "'").strip(" .!])\"'")):
        return FailureCause("gave_up", at, "The agent ended the episode without an answer.")
    return FailureCause("wrong_answer", at, "This action ended the episode without success.")


def _procedural(episode: Episode, acts: Sequence[int], criteria: FailureCriteria) -> FailureCause | None:
    marks = dict(zip(acts, unproductive(episode, acts), strict=True))
    stalled = list(takewhile(lambda at: marks[at], reversed(acts)))[::-1]
    if len(stalled) >= criteria.stall:
        return _most_frequent(marks, stalled, f"the last {len(stalled)} turns")
    wasted = [at for at in acts if marks[at]]
    if wasted and len(wasted) >= criteria.wasted * len(acts):
        return _most_frequent(marks, wasted, f"{len(wasted)} of {len(acts)} turns")
    return None


def _most_frequent(marks: Mapping[int, Kind | None], turns: Sequence[int], which: str) -> FailureCause:
    counts = Counter(marks[at] for at in turns)
    kind = max(_EVIDENCE, key=lambda each: counts[each])  # of equals, the first
    first = next(at for at in turns if marks[at] == kind)
    share = "" if counts[kind] == len(turns) else f", {counts[kind]} of them this way"
    return FailureCause(kind, first, f"No progress in {which}{share}: {_EVIDENCE[kind]}.")


_EVIDENCE: dict[Kind, str] = {
    "format": "replies have no action",
    "invalid_actions": "the environment rejected the actions",
    "loop": "the same actions were taken in the same situations before",
}
"""Procedural failures by precedence, with what the detail says."""


def unproductive(episode: Episode, turns: Sequence[int]) -> Iterator[Kind | None]:
    """Yield, for each of these turns of one trial, why it made no progress: `format`, `invalid_actions` or `loop`; None
    for a turn that may have made some.

    Args:
        episode: The episode.
        turns: Indices of turns with actions, ascending.
    """
    states, responses = set[tuple[str, str]](), set[tuple[str, str, str]]()
    for at in turns:
        turn = episode.turns[at]
        action = turn.reply.text if turn.action is None else turn.action
        state = turn.state_key, action
        response = _seen(turn), action, _next_observation(episode, at)
        repeated = state in states or response in responses
        states.add(state)
        responses.add(response)
        if turn.valid:
            yield "loop" if repeated else None
        else:
            yield "format" if turn.action is None else "invalid_actions"


def _seen(turn: Turn) -> str:
    return without_turns_left(turn.observation)


def _next_observation(episode: Episode, at: int) -> str:
    following = episode.turns[at + 1 : at + 2]
    return _seen(following[0]) if following else without_turns_left(episode.final_observation)


def _from_distances(acts: Sequence[int], distances: Distances, criteria: FailureCriteria) -> FailureCause | None:
    """Return `over_interaction` or `moved_away`, if the distances show one of them."""
    known = [at for at in acts if at + 1 < len(distances)]
    if len(known) < len(acts) or not acts:
        return None  # the replay deviated: what happened in the end isn't known
    for left, at in zip(range(len(acts), 0, -1), acts, strict=True):
        distance = distances[at]
        if distance is not None and distance <= criteria.near and left > distance:
            needed = f"{distance} action{'s' if distance != 1 else ''}"
            return FailureCause(
                "over_interaction", at, f"The goal was {needed} away, with {left} turns left, and was not reached."
            )
    return _moved_away(acts, distances, criteria)


def _moved_away(acts: Sequence[int], distances: Distances, criteria: FailureCriteria) -> FailureCause | None:
    before, end = {at: distances[at] for at in acts}, distances[acts[-1] + 1]
    reached = [distance for distance in (*before.values(), end) if distance is not None]
    if not reached or (end is not None and end < min(reached) + criteria.away):
        return None
    turn = max(at for at, distance in before.items() if distance == min(reached))
    now = "does not reach it any more" if end is None else f"needs {end} at the end"
    return FailureCause("moved_away", turn, f"The expert needed {min(reached)} actions to the goal here and {now}.")


def _at_budget(episode: Episode, turn: int) -> FailureCause:
    if episode.stop == "length":
        return FailureCause("token_budget", turn, "The episode ended at the token budget.")
    return FailureCause("turn_budget", turn, "The episode ended at the maximum number of turns.")
