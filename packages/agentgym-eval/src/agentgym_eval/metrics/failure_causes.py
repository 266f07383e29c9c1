"""Why an unsuccessful episode failed: one cause for each, with the turn that decided.

A pure function of the recorded episode and, for two of the causes, of the expert's distance to the goal at each turn
(`agentgym_eval.runs.oracle_distances`). Successes have no cause, and neither have episodes that broke
(`Episode.failed`), since a fault of the environment is not a failure of the agent.

An episode of an agent that retries is explained by its last trial, in which all earlier ones had failed already.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import Literal, get_args

from agentgym_envs import Episode, Turn
from agentgym_envs.episodes.replay import without_turns_left

Kind = Literal[
    "gave_up",
    "wrong_answer",
    "wrong_final_action",
    "format",
    "invalid_actions",
    "loop",
    "over_interaction",
    "moved_away",
    "token_budget",
    "turn_budget",
]
"""`gave_up`: the agent ended the episode without an attempt at an answer; `wrong_answer`: it ended it with an answer in
words that is wrong; `wrong_final_action`: another action of it, such as a click, ended the episode without success;
`format`: replies without an action; `invalid_actions`: actions that the environment rejected; `loop`: actions repeated
without effect; `over_interaction`: the goal was near and the agent went on; `moved_away`: the goal was in reach and the
agent got away from it; `token_budget` and `turn_budget`: the budget ended the episode, and nothing else explains
it."""

KINDS: tuple[Kind, ...] = get_args(Kind)
"""All kinds, in display order: what the agent ended, procedural failures, failures that need the oracle, budgets."""
ORACLE_KINDS: frozenset[Kind] = frozenset({"over_interaction", "moved_away"})
"""Kinds that occur only with the expert's distances. They are parts of what is a budget without them."""
LABELS: Mapping[str, str] = {
    "gave_up": "gave up",
    "wrong_answer": "wrong answer",
    "wrong_final_action": "wrong final action",
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

_ANSWER = re.compile(
    r"(?:.*?)<answer>(?P<tagged>.*)</answer>\s*|(?:stop|answer|finish|submit|send_msg_to_user)\s*[\[(:](?P<given>.*)"
    r"|.*\\boxed\{(?P<boxed>.*)\}.*",
    re.DOTALL,
)
"""Actions that answer in words, as environments and scaffolds write them."""
_NO_ANSWER = re.compile(
    r"n/?a|none|null|unknown|no answer|(?:i )?give up|not (?:found|possible|available)|impossible|unanswerable"
    r"|report_infeasible\(.*"
    r"|(?:i )?(?:can ?not|can't|could ?n[o']t) (?:find|answer|determine|be (?:found|determined))\b.{0,80}"
    r"|(?:i )?(?:do not|don't) know\b.{0,80}"
)
_AROUND = " .!])\"'"
"""What is around an answer in an action."""


@dataclass(frozen=True, slots=True)
class FailureCriteria:
    """Thresholds of `failure_cause`."""

    stall: int = 3
    """Number of turns without progress at the end of a trial that make a stall."""
    wasted: float = 0.5
    """Share of a trial's turns without progress from which they are the cause, wherever they occur."""
    near: int = 1
    """Distance to the goal, in the expert's actions, up to which the agent has what it needs: 1 is one action away."""
    away: int = 3
    """Number of turns at the end of a trial after its moment nearest to the goal from which it counts as moved away."""

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

    1. `gave_up`, `wrong_answer`, `wrong_final_action`: the environment ended the episode (stop reason `terminated`).
       The cause is the action that did it: one that says that there is no answer, one that answers in words, as in
       `<answer>…</answer>` or `stop [...]`, or any other.
    2. `format`, `invalid_actions`, `loop` (procedural failures): the last `stall` turns or more, or at least the share
       `wasted` of all turns, made no progress. A turn makes none if its reply has no action (`format`), if the
       environment rejected the action (`invalid_actions`), or if the same action was taken in the same state before,
       or got the same observation after the same one (`loop`). The most frequent of the three is the cause; of equally
       frequent ones, the first in this order. The first such turn of this kind in the stall, or in the trial, decides.
    3. `over_interaction`, with `distances` only: the expert was at most `near` actions from the goal, and the agent had
       more turns left than that. The first such turn decides.
    4. `moved_away`, with `distances` only: at the moment nearest to the goal, the last one if there are several, the
       agent had as many turns left as the expert needs actions or more, and it was further away in all of the at least
       `away` turns after it, or the expert doesn't reach the goal any more at the end. The turn at that moment decides,
       whose action led away.
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


def without_oracle(kind: Kind, stop: str) -> Kind:
    """Return the cause that an episode has if its distances aren't known.

    Args:
        kind: Its cause with distances.
        stop: Its stop reason.
    """
    if kind not in ORACLE_KINDS:
        return kind
    return "token_budget" if stop == "length" else "turn_budget"


def all_measured(runs: Iterable[tuple[Collection[EpisodeKey], Mapping[EpisodeKey, Distances]]]) -> bool:
    """Return whether the distances in all runs are known, without which causes that need them aren't comparable: each
    unsuccessful episode was replayed, and in each run with such episodes at least one as recorded.

    Args:
        runs: The unsuccessful episodes of each run, and the distances that are known.
    """
    found = ([known.get(key) for key in failures] for failures, known in runs)
    return all(not each or (None not in each and any(each)) for each in found)


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
    given = " ".join((next(filter(None, answer.groups()), "") if answer else action).split()).strip(_AROUND)
    empty = answer is not None and answer["tagged"] is not None and not given  # unlike `stop []`, which says: done
    if empty or _NO_ANSWER.fullmatch(given.lower().replace("\u2019", "'")):
        return FailureCause("gave_up", at, "The agent ended the episode without an answer.")
    if answer and given:
        return FailureCause("wrong_answer", at, "This answer ended the episode without success.")
    return FailureCause("wrong_final_action", at, "This action ended the episode without success.")


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
            detail = f"The goal was {_actions(distance)} away, with {left} turns left, and was not reached."
            return FailureCause("over_interaction", at, detail)
    return _moved_away(acts, distances, criteria)


def _moved_away(acts: Sequence[int], distances: Distances, criteria: FailureCriteria) -> FailureCause | None:
    reached = [(distance, -at) for at in acts if (distance := distances[at]) is not None]
    if not reached:
        return None
    nearest, turn = min(reached)[0], -min(reached)[1]
    left, end = sum(at >= turn for at in acts), distances[acts[-1] + 1]
    further = end is None or (end > nearest and left >= criteria.away)
    if not further or left < nearest:
        return None  # it came nearer until the end, or there were too few turns anyway
    now = "does not reach it any more" if end is None else f"needs {end}"
    return FailureCause(
        "moved_away",
        turn,
        f"The expert needed {_actions(nearest)} to the goal here, with {left} turns left, and {now} at the end.",
    )


def _actions(number: int) -> str:
    return f"{number} action{'s' if number != 1 else ''}"


def _at_budget(episode: Episode, turn: int) -> FailureCause:
    if episode.stop == "length":
        return FailureCause("token_budget", turn, "The episode ended at the token budget.")
    return FailureCause("turn_budget", turn, "The episode ended at the maximum number of turns.")
