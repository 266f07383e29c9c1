"""Tests of the mutual information of task and first reply: its estimator, the replies it uses, and processes."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from agentgym_envs import Episode, Sample, Turn
from agentgym_trainer.algorithms import GRPO
from agentgym_trainer.config import Generation, Warnings
from agentgym_trainer.distributed import Ranks
from agentgym_trainer.rollout.groups import EpisodeGroup
from agentgym_trainer.trainers import rl_loop
from agentgym_trainer.trainers.task_dependence import mutual_information, task_dependence
from coin_loops import Build, initial_state, loop_config, random_guesses, take_step
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from torch import Tensor
from toy_learner import episode_with_samples, make_learner


@settings(max_examples=40)
@given(
    st.integers(2, 5).flatmap(lambda n: arrays(np.float64, (n, n), elements=st.integers(-320, 0).map(lambda k: k / 8)))
)
def test_the_estimate_is_the_mean_of_log_ratios(logp: Any) -> None:
    nats, accuracy = mutual_information(torch.from_numpy(logp))
    slow = [math.log(math.exp(row[r]) / (sum(map(math.exp, row)) / len(row))) for r, row in enumerate(logp.tolist())]
    assert nats == pytest.approx(sum(slow) / len(slow))
    assert nats <= math.log(len(logp)) + 1e-12
    ties = [float(row[r] == max(row)) / row.count(max(row)) for r, row in enumerate(logp.tolist())]
    assert accuracy == pytest.approx(sum(ties) / len(ties))


def test_estimates_for_unique_and_for_uniform_replies() -> None:
    unique = torch.full((4, 4), -200.0, dtype=torch.float64).fill_diagonal_(-20)
    assert mutual_information(unique) == (pytest.approx(math.log(4)), 1.0)
    # The estimate doesn't depend on how likely each reply is.
    assert mutual_information(torch.tensor([[-3.0] * 4, [-50.0] * 4, [0.0] * 4, [-1.0] * 4])) == (0.0, 0.25)


def make_groups(tasks: int, seed: int = 0, *, samples: int = 2) -> list[EpisodeGroup]:
    """Return groups of tasks with distinct prompts, and replies of several lengths."""
    rng = np.random.default_rng(seed)

    def attempt(task: int, sample: int) -> Episode:
        prompt = (*rng.integers(3, 320, 4 + task).tolist(), 5)
        reply = rng.integers(3, 320, 1 + int(rng.integers(5))).tolist()
        first = Sample(tuple(prompt), tuple(reply), (0.0,) * len(reply), fresh=True)
        return replace(episode_with_samples([first, first]), task_id=f"coin/train/{task}", sample=sample)

    return [
        EpisodeGroup.from_episodes([attempt(task, sample) for sample in range(samples)], GRPO, number=task)
        for task in range(tasks)
    ]


def slow_scores(model: Any, replies: Sequence[tuple[tuple[int, ...], tuple[int, ...]]]) -> Tensor:
    """Compute the log-probability of each reply after each prompt, one at a time."""

    def score(prompt: tuple[int, ...], reply: tuple[int, ...]) -> float:
        with torch.no_grad():
            logp = model(torch.tensor([[*prompt, *reply]])).logits[0].double().log_softmax(-1)
        return sum(logp[len(prompt) + i - 1, token].item() for i, token in enumerate(reply))

    return torch.tensor([[score(prompt, reply) for prompt, _ in replies] for _, reply in replies]).double()


def first_turns(groups: Sequence[EpisodeGroup]) -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
    """Return prompt and reply of each group's first turn."""
    samples = [group.episodes[0].turns[0].reply.sample for group in groups]
    return [(sample.prompt, sample.ids) for sample in samples if sample]


def test_every_first_reply_is_scored_after_every_prompt(new_model: Callable[..., Any]) -> None:
    student, groups = make_learner(new_model()), make_groups(6)
    metrics = task_dependence(student, Ranks(), groups, tasks=4, max_context=100)
    nats, accuracy = mutual_information(slow_scores(student.policy, first_turns(groups)[:4]))
    assert metrics == pytest.approx({"mutual_information": nats, "retrieval_accuracy": accuracy}, abs=1e-4)
    # Replies are cut to what fits after the longest prompt.
    cut = [(prompt, reply[:2]) for prompt, reply in first_turns(groups)[:4]]
    metrics = task_dependence(student, Ranks(), groups, tasks=4, max_context=len(cut[3][0]) + 2)
    assert metrics["mutual_information"] == pytest.approx(
        mutual_information(slow_scores(student.policy, cut))[0], abs=1e-4
    )
    assert task_dependence(student, Ranks(), groups, tasks=4, max_context=len(cut[3][0])) == {}


