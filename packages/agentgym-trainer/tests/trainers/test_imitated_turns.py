"""Tests of which turns of demonstrations are imitated: the expert's own actions, and random ones only on request."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from agentgym_envs import Episode, EpisodeSpec, play_many
from agentgym_envs.agents.formats import Bare
from agentgym_eval.policies.policies import Oracle
from agentgym_trainer.config import WarmStart
from agentgym_trainer.distributed import Ranks
from agentgym_trainer.tokens.chat import Chat
from agentgym_trainer.tokens.encode import encode
from agentgym_trainer.tokens.trajectory import Trimming, trajectory
from agentgym_trainer.trainers.sft import IGNORED, encode_examples
from agentgym_trainer.trainers.training_data import imitated
from agentgym_trainer.trainers.warm_start import encode_demonstrations, warm_start
from coin_world import Coin
from toy_learner import make_learner, sft_flags, train_cli


@pytest.fixture(scope="module")
def noisy() -> list[Episode]:
    """Episodes of an expert half of whose actions are random."""
    specs = [EpisodeSpec(f"coin/train/{i}", seed=0) for i in range(16)]
    return list(play_many(Bare(Coin()), Oracle(0.5), specs))


def test_exactly_the_random_actions_are_masked(chat: Chat, noisy: list[Episode]) -> None:
    shares = {turn.reply.noise for episode in noisy for turn in episode.turns}
    assert shares == {False, True}
    for before, after in zip(noisy, imitated(noisy, noise=False), strict=True):
        assert [turn.loss for turn in after.turns] == [not turn.reply.noise for turn in before.turns]
        (whole,), (masked,) = (trajectory(encode(chat, episode)).segments for episode in (before, after))
        assert masked.ids == whole.ids
        random_turns = {number for number, turn in enumerate(before.turns) if turn.reply.noise}
        expected = tuple(
            in_loss and turn not in random_turns for in_loss, turn in zip(whole.loss_mask, whole.turns, strict=True)
        )
        assert masked.loss_mask == expected
        # A random action is a complete reply in the context of what follows.
        assert Episode.from_json(after.to_json()) == after


def test_random_actions_are_imitated_on_request(noisy: list[Episode]) -> None:
    assert imitated(noisy, noise=True) == noisy


def test_labels_of_sft_leave_out_random_actions(chat: Chat, noisy: list[Episode]) -> None:
    examples = list(encode_examples(chat, imitated(noisy, noise=False), Trimming(10_000)))
    labels = sum(label == chat.end_id for example in examples for label in example.labels if label != IGNORED)
    assert labels == sum(not turn.reply.noise for episode in noisy for turn in episode.turns)


def test_the_warm_start_trains_on_unmasked_turns_only(
    new_model: Callable[..., Any], chat: Chat, noisy: list[Episode]
) -> None:
    learner = make_learner(new_model(), micro_tokens=10_000)
    trained: list[int] = []

    def hook(module: Any, inputs: tuple[Any, ...], outputs: Any) -> None:
        trained.extend(inputs[4].tolist())

    learner.actor.register_forward_hook(hook)
    masked = imitated(noisy, noise=False)
    encoded = encode_demonstrations(chat, masked, Trimming(10_000))
    list(warm_start(learner, encoded, epochs=1, batch=4, seed=0, ranks=Ranks()))
    assert trained.count(chat.end_id) == sum(turn.loss for episode in masked for turn in episode.turns)


def test_runs_with_nothing_to_imitate_are_rejected(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ValueError, match=r"set warm_start\.imitate_noise or a lower noise"):
        WarmStart(episodes=8, noise=1.0)
    flags = sft_flags(tmp_path / "run", "--data.noise", "1", "--data.keep", "all", "--data.no-imitate-noise")
    assert train_cli(flags) == 2
    assert "are random actions of a noisy expert, which data.imitate_noise would include" in capsys.readouterr().err
