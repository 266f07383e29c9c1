"""All that an agent says is trained, whatever it says it for, and whole runs play with any agent."""

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
from agentgym_trainer.algorithms import GRPO, KL
from agentgym_trainer.engines.scripted import ScriptedEngine
from agentgym_trainer.learner.learner import Learner
from agentgym_trainer.rollout.groups import EpisodeOutcome
from agentgym_trainer.rollout.runner import EnginePolicy, TokenBudget
from agentgym_trainer.run.folder import RunFolder
from agentgym_trainer.run.metrics import episode_metrics
from agentgym_trainer.tokens.batch import Batch, make_batch
from agentgym_trainer.tokens.chat import Chat
from agentgym_trainer.tokens.trajectory import Trajectory, trajectory
from coin_rollouts import coins, open_world, played
from coin_world import ENV
from toy_learner import coin_flags, learner, train_cli

KINDS = ("act", "plan", "reflect", "summary")
ALGORITHM = replace(GRPO, kl=KL(where="off"))
AGENT = "bare+plan:2+window:1+reflect:2+retry"


def _episodes(chat: Chat, words: str, samples: Sequence[int]) -> list[Episode]:
    """Episodes of a task in which a model says the same whatever it is asked."""
    with open_world(agent=AGENT) as world:
        engine = ScriptedEngine(lambda _: chat.reply_ids(words), end_id=chat.end_id)
        jobs = [replace(job, sample=sample) for job in coins(8)[6:7] for sample in samples]
        return played(engine, EnginePolicy(engine, chat, TokenBudget(), name="scripted"), world, jobs)


@pytest.fixture(scope="module")
def long_ones(chat: Chat) -> list[Episode]:
    """Of one task: one that earns two thirds, and one that earns one; neither succeeds, so both trials are played."""
    return [*_episodes(chat, "tails", (0,)), *_episodes(chat, "heads", (1,))]


def _kinds(episodes: Sequence[Episode], lines: Sequence[Trajectory]) -> list[str]:
    """What each said token was said for, in the order of the batch."""
    return [
        episode.turns[turn].kind
        for episode, line in zip(episodes, lines, strict=True)
        for segment in line.segments
        for turn in segment.turns
        if turn >= 0
    ]


def _own(student: Learner, lines: Sequence[Trajectory]) -> Batch:
    """A batch as if the student had sampled it."""
    batch = make_batch(lines)
    return replace(batch, tokens=replace(batch.tokens, rollout_logprobs_N=student.logprobs(batch)))


def test_reinforcement_learning_moves_plans_looks_back_and_summaries(
    new_model: Callable[..., Any], long_ones: list[Episode]
) -> None:
    assert [episode.score for episode in long_ones] == pytest.approx([2 / 3, 1 / 3])
    student, lines = learner(new_model(), lr=1e-3, micro_tokens=10_000), list(map(trajectory, long_ones))
    batch = _own(student, lines)
    before_N = batch.tokens.rollout_logprobs_N
    experience = student.compute_logprobs(batch, ALGORITHM)
    student.update(batch, experience, ALGORITHM.compute_advantages(experience, student.total), ALGORITHM)
    moved_N = student.logprobs(batch) - before_N
    kinds, won_N = _kinds(long_ones, lines), batch.tokens.episode_N == 0
    for kind in KINDS:
        own_N = torch.tensor([found == kind for found in kinds])
        assert moved_N[own_N & won_N].mean() > moved_N[own_N & ~won_N].mean() + 0.01


def test_the_mask_is_exactly_what_was_said(new_model: Callable[..., Any], chat: Chat, long_ones: list[Episode]) -> None:
    """Position for position against conversations put together by hand, and gradients flow from nowhere else."""
    student = learner(new_model(), micro_tokens=10_000)
    batch = _own(student, list(map(trajectory, long_ones)))
    pulled = defaultdict[tuple[int, int], int](int)

    def watch(module: Any, inputs: tuple[Any, ...], scores: Any) -> None:
        _, position_T, _, before_M, target_M = inputs
        places = list(zip((position_T[before_M] + 1).tolist(), target_M.tolist(), strict=True))

        def note(gradient: torch.Tensor) -> None:
            for place, pull in zip(places, gradient.tolist(), strict=True):
                pulled[place] += pull != 0

        scores.logprobs_M.register_hook(note)

    experience = student.compute_logprobs(batch, ALGORITHM)
    student.actor.register_forward_hook(watch)
    student.update(batch, experience, ALGORITHM.compute_advantages(experience, student.total), ALGORITHM)
    expected = defaultdict[tuple[int, int], int](int)
    for episode in long_ones:
        for conversation, turn in replay(episode):
            begin = len(chat.open(conversation))
            for place, token in enumerate(chat.reply_ids(turn.reply.text), begin):
                expected[place, token] += 1
    assert pulled == expected


