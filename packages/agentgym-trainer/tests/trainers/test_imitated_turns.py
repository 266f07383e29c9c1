"""Tests of which turns of demonstrations are imitated: the expert's own actions, and random ones only on request."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from agentgym_envs import Episode, EpisodeSpec, play_many
from agentgym_envs.agents.formats import Bare
from agentgym_eval.policies.policies import Oracle
from agentgym_eval.util.errors import UsageError
from agentgym_trainer.config import AgentEvolConfig, DataConfig, SFTConfig, WarmStart
from agentgym_trainer.curriculum.state import Reached
from agentgym_trainer.distributed import Ranks
from agentgym_trainer.run.console import RunConsole
from agentgym_trainer.run.folder import RunFolder
from agentgym_trainer.stopping import Stopping
from agentgym_trainer.tokens.chat import Chat
from agentgym_trainer.tokens.demonstrations import demonstration
from agentgym_trainer.tokens.encode import encode
from agentgym_trainer.tokens.trajectory import ContextLimit, Trimming, trajectory
from agentgym_trainer.trainers import sft
from agentgym_trainer.trainers.agent_evol import Evolution
from agentgym_trainer.trainers.renaming import rename
from agentgym_trainer.trainers.sft import IGNORED, encode_examples
from agentgym_trainer.trainers.training_data import exclude_turns, imitated
from agentgym_trainer.trainers.warm_start import encode_demonstrations, warm_start
from coin_world import Coin
from rich.console import Console
from toy_learner import coin_flags, make_learner, sft_flags, train_cli

SPECS = [EpisodeSpec(f"coin/train/{i}", seed=0) for i in range(16)]


@pytest.fixture(scope="module")
def noisy() -> list[Episode]:
    """Episodes of an expert half of whose actions are random."""
    return list(play_many(Bare(Coin()), Oracle(0.5), SPECS))


@pytest.fixture(scope="module")
def labeled() -> list[Episode]:
    """The same episodes, with labels."""
    return list(play_many(Bare(Coin()), Oracle(0.5, labels=True), SPECS))


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
    examples = list(encode_examples(chat, imitated(noisy, noise=False), Trimming(ContextLimit(10_000))))
    labels = sum(label == chat.end_id for example in examples for label in example.labels if label != IGNORED)
    assert labels == sum(not turn.reply.noise for episode in noisy for turn in episode.turns)


def test_noisy_experts_label_exactly_their_random_actions(noisy: list[Episode], labeled: list[Episode]) -> None:
    # Labels change nothing that is played.
    assert [each.turns for each in imitated(labeled, noise=True)] == [each.turns for each in noisy]
    for episode in labeled:
        env = Coin()
        env.reset(options={"task": episode.task_id})
        for turn in episode.turns:
            assert turn.reply.label == (env.oracle() if turn.reply.noise else None)
            env.step(turn.reply.text)
    with pytest.raises(UsageError, match="None of the 16 episodes has labels"):
        imitated(noisy, noise=False, labels=True)


def test_labels_are_trained_on_in_the_context_of_the_random_action(chat: Chat, labeled: list[Episode]) -> None:
    for before, episode in zip(labeled, imitated(labeled, noise=False, labels=True), strict=True):
        (played,) = trajectory(encode(chat, before)).segments
        whole, *found = demonstration(chat, episode).segments
        random_turns = [number for number, turn in enumerate(episode.turns) if turn.reply.noise]
        assert len(found) == len(random_turns)
        own = {turn for turn, in_loss in zip(whole.turns, whole.loss_mask, strict=True) if in_loss}
        assert own == set(range(len(episode.turns))) - set(random_turns)
        for segment, number in zip(found, random_turns, strict=True):
            begin = played.turns.index(number)
            label = tuple(chat.reply_ids(episode.turns[number].reply.label or ""))
            assert segment.ids == played.ids[:begin] + label
            assert segment.loss_mask == (False,) * begin + (True,) * len(label)


def test_labels_of_turns_that_are_not_in_the_loss_are_left_out(chat: Chat, labeled: list[Episode]) -> None:
    without = [exclude_turns(episode, lambda turn: turn.reply.noise) for episode in labeled]
    with pytest.raises(UsageError, match="has labels"):
        imitated(without, noise=False, labels=True)
    examples = list(encode_examples(chat, imitated(labeled, noise=False, labels=True), Trimming(ContextLimit(10_000))))
    ends = sum(label == chat.end_id for example in examples for label in example.labels if label != IGNORED)
    assert ends == sum(len(episode.turns) for episode in labeled)  # one reply of the expert for each turn


def test_of_a_policys_episodes_only_labels_are_imitated(chat: Chat, labeled: list[Episode]) -> None:
    """Distillation labels a fraction of the turns of a policy, which aren't marked as random."""

    def played(episode: Episode) -> Episode:
        turns = (replace(turn, reply=replace(turn.reply, noise=False)) for turn in episode.turns)
        return replace(episode, turns=tuple(turns))

    episodes = list(map(played, labeled))
    found = imitated(episodes, noise=False, labels=True)
    for before, episode in zip(episodes, found, strict=True):
        without = all(turn.reply.label is None for turn in before.turns)
        assert [turn.loss for turn in episode.turns] == [without] * len(before.turns)
        assert [turn.reply.label for turn in episode.turns] == [turn.reply.label for turn in before.turns]
    assert len({tuple(turn.loss for turn in episode.turns) for episode in found}) > 1


