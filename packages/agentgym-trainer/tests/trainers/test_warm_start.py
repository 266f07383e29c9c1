"""Tests of the warm start by imitation of expert episodes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import pytest
from agentgym_envs import Episode, EpisodeSpec, play_many
from agentgym_envs.agents.formats import Bare
from agentgym_eval.policies.policies import Oracle
from agentgym_eval.util.errors import UsageError
from agentgym_trainer.distributed import Ranks
from agentgym_trainer.learner.learner import Learner
from agentgym_trainer.tokens.batch import make_batch
from agentgym_trainer.tokens.chat import Chat
from agentgym_trainer.tokens.encode import encode
from agentgym_trainer.tokens.trajectory import ContextLimit, Trimming, trajectory
from agentgym_trainer.trainers.warm_start import encode_demonstrations, warm_start
from coin_world import Coin
from toy_learner import make_learner


@pytest.fixture(scope="module")
def demonstrations() -> list[Episode]:
    specs = [EpisodeSpec(f"coin/train/{i}", seed=0) for i in range(8)]
    return list(play_many(Bare(Coin()), Oracle(), specs))


def imitate(
    student: Learner, chat: Chat, episodes: Sequence[Episode], *, batch: int, epochs: int = 1, seed: int = 0
) -> Iterator[dict[str, float]]:
    encoded = encode_demonstrations(chat, episodes, Trimming(ContextLimit(10_000)))
    return warm_start(student, encoded, epochs=epochs, batch=batch, seed=seed, ranks=Ranks())


def test_only_completion_tokens_are_imitated(
    new_model: Callable[..., Any], chat: Chat, demonstrations: list[Episode]
) -> None:
    student = make_learner(new_model(), lr=1e-3, micro_tokens=100)
    trained: list[tuple[int, int]] = []
    gradients: list[float] = []

    def hook(module: Any, inputs: tuple[Any, ...], outputs: Any) -> None:
        _, position_T, _, before_M, target_M, _ = inputs
        trained.extend(zip((position_T[before_M] + 1).tolist(), target_M.tolist(), strict=True))
        outputs.logprobs_M.register_hook(lambda gradient: gradients.extend(gradient.tolist()))

    student.actor.register_forward_hook(hook)
    list(imitate(student, chat, demonstrations[:3], batch=8))
    expected: list[tuple[int, int]] = []
    for episode in demonstrations[:3]:
        (segment,) = trajectory(encode(chat, episode)).segments
        expected += [
            (t, i) for t, (i, in_loss) in enumerate(zip(segment.ids, segment.loss_mask, strict=True)) if in_loss
        ]
    assert sorted(trained) == sorted(expected)
    assert gradients == [pytest.approx(-1 / len(expected))] * len(expected)
    replies = sum(len(episode.turns) for episode in demonstrations[:3])
    assert sum(i == chat.end_id for _, i in trained) == replies


def test_imitation_lowers_the_loss(new_model: Callable[..., Any], chat: Chat, demonstrations: list[Episode]) -> None:
    student = make_learner(new_model(), lr=1e-2, micro_tokens=10_000)
    losses = [metrics["nll"] for metrics in imitate(student, chat, demonstrations, epochs=8, batch=4)]
    assert len(losses) == 8 * 2
    assert losses[-1] < 0.3 * losses[0]


def test_failed_demonstrations_are_skipped_and_the_seed_sets_the_order(
    new_model: Callable[..., Any], chat: Chat, demonstrations: list[Episode]
) -> None:
    broken = replace(demonstrations[0], stop="failed", score=None, success=None, error="it broke")

    def losses(episodes: list[Episode], seed: int) -> list[float]:
        student = make_learner(new_model(), micro_tokens=10_000)
        return [metrics["loss"] for metrics in imitate(student, chat, episodes, batch=3, seed=seed)]

    assert losses([*demonstrations[1:], broken], 0) == losses(demonstrations[1:], 0) != losses(demonstrations[1:], 1)


def test_turns_beyond_the_context_are_not_imitated(chat: Chat, demonstrations: list[Episode]) -> None:
    whole = encode_demonstrations(chat, demonstrations, Trimming(ContextLimit(10_000)))
    longest = max(each.tokens for each in whole) - 1
    trimming = Trimming(ContextLimit(longest))
    kept = encode_demonstrations(chat, demonstrations, trimming)
    assert trimming.lost > 0
    assert max(each.tokens for each in kept) <= longest
    with pytest.raises(UsageError, match=r"The 8 demonstrations .* 3 tokens: raise it"):
        encode_demonstrations(chat, demonstrations, Trimming(ContextLimit(3)))
    random = [replace(each, turns=tuple(replace(turn, loss=False) for turn in each.turns)) for each in demonstrations]
    with pytest.raises(UsageError, match="all of their actions are random"):
        encode_demonstrations(chat, random, Trimming(ContextLimit(10_000)))
    failed = [replace(each, stop="failed", score=None, success=None, error="it broke") for each in demonstrations]
    with pytest.raises(
        UsageError, match=r"The 8 demonstrations contain nothing to train on; all of them failed.*broke"
    ):
        encode_demonstrations(chat, failed, Trimming(ContextLimit(10_000)))
    assert encode_demonstrations(chat, [], Trimming(ContextLimit(10_000))) == []


def test_batches_contain_complete_demonstrations(chat: Chat, demonstrations: list[Episode]) -> None:
    batch = make_batch([trajectory(encode(chat, e)) for e in demonstrations])
    texts = [chat.tokenizer.decode(ids.tolist()) for ids in batch.ids_S.split(batch.lengths)]
    for text, episode in zip(texts, demonstrations, strict=True):
        expected = f"<|im_start|>system\n{episode.instructions}<|im_end|>\n"
        for turn in episode.turns:
            expected += (
                f"<|im_start|>user\n{turn.observation}<|im_end|>\n<|im_start|>assistant\n{turn.reply.text}<|im_end|>\n"
            )
        assert text == expected.removesuffix("\n")
