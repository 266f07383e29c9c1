"""Mutual information of task and first reply: its estimate, which replies it is of, and on how many processes."""

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
from agentgym_envs import Episode, Sample
from agentgym_trainer.algorithms import GRPO
from agentgym_trainer.config import Warnings
from agentgym_trainer.distributed import Ranks
from agentgym_trainer.rollout.groups import EpisodeGroup
from agentgym_trainer.trainers.task_dependence import mutual_information, task_dependence
from coin_loops import Build, coins, initial_state, random_guesses, take_step
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from torch import Tensor
from toy_learner import episode, learner


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


def test_what_it_is_for_replies_that_tell_all_and_nothing() -> None:
    tell_all = torch.full((4, 4), -200.0, dtype=torch.float64).fill_diagonal_(-20)
    assert mutual_information(tell_all) == (pytest.approx(math.log(4)), 1.0)
    # However likely each reply is.
    assert mutual_information(torch.tensor([[-3.0] * 4, [-50.0] * 4, [0.0] * 4, [-1.0] * 4])) == (0.0, 0.25)


def played(tasks: int, seed: int = 0, *, samples: int = 2) -> list[EpisodeGroup]:
    """Groups of tasks with prompts of their own, and replies of several lengths."""
    rng = np.random.default_rng(seed)

    def attempt(task: int, sample: int) -> Episode:
        prompt = (*rng.integers(3, 320, 4 + task).tolist(), 5)
        reply = rng.integers(3, 320, 1 + int(rng.integers(5))).tolist()
        first = Sample(tuple(prompt), tuple(reply), (0.0,) * len(reply), fresh=True)
        return replace(episode([first, first]), task_id=f"coin/train/{task}", sample=sample)

    return [
        EpisodeGroup.from_episodes([attempt(task, sample) for sample in range(samples)], GRPO, number=task)
        for task in range(tasks)
    ]


def slow_scores(model: Any, replies: Sequence[tuple[tuple[int, ...], tuple[int, ...]]]) -> Tensor:
    """Log-probability of each reply after each prompt, one after the other."""

    def score(prompt: tuple[int, ...], reply: tuple[int, ...]) -> float:
        with torch.no_grad():
            logp = model(torch.tensor([[*prompt, *reply]])).logits[0].double().log_softmax(-1)
        return sum(logp[len(prompt) + i - 1, token].item() for i, token in enumerate(reply))

    return torch.tensor([[score(prompt, reply) for prompt, _ in replies] for _, reply in replies]).double()


def firsts(groups: Sequence[EpisodeGroup]) -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
    """Prompt and reply of each group's first turn."""
    samples = [group.episodes[0].turns[0].reply.sample for group in groups]
    return [(sample.prompt, sample.ids) for sample in samples if sample]


def test_the_policy_scores_every_first_reply_after_every_prompt(new_model: Callable[..., Any]) -> None:
    student, groups = learner(new_model()), played(6)
    found = task_dependence(student, Ranks(), groups, tasks=4, max_context=100)
    nats, accuracy = mutual_information(slow_scores(student.policy, firsts(groups)[:4]))
    assert found == pytest.approx({"mutual_information": nats, "retrieval_accuracy": accuracy}, abs=1e-4)
    # Replies are cut where they would not fit behind the longest prompt, and scored no further.
    cut = [(prompt, reply[:2]) for prompt, reply in firsts(groups)[:4]]
    found = task_dependence(student, Ranks(), groups, tasks=4, max_context=len(cut[3][0]) + 2)
    assert found["mutual_information"] == pytest.approx(
        mutual_information(slow_scores(student.policy, cut))[0], abs=1e-4
    )
    assert task_dependence(student, Ranks(), groups, tasks=4, max_context=len(cut[3][0])) == {}


def test_a_policy_that_does_not_look_back_replies_from_a_template(new_model: Callable[..., Any]) -> None:
    """Without attention, what is replied hangs on the last token of the prompt, which all have in common."""
    model = new_model()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "o_proj" in name:
                parameter.zero_()
    found = task_dependence(learner(model), Ranks(), played(4), tasks=4, max_context=100)
    assert found == {"mutual_information": pytest.approx(0, abs=1e-4), "retrieval_accuracy": 0.25}


def test_only_tasks_of_one_environment_are_compared_each_once_and_none_that_failed(
    new_model: Callable[..., Any],
) -> None:
    student, groups = learner(new_model()), played(7)

    def moved(number: int, **changes: Any) -> EpisodeGroup:
        attempts = [replace(attempt, **changes) for attempt in groups[number].episodes]
        return EpisodeGroup.from_episodes(attempts, GRPO, number=number)

    failed = {"stop": "failed", "score": None, "success": None, "error": "it broke"}
    # 0 and 3 are of another environment, 4 is task 1 again, 5 failed.
    mixed = [
        moved(0, env="coin/Other-v0"), groups[1], groups[2], moved(3, env="coin/Other-v0"),
        moved(4, task_id="coin/train/1"), moved(5, **failed), groups[6],
    ]  # fmt: skip
    found = task_dependence(student, Ranks(), mixed, tasks=8, max_context=100)
    parts = [[firsts(groups)[n] for n in numbers] for numbers in ((0, 3), (1, 2, 6))]
    nats = [mutual_information(slow_scores(student.policy, part))[0] for part in parts]
    assert found["mutual_information"] == pytest.approx((2 * nats[0] + 3 * nats[1]) / 5, abs=1e-4)
    assert task_dependence(student, Ranks(), mixed[:2], tasks=8, max_context=100) == {}
    assert task_dependence(student, Ranks(), [], tasks=8, max_context=100) == {}


def test_processes_share_the_work_and_find_the_same(new_model: Callable[..., Any]) -> None:
    groups, students = played(5), [learner(new_model()) for _ in range(2)]

    barrier, held = threading.Barrier(2, timeout=60), [[], []]

    class Shared(Ranks):
        """One of two processes, which wait for each other whenever they gather."""

        def __init__(self, index: int) -> None:
            self.index, self.count = index, 2

        def gather(self, items: Sequence[Any]) -> list[Any]:
            held[self.index] = [*items]
            barrier.wait()
            whole = [item for part in held for item in part]
            barrier.wait()
            return whole

    def process(index: int) -> dict[str, float]:
        own = [group for group in groups if group.number % 2 == index]
        return task_dependence(students[index], Shared(index), own, tasks=5, max_context=100)

    with ThreadPoolExecutor(2) as pool:
        first, second = pool.map(process, range(2))
    alone = task_dependence(students[0], Ranks(), groups, tasks=5, max_context=100)
    assert first == second == pytest.approx(alone, abs=1e-4)


@pytest.mark.parametrize(("every", "measured"), [(2, [True, False, True]), (0, [False] * 3)])
def test_a_run_measures_it_every_few_steps(build: Build, every: int, measured: list[bool]) -> None:
    loop = build(coins(steps=3, warnings=Warnings(template_every=every)), random_guesses())
    progress = initial_state(loop)
    for _ in range(3):
        progress = take_step(loop, progress)
    lines = [*loop.folder.read_metrics()]
    assert ["mutual_information" in line for line in lines] == measured
    assert all(0 <= line["retrieval_accuracy"] <= 1 for line in lines if "retrieval_accuracy" in line)
