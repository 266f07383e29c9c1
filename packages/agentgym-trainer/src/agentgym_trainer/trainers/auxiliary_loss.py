"""The auxiliary loss of reinforcement learning: SFT on demonstrations."""

from __future__ import annotations

from agentgym_trainer.algorithms import Imitation
from agentgym_trainer.learner.learner import Learner
from agentgym_trainer.learner.loss_term import LossTerm
from agentgym_trainer.tokens.batch import make_batch
from agentgym_trainer.tokens.demonstrations import Demonstrations


def sft_term(demonstrations: Demonstrations | None, learner: Learner, step: int, weight: float) -> LossTerm | None:
    """Return the SFT loss on the demonstrations of a step, with this coefficient; None without demonstrations."""
    if demonstrations is None:
        return None
    own, algorithm = demonstrations.of_step(step), Imitation()
    batch = make_batch([trajectory for _, trajectory in own])
    tokens = learner.compute_logprobs(batch, algorithm)
    advantages = algorithm.compute_advantages(tokens, learner.total)
    places = [place for place, _ in own]
    return LossTerm(batch, tokens, advantages, algorithm, places=places, weight=weight, name="sft/")
