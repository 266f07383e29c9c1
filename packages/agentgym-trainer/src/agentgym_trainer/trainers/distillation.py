"""On-policy distillation in RL: an expert's labels, a teacher model, and what they add to updates."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
from agentgym_envs import Policy, text_env
from agentgym_envs.util.redaction import resolved
from agentgym_eval.policies.policies import Oracle, PolicyFactory, find_policy
from agentgym_eval.util.errors import UsageError

from agentgym_trainer.algorithms import AdvantageOutput
from agentgym_trainer.algorithms.distillation import with_teacher
from agentgym_trainer.algorithms.types import TokenBatch
from agentgym_trainer.config import RLConfig
from agentgym_trainer.distributed import Ranks
from agentgym_trainer.learner.learner import Learner
from agentgym_trainer.learner.loss_term import LossTerm
from agentgym_trainer.rollout.environments import OpenEnvironment
from agentgym_trainer.rollout.groups import EpisodeGroup
from agentgym_trainer.rollout.labels import count_labels
from agentgym_trainer.rollout.runner import RolloutRunner
from agentgym_trainer.tokens.chat import Chat
from agentgym_trainer.trainers.auxiliary_loss import label_term
from agentgym_trainer.trainers.setup import context_limit

ORACLE = "oracle"
"""The environment's expert as `distillation.expert`."""


@dataclass(frozen=True, slots=True)
class Distiller:
    """What distillation adds to the updates of a run; nothing if it isn't configured."""

    config: RLConfig
    worlds: Sequence[OpenEnvironment]
    learner: Learner
    chat: Chat

    def score(self, tokens: TokenBatch, batch: Any) -> TokenBatch:
        """Add the teacher's log-probabilities, if there is a teacher."""
        if not self.config.distillation.teacher:
            return tokens
        return tokens.with_logprobs(teacher_logprobs_N=self.learner.teacher_logprobs(batch))

    def advantages(self, output: AdvantageOutput, tokens: TokenBatch, step: int) -> AdvantageOutput:
        """Return the advantages of an update, from rewards and the teacher."""
        settings = self.config.distillation
        if not (settings.expert or settings.teacher):
            return output
        weight = settings.teacher_weight * self._decay(step)
        return with_teacher(
            output, tokens, self.learner.total, reward_weight=settings.reward_weight, teacher_weight=weight
        )

    def labels(self, groups: Sequence[EpisodeGroup], step: int) -> tuple[LossTerm | None, dict[str, Any]]:
        """Return the loss on the labels of this process's groups, and metrics over all processes: the numbers of
        `label/turns` with a label and of `label/errors` of the expert, and the share `label/agreement` of labels with
        the policy's action. None and no metrics without labels. All processes must call this.
        """
        settings = self.config.distillation
        weight = settings.label_weight * self._decay(step)
        if not settings.expert or not weight:
            return None, {}
        longest = context_limit(self.config, self.learner.policy).tokens
        term = label_term(groups, self.chat, self.learner, longest=longest, weight=weight)
        wrapped = {world.name: world.wrapped for world in self.worlds}
        counts = [count_labels(wrapped[group.episodes[0].env], group.usable) for group in groups]
        gathered = Ranks().gather(counts)
        turns, agreeing, errors = np.sum(gathered, axis=0).tolist() if gathered else (0, 0, 0)
        agreement = {"label/agreement": agreeing / turns} if turns else {}
        return term, {"label/weight": weight, "label/turns": turns, "label/errors": errors, **agreement}

    def _decay(self, step: int) -> float:
        return self.config.distillation.decay(step, self.config.steps)


def check_expert(config: RLConfig, worlds: Sequence[OpenEnvironment]) -> None:
    """Check that the policy that is to give labels exists, or that the environments' experts can give them.

    Raises:
        UsageError: if there is no such policy, an environment has no expert, or one that can't act in states that
            another policy has reached, or if the agent's reply format can't express its actions. The message names the
            policy or the environment.
    """
    spec = config.distillation.expert
    if spec not in ("", ORACLE):
        _find(spec)
    for world in worlds if spec == ORACLE else ():
        env = text_env(world.wrapped)
        if not env.has_oracle:
            raise UsageError(
                f"{world.name} has no expert, so its turns can't be labeled: give another policy as "
                "--distillation.expert, such as hf:PATH, or a --distillation.teacher."
            )
        if not env.oracle_replans:
            raise UsageError(
                "Labels need an expert that can act in any state, and that of "
                f"{world.name} follows a path that is computed at the start of an episode, or is on a server that "
                "doesn't tell. Give another policy as --distillation.expert, such as hf:PATH, or a "
                "--distillation.teacher."
            )
        (episode,) = world.play(Oracle(), [world.tasks.train[0]], seed=0, horizon=1)
        acts = [turn for turn in episode.turns if turn.kind == "act"]
        if episode.failed or not acts or acts[0].action is None:
            agent = world.wrapped.get_wrapper_attr("agent")
            raise UsageError(
                f"The expert of {world.name} can't reply as the agent {agent} in {episode.task_id}"
                f"{f' ({episode.error})' if episode.error else ''}, so it gives no labels: choose another "
                "--world.agent, or another --distillation.expert."
            )


@contextmanager
def open_expert(config: RLConfig, rollouts: RolloutRunner) -> Generator[Policy | None]:
    """Open the policy that gives labels while the context is open; None if it is the environment's expert or nobody.

    It replies greedily where it samples. An `openai:MODEL` is at OPENAI_BASE_URL, with the key OPENAI_API_KEY.

    Raises:
        UsageError: if there is no such policy, or it can only play environments of its own process.
    """
    spec = config.distillation.expert
    if spec in ("", ORACLE):
        yield None
        return
    expert = _find(spec)(temperature=0.0, seed=config.seed, max_tokens=config.generation.max_tokens)
    if expert.needs_env:
        raise UsageError(
            f"The policy {spec} reads the environment's state, which is played elsewhere, so it can't give labels: "
            "set --distillation.expert oracle for the environment's own expert, or a policy that replies to texts."
        )
    try:
        yield expert
    finally:
        if not rollouts.closed:
            rollouts.run(expert.close())


def _find(spec: str) -> PolicyFactory:
    """The factory of the policy that gives labels. Nothing is loaded."""
    names = ("OPENAI_BASE_URL", "OPENAI_API_KEY") if spec.startswith("openai:") else ()
    try:
        return find_policy(spec, environment={name: resolved(f"${{{name}}}") for name in names})
    except UsageError:
        raise
    except ValueError as error:  # a variable isn't set
        raise UsageError(f"The expert {spec} can't be asked: {error}") from error


def check_tokenizers(name: str, chat: Chat, teacher: Chat) -> None:
    """Check that a teacher assigns its log-probabilities to the same tokens as the policy.

    Args:
        name: Name of the teacher.
        chat: Tokenizer and template of the policy.
        teacher: Those of the teacher.

    Raises:
        UsageError: if any token has another id, or replies end with another token.
    """
    own, other = chat.tokenizer.get_vocab(), teacher.tokenizer.get_vocab()
    different = sorted(token for token in own.keys() | other.keys() if own.get(token) != other.get(token))
    if different or chat.end_id != teacher.end_id:
        why = (
            f"{len(different):,} tokens differ, such as {different[0]!r}"
            if different
            else "replies end with another token"
        )
        raise UsageError(
            f"The teacher {name} has another tokenizer than the policy: {why}. Choose a teacher with the policy's "
            f"tokenizer, or learn from the teacher's replies as text: --distillation.expert hf:{name}."
        )
