"""Tests of supervised fine-tuning weighted by score, against an explicit sum."""

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
from agentgym_trainer.tokens.trajectory import ContextLimit, Trimming
from agentgym_trainer.trainers.sft import IGNORED, encode_examples, make_imitator
from agentgym_trainer.trainers.trl_run import TrainingSetup
from toy_learner import episode_with_samples, sft_flags, train_cli


def scored(score: float, *replies: str) -> Episode:
    unscored = episode_with_samples([None] * len(replies), [score, *[0.0] * (len(replies) - 1)])
    turns = zip(unscored.turns, replies, strict=True)
    return replace(unscored, turns=tuple(replace(turn, reply=Reply(text)) for turn, text in turns))


EPISODES = (scored(1.0, "heads", "tails"), scored(0.25, "tails and heads and tails"), scored(0.0, "edge"))


@pytest.fixture
def loss_of(chat: Chat, new_model: Callable[..., Any], tmp_path: Path) -> Callable[..., tuple[float, torch.Tensor]]:
    """A function that returns the loss of an update on all episodes, and its gradient."""

    def measure(episodes: tuple[Episode, ...], **settings: Any) -> tuple[float, torch.Tensor]:
        config = SFTConfig(batch=4, device="cpu", **settings)
        model = new_model().train()
        trainer = make_imitator(
            config,
            RunFolder(tmp_path),
            TrainingSetup(model, chat, episodes),
            list(encode_examples(chat, episodes, Trimming(ContextLimit(512)))),
        )
        batches = list(trainer.get_train_dataloader())
        labels = sum((batch["labels"] != IGNORED).sum() for batch in batches)
        losses = [trainer.compute_loss(model, dict(batch), num_items_in_batch=labels) for batch in batches]
        total = torch.stack(losses).sum()
        total.backward()
        return total.item(), torch.cat([p.grad.flatten() for p in model.parameters()])

    return measure


def test_episodes_are_weighted_by_their_score(
    chat: Chat, new_model: Callable[..., Any], loss_of: Callable[..., tuple[float, torch.Tensor]]
) -> None:
    model, total, tokens = new_model(), 0.0, 0
    for scored_episode in EPISODES:
        (example,) = encode_examples(chat, [scored_episode], Trimming(ContextLimit(512)))
        with torch.no_grad():
            logp = model(torch.tensor([example.ids])).logits[0].log_softmax(-1)
        for i, label in enumerate(example.labels):
            if label != IGNORED:
                total -= (scored_episode.score or 0.0) * logp[i - 1, label].item()
                tokens += 1
    loss, gradient = loss_of(EPISODES, weighted=True)
    assert loss == pytest.approx(total / tokens, rel=1e-5)
    unbatched_loss, unbatched_gradient = loss_of(EPISODES, weighted=True, optimizer=Optimizer(micro_tokens=1))
    assert unbatched_loss == pytest.approx(loss, rel=1e-5)
    torch.testing.assert_close(unbatched_gradient, gradient, rtol=1e-4, atol=1e-6)
    assert loss_of(EPISODES)[0] > loss


def test_weights_change_nothing_if_all_episodes_succeeded(loss_of: Callable[..., tuple[float, torch.Tensor]]) -> None:
    perfect = tuple(replace(scored_episode, score=1.0) for scored_episode in EPISODES)
    (weighted_loss, weighted_gradient), (plain_loss, plain_gradient) = loss_of(perfect, weighted=True), loss_of(perfect)
    assert weighted_loss == pytest.approx(plain_loss, rel=1e-6)
    torch.testing.assert_close(weighted_gradient, plain_gradient)


def test_packing_cannot_be_combined_with_weights() -> None:
    with pytest.raises(ValueError, match="either packing or weighted"):
        SFTConfig(packing=True, weighted=True)


def test_data_without_any_weight_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = tmp_path / "failures.jsonl"
    data.write_text("".join(f"{scored(0.0, reply).to_json()}\n" for reply in ("heads", "tails")))
    run = sft_flags(tmp_path / "run", "--data.files", str(data), "--data.keep", "all", "--weighted")
    assert train_cli(run) == 2
    assert "The score of every episode is 0" in capsys.readouterr().err