def test_what_is_said_beside_acting_is_counted_by_kind(long_ones: list[Episode]) -> None:
    outcomes = [EpisodeOutcome.of(episode) for episode in long_ones]
    figures = episode_metrics(outcomes)
    assert figures["turns"] == 6
    assert figures["segments"] == sum(len(trajectory(episode).segments) for episode in long_ones) > len(long_ones)
    assert figures["trials"] == 2
    assert figures["valid"] == 1
    assert figures["success"] == 0
    assert figures["kinds"].keys() == set(KINDS)
    assert {kind: found["turns"] for kind, found in figures["kinds"].items()} == {
        kind: sum(turn.kind == kind for turn in long_ones[0].turns) for kind in KINDS
    }
    said = sum(found["turns"] * found["tokens"] for found in figures["kinds"].values())
    assert said * len(long_ones) == pytest.approx(figures["tokens"]["completion"])


def test_turns_for_different_things_are_never_of_one_step_group(long_ones: list[Episode]) -> None:
    states = defaultdict[str, set[str]](set)
    for episode in long_ones:
        for turn in episode.turns:
            states[turn.kind].add(turn.state_key)
    assert sum(map(len, states.values())) == len(set().union(*states.values()))
    # Both begin in the same state, and both of its trials do.
    assert len(states["plan"]) < sum(turn.kind == "plan" for episode in long_ones for turn in episode.turns)


def test_an_episode_that_still_earned_in_its_last_trial_was_cut_while_improving(long_ones: list[Episode]) -> None:
    cut = replace(long_ones[0], stop="truncated")
    first, *later = (n for n, turn in enumerate(cut.turns) if turn.trial == 1 and turn.kind == "act")
    paid = {first: 1.0} | dict.fromkeys(later, 0.0)
    early = replace(cut, turns=tuple(replace(t, reward=paid.get(n, t.reward)) for n, t in enumerate(cut.turns)))
    assert EpisodeOutcome.of(cut).cut
    assert not EpisodeOutcome.of(early).cut
    assert not EpisodeOutcome.of(long_ones[0]).cut


def test_an_attempt_counts_when_it_has_begun_and_understanding_when_there_was_something_to_understand(
    long_ones: list[Episode],
) -> None:
    turns = long_ones[0].turns
    looked_back = next(number for number, turn in enumerate(turns) if turn.trial == 1)
    cut = [EpisodeOutcome.of(replace(long_ones[0], turns=turns[:end], stop="length")) for end in (1, looked_back + 1)]
    begun = EpisodeOutcome.of(replace(long_ones[0], turns=turns[: looked_back + 2], stop="length"))
    assert [outcome.trials for outcome in (*cut, begun)] == [1, 1, 2]
    assert [outcome.valid for outcome in (*cut, begun)] == [None, 1, 1]
    assert episode_metrics(cut)["valid"] == 1
    assert episode_metrics(cut[:1])["valid"] is None


@pytest.mark.long
@pytest.mark.parametrize(
    ("agent", "kinds"),
    [
        ("bare+plan:2+window:1+reflect:1+retry", set(KINDS)),
        ("function-call", {"act"}),
    ],
)
def test_one_option_chooses_the_agent_of_training_evaluation_and_collection(
    agent: str, kinds: set[str], tmp_path: Path
) -> None:
    run = RunFolder(tmp_path / "run")
    knowing = ("--scratch.vocab", "700", "--scratch.hidden", "64", "--warm-start.epochs", "8", "--steps", "2")
    budget = ("--generation.max-tokens", "24", "--generation.max-context", "500", "--evaluation.every", "0")
    assert train_cli(coin_flags(run.path, "--world.agent", agent, "--warm-start.noise", "0.4", *knowing, *budget)) == 0
    for line in run.read_metrics():
        assert line["trained"] > 0
        assert line["kinds"].keys() == kinds
        assert (line["trials"] > 1) == ("retry" in agent)
    how = ["--env", ENV, "--policy", f"hf:{run.model}", "--agent", agent, "--tasks", "2", "--no-instructions"]
    how += ["--horizon", "3", "--max-tokens", "24"]
    evaluated, collected = tmp_path / "evaluated", tmp_path / "collected.jsonl"
    assert evaluate([*how, "--out", str(evaluated)]) == 0
    assert collect([*how, "--out", str(collected)]) == 0
    for file in (evaluated / "episodes.jsonl", collected):
        episodes = list(read_episodes(file))
        assert len(episodes) == 2
        for episode in episodes:
            assert episode.agent == agent
            assert {turn.kind for turn in episode.turns} <= kinds
            assert trajectory(episode).tokens