def test_the_first_reply_after_an_experts_start_is_the_policys_own(new_model: Callable[..., Any]) -> None:
    groups = make_groups(4)
    led = [
        replace(group, episodes=[replace(e, turns=(led_turn(e), *e.turns)) for e in group.episodes]) for group in groups
    ]
    student = make_learner(new_model())
    whole, begun = (task_dependence(student, Ranks(), each, tasks=4, max_context=100) for each in (groups, led))
    assert begun == whole != {}


def led_turn(episode: Episode) -> Turn:
    """Return an expert's turn."""
    turn = episode.turns[0]
    return replace(turn, reply=replace(turn.reply, sample=None, expert=True), loss=False)


def test_a_policy_without_attention_has_no_task_dependence(new_model: Callable[..., Any]) -> None:
    """Without attention, replies depend only on the last token of the prompt, which all prompts share."""
    model = new_model()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "o_proj" in name:
                parameter.zero_()
    metrics = task_dependence(make_learner(model), Ranks(), make_groups(4), tasks=4, max_context=100)
    assert metrics == {"mutual_information": pytest.approx(0, abs=1e-4), "retrieval_accuracy": 0.25}


def test_distinct_successful_tasks_are_compared_per_environment(
    new_model: Callable[..., Any],
) -> None:
    student, groups = make_learner(new_model()), make_groups(7)

    def changed(number: int, **changes: Any) -> EpisodeGroup:
        attempts = [replace(attempt, **changes) for attempt in groups[number].episodes]
        return EpisodeGroup.from_episodes(attempts, GRPO, number=number)

    failed = {"stop": "failed", "score": None, "success": None, "error": "it broke"}
    # Groups 0 and 3 are of another environment, 4 has task 1 again, and 5 failed.
    mixed = [
        changed(0, env="coin/Other-v0"), groups[1], groups[2], changed(3, env="coin/Other-v0"),
        changed(4, task_id="coin/train/1"), changed(5, **failed), groups[6],
    ]  # fmt: skip
    metrics = task_dependence(student, Ranks(), mixed, tasks=8, max_context=100)
    parts = [[first_turns(groups)[n] for n in numbers] for numbers in ((0, 3), (1, 2, 6))]
    nats = [mutual_information(slow_scores(student.policy, part))[0] for part in parts]
    assert metrics["mutual_information"] == pytest.approx((2 * nats[0] + 3 * nats[1]) / 5, abs=1e-4)
    assert task_dependence(student, Ranks(), mixed[:2], tasks=8, max_context=100) == {}
    assert task_dependence(student, Ranks(), [], tasks=8, max_context=100) == {}


def test_processes_share_the_work_and_agree(new_model: Callable[..., Any]) -> None:
    groups, students = make_groups(5), [make_learner(new_model()) for _ in range(2)]

    barrier, gathered = threading.Barrier(2, timeout=60), [[], []]

    class SimulatedRanks(Ranks):
        """One of two processes, which wait for each other when they gather."""

        def __init__(self, index: int) -> None:
            self.index, self.count = index, 2

        def gather(self, items: Sequence[Any]) -> list[Any]:
            gathered[self.index] = [*items]
            barrier.wait()
            all_items = [item for part in gathered for item in part]
            barrier.wait()
            return all_items

    def process(index: int) -> dict[str, float]:
        own = [group for group in groups if group.number % 2 == index]
        return task_dependence(students[index], SimulatedRanks(index), own, tasks=5, max_context=100)

    with ThreadPoolExecutor(2) as pool:
        first, second = pool.map(process, range(2))
    single = task_dependence(students[0], Ranks(), groups, tasks=5, max_context=100)
    assert first == second == pytest.approx(single, abs=1e-4)


def test_contexts_end_within_that_of_the_model(build: Build, monkeypatch: pytest.MonkeyPatch) -> None:
    limits: list[int] = []
    monkeypatch.setattr(rl_loop, "task_dependence", lambda *_, max_context, **__: limits.append(max_context) or {})
    generation = Generation(max_tokens=12, max_context=10_000)
    loop = build(loop_config(steps=1, generation=generation, warnings=Warnings(template_every=1)), random_guesses())
    take_step(loop, initial_state(loop))
    assert limits == [512]


@pytest.mark.parametrize(("every", "measured"), [(2, [True, False, True]), (0, [False] * 3)])
def test_runs_measure_task_dependence_every_few_steps(build: Build, every: int, measured: list[bool]) -> None:
    loop = build(loop_config(steps=3, warnings=Warnings(template_every=every)), random_guesses())
    progress = initial_state(loop)
    for _ in range(3):
        progress = take_step(loop, progress)
    lines = [*loop.folder.read_metrics()]
    assert ["mutual_information" in line for line in lines] == measured
    assert all(0 <= line["retrieval_accuracy"] <= 1 for line in lines if "retrieval_accuracy" in line)
