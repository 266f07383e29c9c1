"""A check that engine and learner have the same policy: it compares their log-probabilities of the same tokens.

It does not depend on how the weights are transferred to the engine.
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
"""A sufficient number of contexts for a comparison."""
_TOKENS = 16


def last_contexts(episodes: Sequence[Episode]) -> list[tuple[int, ...]]:
    """Return the contexts of the last replies of some episodes, spread evenly because neighbours share a task."""
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
    """Sample from the engine after a load, and compare the log-probabilities of engine and learner.

    Every process must call this with contexts of its own.

    Args:
        rollouts: The runner of the engine.
        learner: The learner whose weights the engine has just loaded.
        contexts: Contexts to sample from; `PROBES` are enough.
        ranks: The processes of the run.
        temperature: The temperature of the learner's log-probabilities.
        tolerance: The maximum allowed difference.
        seed: The sampling seed.

    Returns:
        The mean absolute difference in nats, over all tokens of all processes.

    Raises:
        LogprobMismatch: on all processes, when the difference exceeds the tolerance or is not a number.
        EngineGone: when the engine can't be recovered.
    """
    with ranks.errors_together():
        sampling = SamplingParams(temperature, _TOKENS, seed)
        sampled = rollouts.run(_sample(rollouts.engine, contexts, sampling), checked=True)
    gap = _gap(learner, sampled)
    # `gap > tolerance` would let NaN pass.
    if gap <= tolerance:
        return gap
    with ranks.errors_together():
        raise LogprobMismatch(
            f"After update {rollouts.engine.version}, the log-probabilities of engine and learner differ by {gap:.3g} "
            f"nats per token, and engine.tolerance allows {tolerance:g}: the engine doesn't sample from the policy "
            "that is trained. Either the weights did not arrive completely, or the engine computes in another "
            "precision than the learner; if that is intended, raise engine.tolerance above the difference and set "
            "algorithm.correction.level to token."
        )


def _contexts(episodes: Iterable[Episode]) -> Iterable[tuple[int, ...]]:
    for episode in episodes:
        if not episode.failed:
            last = next((s for s in reversed(trajectory(episode).segments) if any(s.loss_mask)), None)
            if last is not None:
                yield last.ids[: last.turns.index(max(last.turns))]


async def _sample(engine: Engine, contexts: Sequence[Sequence[int]], sampling: SamplingParams) -> list[Trajectory]:
    """Sample a reply to each context, with the engine's log-probabilities."""
    fitting = [
        replace(sampling, max_tokens=min(sampling.max_tokens, engine.max_context - len(context)))
        for context in contexts
    ]
    completions = await asyncio.gather(*map(engine.generate, contexts, fitting))
    return [
        single_reply_trajectory(tuple(context), completion.ids, completion.logprobs)
        for context, completion in zip(contexts, completions, strict=True)
    ]


def _gap(learner: Learner, sampled: Sequence[Trajectory]) -> float:
    """Return the mean absolute difference over the tokens of all processes."""
    batch = make_batch(sampled).to(learner.accelerator.device)
    gap_N = (learner.logprobs(batch) - batch.tokens.rollout_logprobs_N).abs()
    total, tokens = learner.total(torch.stack([gap_N.sum(), torch.ones_like(gap_N).sum()])).tolist()
    return total / tokens