def test_labels_are_renamed_with_the_episode(labeled: list[Episode]) -> None:
    other = {"heads": "tails", "tails": "heads", None: None}
    swapped = {
        tuple(turn.reply.label for turn in rename(labeled[0], (("heads", "tails"),), rng).turns)
        for rng in map(np.random.default_rng, range(8))
    }
    own = tuple(turn.reply.label for turn in labeled[0].turns)
    assert swapped == {own, tuple(other[label] for label in own)}


@pytest.mark.parametrize("share", [0.0, 1.0])
def test_iterations_of_agent_evol_train_on_labels_if_their_share_of_the_base_data_has_some(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, labeled: list[Episode], share: float
) -> None:
    config = AgentEvolConfig(data=DataConfig(noise=0.5, imitate_labels=True), base=share)
    folder = RunFolder.create(tmp_path / "run", config, "coins")
    evolution, trained = Evolution(config, folder, RunConsole(Console(quiet=True)), Stopping()), list[Episode]()
    explored = play_many(Bare(Coin()), Oracle(), SPECS[:2])
    evolution.iteration(1).path.mkdir()
    evolution.iteration(1).kept.write_text("".join(f"{episode.to_json()}\n" for episode in explored))

    def train(config: SFTConfig, run: RunFolder, *_: Any) -> Reached:
        trained.extend(imitated(run.read_data(), noise=config.data.imitate_noise, labels=config.data.imitate_labels))
        return Reached(1, of=1)

    monkeypatch.setattr(sft, "train", train)
    assert evolution._learn(1, labeled)
    assert len(trained) >= 2
    assert any(turn.reply.label for episode in trained for turn in episode.turns) == bool(share)


def test_the_warm_start_trains_on_unmasked_turns_only(
    new_model: Callable[..., Any], chat: Chat, noisy: list[Episode]
) -> None:
    learner = make_learner(new_model(), micro_tokens=10_000)
    trained: list[int] = []

    def hook(module: Any, inputs: tuple[Any, ...], outputs: Any) -> None:
        trained.extend(inputs[4].tolist())

    learner.actor.register_forward_hook(hook)
    masked = imitated(noisy, noise=False)
    encoded = encode_demonstrations(chat, masked, Trimming(ContextLimit(10_000)))
    list(warm_start(learner, encoded, epochs=1, batch=4, seed=0, ranks=Ranks()))
    assert trained.count(chat.end_id) == sum(turn.loss for episode in masked for turn in episode.turns)


def test_a_warm_start_without_episodes_needs_no_labels() -> None:
    assert imitated([], noise=False, labels=True) == []


@pytest.mark.long
def test_demonstrations_without_a_token_in_the_loss_are_refused_in_reinforcement_learning(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = coin_flags(tmp_path / "run", "--imitation.weight", "1", "--imitation.data.keep", "all", "--steps", "1")
    assert train_cli([*flags, "--imitation.data.noise", "1", "--imitation.data.episodes", "20"]) == 2
    stderr = " ".join(capsys.readouterr().err.split())
    assert "The 20 demonstrations of imitation.data contain nothing to train on" in stderr
    assert "imitation.data.imitate_noise" in stderr


def test_runs_with_nothing_to_imitate_are_rejected(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ValueError, match=r"set warm_start\.imitate_labels, warm_start\.imitate_noise or a lower noise"):
        WarmStart(episodes=8, noise=1.0)
    for noise, imitate_noise in ((0.0, False), (0.5, True)):
        with pytest.raises(ValueError, match="trains on what the expert would do instead of its random actions"):
            WarmStart(episodes=8, noise=noise, imitate_noise=imitate_noise, imitate_labels=True)
        with pytest.raises(ValueError, match="trains on what the expert would do instead of its random actions"):
            DataConfig(noise=noise, imitate_noise=imitate_noise, imitate_labels=True)
    flags = sft_flags(tmp_path / "run", "--data.noise", "1", "--data.keep", "all", "--data.no-imitate-noise")
    assert train_cli(flags) == 2
    assert "are random actions of a noisy expert, which data.imitate_noise would include" in capsys.readouterr().err
