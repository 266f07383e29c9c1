"""Supervised fine-tuning weighed by score: what TRL's trainer makes of it, beside the sum written out."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from agentgym_envs import Episode, Reply
from agentgym_trainer.config import Optimizer, SFTConfig
from agentgym_trainer.run.folder import RunFolder
from agentgym_trainer.tokens.chat import Chat
from agentgym_trainer.tokens.trajectory import Trimming
from agentgym_trainer.trainers.sft import IGNORED, encode_examples, make_imitator
from agentgym_trainer.trainers.trl_run import TrainingSetup
from toy_learner import episode


def scored(score: float, *said: str) -> Episode:
    made = episode([None] * len(said), [score, *[0.0] * (len(said) - 1)])
    turns = zip(made.turns, said, strict=True)
    return replace(made, turns=tuple(replace(turn, reply=Reply(words)) for turn, words in turns))


EPISODES = (scored(1.0, "heads", "tails"), scored(0.25, "tails and heads and tails"), scored(0.0, "edge"))


@pytest.fixture
def loss_of(chat: Chat, new_model: Callable[..., Any], tmp_path: Path) -> Callable[..., tuple[float, torch.Tensor]]:
    """The loss of an update on all episodes, and its gradient, end to end."""

    def measure(episodes: tuple[Episode, ...], **settings: Any) -> tuple[float, torch.Tensor]:
        config = SFTConfig(batch=4, device="cpu", **settings)
        model = new_model().train()
        trainer = make_imitator(
            config,
            RunFolder(tmp_path),
            TrainingSetup(model, chat, episodes),
            list(encode_examples(chat, episodes, Trimming(512))),
        )
        batches = list(trainer.get_train_dataloader())
        said = sum((batch["labels"] != IGNORED).sum() for batch in batches)
        losses = [trainer.compute_loss(model, dict(batch), num_items_in_batch=said) for batch in batches]
        total = torch.stack(losses).sum()
        total.backward()
        return total.item(), torch.cat([p.grad.flatten() for p in model.parameters()])

    return measure


def test_each_episode_counts_for_as_much_as_it_scored(
    chat: Chat, new_model: Callable[..., Any], loss_of: Callable[..., tuple[float, torch.Tensor]]
) -> None:
    model, total, tokens = new_model(), 0.0, 0
    for found in EPISODES:
        (example,) = encode_examples(chat, [found], Trimming(512))
        with torch.no_grad():
            logp = model(torch.tensor([example.ids])).logits[0].log_softmax(-1)
        for i, label in enumerate(example.labels):
            if label != IGNORED:
                total -= (found.score or 0.0) * logp[i - 1, label].item()
                tokens += 1
    together, gradient = loss_of(EPISODES, weighted=True)
    assert together == pytest.approx(total / tokens, rel=1e-5)
    one_by_one, same = loss_of(EPISODES, weighted=True, optimizer=Optimizer(micro_tokens=1))
    assert one_by_one == pytest.approx(together, rel=1e-5)
    torch.testing.assert_close(same, gradient, rtol=1e-4, atol=1e-6)
    assert loss_of(EPISODES)[0] > together


def test_where_all_succeeded_weights_change_nothing(loss_of: Callable[..., tuple[float, torch.Tensor]]) -> None:
    perfect = tuple(replace(found, score=1.0) for found in EPISODES)
    (weighed, gradient), (plain, same) = loss_of(perfect, weighted=True), loss_of(perfect)
    assert weighed == pytest.approx(plain, rel=1e-6)
    torch.testing.assert_close(gradient, same)


def test_packed_rows_have_no_weights() -> None:
    with pytest.raises(ValueError, match="either packing or weighted"):
        SFTConfig(packing=True, weighted=True)
