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

from agentgym_trainer.distributed import Ranks
from agentgym_trainer.engines.base import Engine, LogprobMismatch, SamplingParams
from agentgym_trainer.learner.learner import Learner
from agentgym_trainer.rollout.runner import RolloutRunner
from agentgym_trainer.tokens.batch import make_batch
from agentgym_trainer.tokens.trajectory import Trajectory, single_reply_trajectory, trajectory

PROBES = 8
"""Contexts that are enough for a comparison."""
_TOKENS = 16


def last_contexts(episodes: Sequence[Episode]) -> list[tuple[int, ...]]:
    """What stood before the last words of some episodes, taken from all over them: neighbours play the same task."""
    stride = max(1, len(episodes) // PROBES)
    spread = (episode for start in range(stride) for episode in episodes[start::stride])
    return list(islice(_contexts(spread), PROBES))


def check_logprobs(
    rollouts: RolloutRunner,
    learner: Learner,
    contexts: Sequence[Sequence[int]],
    *,
    ranks: Ranks,
    temperature: float,
    tolerance: float,
    seed: int,
) -> float:
    """Let the engine go on from these contexts and compare its log-probabilities with the learner's, after a load.

    Every process calls this, each with some contexts of its own.

    Args:
        rollouts: The engine that is asked.
        learner: Has just given it its weights.
        contexts: `PROBES` are enough.
        ranks: The processes of the run.
        temperature: The one that the learner takes log-probabilities at.
        tolerance: The most that they may be apart.
        seed: What is sampled hangs on it.

    Returns:
        How far they are apart, in nats on average over all tokens of all processes.

    Raises:
        Disagreement: on all processes, when that is above the tolerance or not a number.
        EngineGone: when the engine can't be brought back.
    """
    with ranks.errors_together():
        said = rollouts.run(_go_on(rollouts.engine, contexts, SamplingParams(temperature, _TOKENS, seed)), checked=True)
    gap = _gap(learner, said)
    # Not the other way round, or a NaN would pass.
    if gap <= tolerance:
        return gap
    raise LogprobMismatch(
        f"After update {rollouts.engine.version} the engine's log-probabilities are {gap:.3g} nats a token away from "
        f"the learner's, and engine.tolerance allows {tolerance:g}: what it samples would not be what is trained. "
        "Either the weights did not reach it whole, or it computes in another precision than the learner; if that is "
        "meant, set engine.tolerance above it and algorithm.correction.level to token."
    )


def _contexts(episodes: Iterable[Episode]) -> Iterable[tuple[int, ...]]:
    for episode in episodes:
        if not episode.failed:
            last = next((s for s in reversed(trajectory(episode).segments) if any(s.loss_mask)), None)
            if last is not None:
                yield last.ids[: last.turns.index(max(last.turns))]


async def _go_on(engine: Engine, contexts: Sequence[Sequence[int]], sampling: SamplingParams) -> list[Trajectory]:
    """What the engine says next, with its log-probabilities."""
    fitting = [
        replace(sampling, max_tokens=min(sampling.max_tokens, engine.max_context - len(context)))
        for context in contexts
    ]
    completions = await asyncio.gather(*map(engine.generate, contexts, fitting))
    return [
        single_reply_trajectory(tuple(context), completion.ids, completion.logprobs)
        for context, completion in zip(contexts, completions, strict=True)
    ]


def _gap(learner: Learner, said: Sequence[Trajectory]) -> float:
    """Mean absolute difference over the tokens of all processes."""
    batch = make_batch(said).to(learner.accelerator.device)
    apart_N = (learner.logprobs(batch) - batch.experience.rollout_logprobs_N).abs()
    apart, tokens = learner.total(torch.stack([apart_N.sum(), torch.ones_like(apart_N).sum()])).tolist()
    return apart / tokens
