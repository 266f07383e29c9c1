"""The mutual information of tasks and first replies, estimated by in-batch cross-scoring.

It detects template collapse (RAGEN-2, arXiv 2604.06268): replies keep their entropy but no longer depend on the prompt.
Entropy is measured within one prompt and doesn't show it. Therefore the policy also scores each reply after the prompts
of other tasks.

Deviation: one first reply per task is scored, with all its tokens; the authors also score later turns, and only the
reasoning.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from agentgym_trainer.distributed import Ranks
from agentgym_trainer.learner.learner import Learner
from agentgym_trainer.rollout.groups import EpisodeGroup
from agentgym_trainer.tokens.batch import make_batch
from agentgym_trainer.tokens.trajectory import own_turns, single_reply_trajectory

_SAME = 1e-3
"""Nats by which the same log-probability may differ from one forward pass to another."""


@dataclass(frozen=True, slots=True, order=True)
class FirstReply:
    """An agent's reply to the first prompt of a task."""

    env: str
    number: int
    """Number of the group in the step."""
    task: str
    prompt: tuple[int, ...]
    """All ids before the reply."""
    reply: tuple[int, ...]


def mutual_information(logp_RC: Tensor) -> tuple[float, float]:
    """Estimate the mutual information of replies and their prompts, under a uniform distribution over prompts.

    Args:
        logp_RC: Log-probability of each reply after each prompt, in nats, float64; its own prompt is on the diagonal.

    Returns:
        The estimate of I(prompt; reply) in nats, at most log C: the mean over replies of
        log p(reply | prompt) - log mean_c p(reply | prompt_c), with expectation 0 if replies don't depend on the
        prompt. And the retrieval accuracy: how often the own prompt is the likeliest, with ties counted fractionally;
        1/C by chance.
    """
    own_R, prompts = logp_RC.diagonal(), logp_RC.shape[1]
    nats = (own_R - (logp_RC.logsumexp(1) - math.log(prompts))).mean()
    likeliest_RC = logp_RC >= logp_RC.amax(1, keepdim=True) - _SAME
    return nats.item(), (likeliest_RC.diagonal() / likeliest_RC.sum(1)).mean().item()


def task_dependence(
    learner: Learner, ranks: Ranks, groups: Sequence[EpisodeGroup], *, tasks: int, max_context: int
) -> dict[str, float]:
    """Return `mutual_information` and `retrieval_accuracy` of the learner's current policy.

    They are computed over the tasks that all processes played. Only tasks of the same environment are compared; with
    several environments, the result is the mean over replies. Every process must call this.

    Args:
        learner: Scores `tasks` x `tasks` replies without a gradient.
        ranks: The processes, which share the work.
        groups: The groups that this process played, trained on or not.
        tasks: Maximum number of tasks to compare, the first of the step.
        max_context: Replies are truncated to the tokens that fit after the longest prompt.

    Returns:
        The two metrics; empty if no environment has two tasks with a reply.
    """
    chosen = _chosen(ranks.gather(_first_replies(groups)), tasks)
    pairs: list[tuple[int, int, int]] = []
    made: list[tuple[tuple[int, ...], tuple[int, ...]]] = []
    for env, replies in enumerate(chosen):
        space = max_context - max(len(each.prompt) for each in replies)
        if space > 0:
            pairs += [(env, r, c) for r in range(len(replies)) for c in range(len(replies))]
            made += [(prompt.prompt, reply.reply[:space]) for reply in replies for prompt in replies]
    batch = make_batch(
        [single_reply_trajectory(prompt, reply, (0.0,) * len(reply)) for prompt, reply in ranks.share(made)]
    )
    logp_N = learner.logprobs(batch).double().cpu()
    logp_X = logp_N.new_zeros(len(batch.episodes)).index_add(0, batch.tokens.episode_N, logp_N)
    scores = dict(ranks.gather(list(zip(ranks.share(pairs), logp_X.tolist(), strict=True))))
    found = [
        (*mutual_information(torch.tensor(square, dtype=torch.float64)), len(square))
        for env, replies in enumerate(chosen)
        if (env, 0, 0) in scores
        for square in [[[scores[env, r, c] for c in range(len(replies))] for r in range(len(replies))]]
    ]
    if not found:
        return {}
    replies = sum(count for *_, count in found)
    return {
        "mutual_information": sum(nats * count for nats, _, count in found) / replies,
        "retrieval_accuracy": sum(accuracy * count for _, accuracy, count in found) / replies,
    }


def _first_replies(groups: Sequence[EpisodeGroup]) -> list[FirstReply]:
    """Return one first reply per group, of its first episode that didn't fail and has one."""
    found: list[FirstReply] = []
    for group in groups:
        for episode in group.usable:
            sample = next((episode.turns[number].reply.sample for number in own_turns(episode)), None)
            if sample is not None and sample.ids:
                found.append(FirstReply(episode.env, group.number, episode.task_id, sample.prompt, sample.ids))
                break
    return found


def _chosen(found: Sequence[FirstReply], most: int) -> list[list[FirstReply]]:
    """Return the replies for the first tasks of the step, by environment, for environments with at least two tasks."""
    by_env: dict[str, dict[str, FirstReply]] = {}
    for each in sorted(found):
        by_env.setdefault(each.env, {}).setdefault(each.task, each)
    compared = [list(replies.values()) for replies in by_env.values() if len(replies) > 1]
    return [replies[: max(2, most // len(compared))] for replies in compared]
