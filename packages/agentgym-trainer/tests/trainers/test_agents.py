"""Tests of training with agents that plan, reflect and summarize: loss masks, metrics, and complete runs."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from agentgym_envs import Episode, read_episodes
from agentgym_envs.episodes.conversation import replay
from agentgym_eval.cli.main import collect, evaluate
from agentgym_eval.util.errors import UsageError
from agentgym_trainer.algorithms import GRPO, KL
from agentgym_trainer.config import Generation, RLConfig, WorldConfig
from agentgym_trainer.engines.scripted import ScriptedEngine
from agentgym_trainer.learner.learner import Learner
from agentgym_trainer.rollout.environments import open_environments
from agentgym_trainer.rollout.groups import EpisodeOutcome
from agentgym_trainer.rollout.runner import EnginePolicy, TokenBudget
from agentgym_trainer.run.folder import RunFolder
from agentgym_trainer.run.metrics import episode_metrics
from agentgym_trainer.tokens.batch import Batch, make_batch
from agentgym_trainer.tokens.chat import Chat
from agentgym_trainer.tokens.trajectory import Trajectory, trajectory
from coin_rollouts import coin_specs, open_environment, play_episodes
from coin_world import ENV
from toy_learner import coin_flags, make_learner, train_cli

KINDS = ("act", "plan", "reflect", "summary")
ALGORITHM = replace(GRPO, kl=KL(where="off"))
AGENT = "bare+plan:2+window:1+reflect:2+retry"


def _episodes(chat: Chat, text: str, samples: Sequence[int]) -> list[Episode]:
    """Play a task with a model that always gives the same reply."""
    with open_environment(agent=AGENT) as world:
        engine = ScriptedEngine(lambda _: chat.reply_ids(text), end_id=chat.end_id)
        specs = [replace(spec, sample=sample) for spec in coin_specs(8)[6:7] for sample in samples]
        return play_episodes(engine, EnginePolicy(engine, chat, TokenBudget(), name="scripted"), world, specs)


@pytest.fixture(scope="module")
def episodes(chat: Chat) -> list[Episode]:
    """Two episodes of a task, with scores of 2/3 and 1/3. Neither succeeds, so both have two trials."""
    return [*_episodes(chat, "tails", (0,)), *_episodes(chat, "heads", (1,))]


def _kinds(episodes: Sequence[Episode], trajectories: Sequence[Trajectory]) -> list[str]:
    """Return the kind of turn of each completion token, in the order of the batch."""
    return [
        episode.turns[turn].kind
        for episode, encoded in zip(episodes, trajectories, strict=True)
        for segment in encoded.segments
        for turn in segment.turns
        if turn >= 0
    ]


def _batch_sampled_by(student: Learner, trajectories: Sequence[Trajectory]) -> Batch:
    """Return a batch as if the student had sampled it."""
    batch = make_batch(trajectories)
    return replace(batch, tokens=replace(batch.tokens, rollout_logprobs_N=student.logprobs(batch)))


def test_all_kinds_of_turns_are_trained(new_model: Callable[..., Any], episodes: list[Episode]) -> None:
    assert [episode.score for episode in episodes] == pytest.approx([2 / 3, 1 / 3])
    student, trajectories = make_learner(new_model(), lr=1e-3, micro_tokens=10_000), list(map(trajectory, episodes))
    batch = _batch_sampled_by(student, trajectories)
    before_N = batch.tokens.rollout_logprobs_N
    token_batch = student.compute_logprobs(batch, ALGORITHM)
    student.update(batch, token_batch, ALGORITHM.compute_advantages(token_batch, student.total), ALGORITHM)
    change_N = student.logprobs(batch) - before_N
    kinds, better_N = _kinds(episodes, trajectories), batch.tokens.episode_N == 0
    for kind in KINDS:
        kind_N = torch.tensor([token_kind == kind for token_kind in kinds])
        assert change_N[kind_N & better_N].mean() > change_N[kind_N & ~better_N].mean() + 0.01


def test_gradients_reach_exactly_the_completion_tokens(
    new_model: Callable[..., Any], chat: Chat, episodes: list[Episode]
) -> None:
    """The positions of all gradients are compared to replayed conversations."""
    student = make_learner(new_model(), micro_tokens=10_000)
    batch = _batch_sampled_by(student, list(map(trajectory, episodes)))
    with_gradient = defaultdict[tuple[int, int], int](int)

    def hook(module: Any, inputs: tuple[Any, ...], outputs: Any) -> None:
        _, position_T, _, before_M, target_M, _ = inputs
        positions = list(zip((position_T[before_M] + 1).tolist(), target_M.tolist(), strict=True))

        def count(gradients: torch.Tensor) -> None:
            for position, value in zip(positions, gradients.tolist(), strict=True):
                with_gradient[position] += value != 0

        outputs.logprobs_M.register_hook(count)

    token_batch = student.compute_logprobs(batch, ALGORITHM)
    student.actor.register_forward_hook(hook)
    student.update(batch, token_batch, ALGORITHM.compute_advantages(token_batch, student.total), ALGORITHM)
    expected = defaultdict[tuple[int, int], int](int)
    for episode in episodes:
        for conversation, turn in replay(episode):
            start = len(chat.open(conversation))
            for position, token in enumerate(chat.reply_ids(turn.reply.text), start):
                expected[position, token] += 1
    assert with_gradient == expected


def test_metrics_count_turns_and_tokens_by_kind(episodes: list[Episode]) -> None:
    outcomes = [EpisodeOutcome.of(episode) for episode in episodes]
    metrics = episode_metrics(outcomes)
    assert metrics["turns"] == 6
    assert metrics["segments"] == sum(len(trajectory(episode).segments) for episode in episodes) > len(episodes)
    assert metrics["trials"] == 2
    assert metrics["valid"] == 1
    assert metrics["success"] == 0
    assert metrics["kinds"].keys() == set(KINDS)
    assert {kind: of_kind["turns"] for kind, of_kind in metrics["kinds"].items()} == {
        kind: sum(turn.kind == kind for turn in episodes[0].turns) for kind in KINDS
    }
    tokens_per_episode = sum(of_kind["turns"] * of_kind["tokens"] for of_kind in metrics["kinds"].values())
    assert tokens_per_episode * len(episodes) == pytest.approx(metrics["tokens"]["completion"])


def test_turns_of_different_kinds_never_share_a_state_key(episodes: list[Episode]) -> None:
    states = defaultdict[str, set[str]](set)
    for episode in episodes:
        for turn in episode.turns:
            states[turn.kind].add(turn.state_key)
    assert sum(map(len, states.values())) == len(set().union(*states.values()))
    # Both episodes, and both trials of each, begin in the same state.
    assert len(states["plan"]) < sum(turn.kind == "plan" for episode in episodes for turn in episode.turns)


def test_episodes_truncated_while_earning_in_the_last_trial_are_cut(episodes: list[Episode]) -> None:
    cut = replace(episodes[0], stop="truncated")
    first, *later = (n for n, turn in enumerate(cut.turns) if turn.trial == 1 and turn.kind == "act")
    rewards = {first: 1.0} | dict.fromkeys(later, 0.0)
    earlier = replace(cut, turns=tuple(replace(t, reward=rewards.get(n, t.reward)) for n, t in enumerate(cut.turns)))
    assert EpisodeOutcome.of(cut).cut
    assert not EpisodeOutcome.of(earlier).cut
    assert not EpisodeOutcome.of(episodes[0]).cut


def test_trials_count_once_begun_and_validity_once_there_was_an_action(
    episodes: list[Episode],
) -> None:
    turns = episodes[0].turns
    reflection = next(number for number, turn in enumerate(turns) if turn.trial == 1)
    cut = [EpisodeOutcome.of(replace(episodes[0], turns=turns[:end], stop="length")) for end in (1, reflection + 1)]
    second_trial = EpisodeOutcome.of(replace(episodes[0], turns=turns[: reflection + 2], stop="length"))
    assert [outcome.trials for outcome in (*cut, second_trial)] == [1, 1, 2]
    assert [outcome.valid for outcome in (*cut, second_trial)] == [None, 1, 1]
    assert episode_metrics(cut)["valid"] == 1
    assert episode_metrics(cut[:1])["valid"] is None


def test_context_must_have_room_for_the_summary_of_what_the_agent_may_remember() -> None:
    world = WorldConfig(ENV, agent="bare+compact:300", backend="inline")
    with (
        pytest.raises(UsageError, match=r"more than 300 tokens, .* up to 24, .* contexts of 320 tokens"),
        open_environments(RLConfig(world=world, generation=Generation(max_tokens=24, max_context=320))),
    ):
        pass


@pytest.mark.long
@pytest.mark.parametrize(
    ("agent", "kinds"),
    [
        ("bare+plan:2+window:1+reflect:1+retry", set(KINDS)),
        ("bare+compact:30", {"act", "summary"}),
        ("function-call", {"act"}),
    ],
)
def test_training_evaluation_and_collection_share_the_agent_option(agent: str, kinds: set[str], tmp_path: Path) -> None:
    run = RunFolder(tmp_path / "run")
    training = ("--scratch.vocab", "700", "--scratch.hidden", "64", "--warm-start.epochs", "8", "--steps", "2")
    budget = ("--generation.max-tokens", "24", "--generation.max-context", "500", "--evaluation.every", "0")
    assert train_cli(coin_flags(run.path, "--world.agent", agent, "--warm-start.noise", "0.4", *training, *budget)) == 0
    for line in run.read_metrics():
        assert line["trained"] > 0
        assert line["kinds"].keys() == kinds
        assert (line["trials"] > 1) == ("retry" in agent)
    flags = ["--env", ENV, "--policy", f"hf:{run.model}", "--agent", agent, "--tasks", "2", "--no-instructions"]
    flags += ["--horizon", "3", "--max-tokens", "24"]
    evaluated, collected = tmp_path / "evaluated", tmp_path / "collected.jsonl"
    assert evaluate([*flags, "--out", str(evaluated)]) == 0
    assert collect([*flags, "--out", str(collected)]) == 0
    for file in (evaluated / "episodes.jsonl", collected):
        episodes = list(read_episodes(file))
        assert len(episodes) == 2
        for episode in episodes:
            assert episode.agent == agent
            assert {turn.kind for turn in episode.turns} <= kinds
            assert trajectory(episode).tokens
