"""Whether the engine samples from what the learner trains: both say how likely the same tokens are, and are compared.

Knows nothing of how weights come to an engine, only that they should be there.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import islice

import torch
from agentgym_envs import Episode

from agentgym_trainer.batch import make_batch
from agentgym_trainer.engines import Engine, Sampling
from agentgym_trainer.learner import Learner
from agentgym_trainer.ranks import Ranks
from agentgym_trainer.rollout import Rollouts
from agentgym_trainer.trajectory import Segment, Trajectory, trajectory

_CONTEXTS = 8
_TOKENS = 16


class Disagreement(RuntimeError):
    """The engine's log-probabilities are not the learner's: what is sampled would not be what is trained."""


def check_agreement(
    rollouts: Rollouts,
    learner: Learner,
    episodes: Sequence[Episode],
    *,
    ranks: Ranks,
    temperature: float,
    tolerance: float,
    seed: int,
) -> float | None:
    """Let the engine go on from some contexts of these episodes and compare log-probabilities, right after a load.

    Every process calls this, with the episodes that it has.

    Args:
        rollouts: The engine that is asked.
        learner: Has just given it its weights.
        episodes: Where the contexts come from; a few are enough.
        ranks: The processes of the run.
        temperature: The one that the learner takes log-probabilities at.
        tolerance: The most that they may be apart, in nats on average over all tokens of all processes.
        seed: What is sampled hangs on it.

    Returns:
        How far they are apart; None where no process has an episode in which something was said.

    Raises:
        Disagreement: on all processes, when they are further apart, or one of them isn't a number.
        EngineGone: when the engine can't be brought back.
    """
    contexts = list(islice(_contexts(_spread(episodes)), _CONTEXTS))
    sampling = Sampling(temperature, _TOKENS, seed)
    with ranks.together():
        said = rollouts.run(_go_on(rollouts.engine, contexts, sampling))
    gap = _gap(learner, said)
    # Not the other way round, or a NaN would pass.
    if gap is None or gap <= tolerance:
        return gap
    raise Disagreement(
        f"After update {rollouts.engine.version} the engine's log-probabilities are {gap:.3g} nats a token away from "
        f"the learner's, and engine.tolerance allows {tolerance:g}: what it samples would not be what is trained. "
        "Either the weights did not reach it whole, or it computes in another precision than the learner; if that is "
        "meant, set engine.tolerance above it and algorithm.correction.level to token."
    )


def _spread(episodes: Sequence[Episode]) -> Iterable[Episode]:
    """The episodes in an order whose beginning comes from all over them: neighbours play the same task."""
    stride = max(1, len(episodes) // _CONTEXTS)
    return (episode for start in range(stride) for episode in episodes[start::stride])


def _contexts(episodes: Iterable[Episode]) -> Iterable[tuple[int, ...]]:
    """What stood before the last words of each episode."""
    for episode in episodes:
        if not episode.failed:
            last = next((s for s in reversed(trajectory(episode).segments) if any(s.said)), None)
            if last is not None:
                yield last.ids[: last.turns.index(max(last.turns))]


async def _go_on(engine: Engine, contexts: Sequence[tuple[int, ...]], sampling: Sampling) -> list[Trajectory]:
    """What the engine says next, with its log-probabilities."""
    fitting = [
        replace(sampling, max_tokens=min(sampling.max_tokens, engine.max_context - len(context)))
        for context in contexts
    ]
    completions = await asyncio.gather(*map(engine.generate, contexts, fitting))
    return [
        _reply(context, completion.ids, completion.logprobs)
        for context, completion in zip(contexts, completions, strict=True)
    ]


def _reply(context: tuple[int, ...], ids: tuple[int, ...], logprobs: tuple[float, ...]) -> Trajectory:
    seen, new = len(context), len(ids)
    segment = Segment(
        ids=context + ids,
        said=(False,) * seen + (True,) * new,
        logprobs=(0.0,) * seen + logprobs,
        turns=(-1,) * seen + (0,) * new,
    )
    return Trajectory((segment,), rewards=(0.0,), states=("",), group="probe")


def _gap(learner: Learner, said: Sequence[Trajectory]) -> float | None:
    """Mean absolute difference over the tokens of all processes; None when there are none."""
    batch = make_batch(said).to(learner.accelerator.device)
    apart_N = (learner.logprobs(batch) - batch.experience.sampled_N).abs()
    parts = torch.stack([apart_N.double().sum(), apart_N.new_tensor(len(apart_N), dtype=torch.float64)])
    apart, tokens = learner.total(parts).tolist()
    return apart / tokens if tokens else None
