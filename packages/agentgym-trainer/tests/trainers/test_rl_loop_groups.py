"""Tests of group filtering and resampling in the training loop, in the coin environment with scripted replies."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from agentgym_envs import Episode, Sample, read_episodes
from agentgym_trainer.algorithms import GRPO, GroupRelative
from agentgym_trainer.config import RLConfig, Warnings, WorldConfig
from agentgym_trainer.rollout.collector import missing_groups
from agentgym_trainer.rollout.groups import EpisodeGroup, EpisodeOutcome, GroupOutcome
from agentgym_trainer.run.diagnostics import Monitor
from agentgym_trainer.run.metrics import batch_fill, group_return_std
from coin_loops import (
    COIN,
    Build,
    collect_rollouts,
    grpo_with_group_filter,
    initial_state,
    loop_config,
    random_guesses,
    take_step,
)
from coin_world import ENV, OTHER
from toy_learner import episode_with_samples


def _kinds(groups: list[EpisodeGroup]) -> dict[str, int]:
    return dict(Counter(group.kind for group in groups))


def _episode(reward: float, stop: str = "terminated") -> Episode:
    return episode_with_samples([None], [reward], stop=stop)


@pytest.mark.parametrize(
    ("episodes", "train_on_truncated", "kind", "usable"),
    [
        ([_episode(0.0), _episode(1.0)], True, "ok", 2),
        ([_episode(0.0), _episode(1.0, "failed"), _episode(1.0)], True, "has_failures", 2),
        ([_episode(1.0, "failed"), _episode(1.0)], True, "single", 1),
        ([_episode(1.0, "failed")], True, "single", 0),
        ([_episode(0.5), _episode(0.5)], True, "zero_variance", 2),
        ([_episode(0.5), _episode(0.5), _episode(0.1, "length")], True, "ok", 3),
        # Cut episodes are masked, but count in the baselines of the others.
        ([_episode(0.5), _episode(0.5), _episode(0.1, "length")], False, "ok", 3),
        ([_episode(0.5), _episode(0.1, "length")], False, "ok", 2),
        ([_episode(0.5), _episode(0.5, "length")], False, "zero_variance", 2),
        ([_episode(0.5, "length"), _episode(0.1, "length")], False, "zero_variance", 2),
    ],
)
def test_groups_are_classified_without_failed_episodes(
    episodes: list[Episode], train_on_truncated: bool, kind: str, usable: int
) -> None:
    group = EpisodeGroup.from_episodes(episodes, GRPO, masked=RLConfig(train_on_truncated=train_on_truncated).masked)
    assert (group.kind, len(group.usable)) == (kind, usable)
    assert group.treatment == ("keep" if kind in ("ok", "has_failures") else "drop")


def test_length_baselines_classify_groups_by_token_counts() -> None:
    """The mean return of 1/2 gives unmasked episodes advantage 0; OPO's baseline, weighted by length, is 5/12."""

    def episode_of(tokens: int, reward: float, stop: str = "terminated") -> Episode:
        return episode_with_samples([Sample((9,), (1,) * tokens, (0.0,) * tokens, fresh=True)], [reward], stop=stop)

    episodes = [episode_of(3, 0.5), episode_of(3, 0.5), episode_of(2, 1.0, "length"), episode_of(4, 0.0, "length")]
    for advantages, kind in ((GroupRelative(), "zero_variance"), (GroupRelative(baseline="length"), "ok")):
        algorithm = replace(GRPO, advantages=advantages)
        assert EpisodeGroup.from_episodes(episodes, algorithm, masked=frozenset({"length"})).kind == kind


def test_groups_of_equal_returns_are_filtered(build: Build) -> None:
    loop = build(loop_config(algorithm=grpo_with_group_filter(zero_variance="drop")), lambda: "heads")
    groups = collect_rollouts(loop, initial_state(loop)).own
    assert _kinds(groups) == {"zero_variance": 4}
    before = [parameter.clone() for parameter in loop.learner.policy.parameters()]
    progress = take_step(loop, initial_state(loop))
    assert progress.step == 1
    (line,) = loop.folder.read_metrics()
    assert (line["trained"], line["groups"]["zero_variance"], line["groups"]["ok"]) == (0, 4, 0)
    for old, new in zip(before, loop.learner.policy.parameters(), strict=True):
        assert torch.equal(old, new)


def test_zero_variance_groups_are_warned_about_once_even_after_resume(build: Build) -> None:
    stop_requests = iter([False, True])
    loop = build(
        loop_config(algorithm=grpo_with_group_filter(zero_variance="drop"), steps=3, warnings=Warnings(window=2)),
        lambda: "heads",
    )
    assert loop.run(lambda: next(stop_requests)).step == 1
    loop.monitor = Monitor(loop.config.warnings)  # as in another process
    loop.run(lambda: False)
    warnings = [[warning["id"] for warning in line["warnings"]] for line in loop.folder.read_metrics()]
    assert warnings == [["flat-groups"], [], []]


def test_kept_zero_variance_groups_are_trained(build: Build) -> None:
    loop = build(loop_config(algorithm=grpo_with_group_filter(zero_variance="keep")), lambda: "heads")
    take_step(loop, initial_state(loop))
    (line,) = loop.folder.read_metrics()
    assert (line["trained"], line["groups"]["zero_variance"], line["advantage"]) == (12, 4, 0.0)


@pytest.mark.parametrize(
    ("rounds", "train", "played"), [(1, 16, [4, 4]), (2, 16, [4, 4, 4]), (3, 6, [4, 2]), (2, 4, [4])]
)
def test_resampling_draws_new_tasks_until_rounds_or_tasks_run_out(
    build: Build, rounds: int, train: int, played: list[int]
) -> None:
    world = WorldConfig(ENV, (f"train={train}",), agent="bare", instructions=False)
    loop = build(
        loop_config(world=world, algorithm=grpo_with_group_filter(zero_variance="resample", rounds=rounds)),
        lambda: "heads",
    )
    groups = collect_rollouts(loop, initial_state(loop)).groups
    assert len({group.task for group in groups}) == len(groups) == sum(played)
    assert all(group.treatment == "resample" and len(group.episodes) == 3 for group in groups)


def test_resampling_replaces_exactly_the_zero_variance_groups(build: Build) -> None:
    loop = build(
        loop_config(group_size=2, algorithm=grpo_with_group_filter(zero_variance="resample", rounds=2)),
        random_guesses(1),
    )
    groups = collect_rollouts(loop, initial_state(loop)).groups
    first = groups[:4]
    zero_variance = sum(group.kind == "zero_variance" for group in first)
    assert 0 < zero_variance < 4
    assert len(groups) >= 4 + zero_variance
    loop = build(
        loop_config(group_size=2, algorithm=grpo_with_group_filter(zero_variance="resample", rounds=2)),
        random_guesses(1),
        name="again",
    )
    take_step(loop, initial_state(loop))
    (line,) = loop.folder.read_metrics()
    assert line["groups"]["all"] == len(groups)
    assert line["trained"] == 2 * line["groups"]["ok"] == 2 * sum(group.kind == "ok" for group in groups)


@pytest.mark.parametrize("scale", [True, False])
def test_scale_minibatches_keeps_tokens_per_optimizer_step(build: Build, scale: bool) -> None:
    config = loop_config(
        tasks_per_step=8,
        group_size=2,
        algorithm=grpo_with_group_filter(zero_variance="drop"),
        minibatches=8,
        scale_minibatches=scale,
    )
    loop = build(config, random_guesses(1))
    take_step(loop, initial_state(loop))
    (line,) = loop.folder.read_metrics()
    groups: dict[str, list[Episode]] = {}
    for played in read_episodes(loop.folder.rollouts / "step-000001.jsonl"):
        groups.setdefault(played.task_id, []).append(played)
    tokens = {task: sum(EpisodeOutcome.of(e).completion_tokens for e in group) for task, group in groups.items()}
    kept = [task for task, group in groups.items() if len({e.score for e in group}) > 1]
    share = sum(tokens[task] for task in kept) / sum(tokens.values())
    assert 0.2 < share < 0.8
    assert line["optimizer_steps"] == (round(8 * share) if scale else 8)


def test_group_return_std_is_the_mean_over_groups() -> None:
    """Failed episodes, and groups with fewer than two others, are left out."""

    def group(*episodes: tuple[float, Any, float | None]) -> GroupOutcome:
        outcomes = [
            replace(EpisodeOutcome.of(_episode(score, stop)), shaped=shaped) for score, stop, shaped in episodes
        ]
        return GroupOutcome(0, "ok", "keep", tuple(outcomes))

    mixed = group((1.0, "terminated", None), (0.0, "terminated", None), (1.0, "failed", None))
    shaped = group((1.0, "terminated", 3.0), (1.0, "length", 1.0))
    assert group_return_std([mixed]) == pytest.approx(2**-0.5)
    assert group_return_std([mixed, shaped, group((1.0, "terminated", None))]) == pytest.approx((2**-0.5 + 2**0.5) / 2)
    assert group_return_std([group((1.0, "terminated", None))]) is None


def test_batch_fill_is_the_share_of_trained_tokens() -> None:
    """Resampled groups don't enlarge the batch; masked and failed episodes don't fill it."""

    def group(treatment: Any, *episodes: tuple[int, Any]) -> GroupOutcome:
        outcomes = [
            replace(EpisodeOutcome.of(_episode(0.0, stop)), completion_tokens=tokens) for tokens, stop in episodes
        ]
        return GroupOutcome(0, "ok", treatment, tuple(outcomes))

    config = RLConfig(tasks_per_step=2, group_size=2, train_on_truncated=False)
    kept = group("keep", (10, "terminated"), (30, "terminated"))
    assert batch_fill([kept, kept], config) == 1.0
    assert batch_fill([kept, replace(kept, treatment="drop")], config) == 0.5
    assert batch_fill([kept, replace(kept, treatment="resample"), kept], config) == 1.0
    assert batch_fill([kept, group("keep", (10, "terminated"), (30, "length"))], config) == 50 / 80
    assert batch_fill([kept, group("keep", (10, "terminated"), (30, "failed"))], config) == 50 / 80
    assert batch_fill([kept], config) == 0.5
    assert batch_fill([], config) == batch_fill([group("keep", (0, "length"), (0, "length"))], config) == 0.0


@pytest.mark.parametrize(("treatment", "groups"), [("keep", 4), ("drop", 4), ("resample", 7)])
def test_groups_with_failures_are_treated_as_configured(build: Build, treatment: Any, groups: int) -> None:
    broken = WorldConfig(ENV, ("train=8", "fault_on_reset=(0,1,2,3)"), agent="bare", instructions=False)
    algorithm = grpo_with_group_filter(has_failures=treatment, single="drop", zero_variance="keep", rounds=3)
    loop = build(loop_config(world=broken, tasks_per_step=4, group_size=2, algorithm=algorithm), random_guesses())
    collected = collect_rollouts(loop, initial_state(loop)).own
    all_failed = [group for group in collected if all(e.failed for e in group.episodes)]
    # A kept group without any successful episode is classified as `single`.
    assert {group.kind for group in all_failed} == ({"single"} if treatment == "keep" else {"has_failures"})
    assert all(not group.usable and group.treatment != "keep" for group in all_failed)
    assert (len(collected) > 4) == (treatment == "resample")


def test_repeated_tasks_give_one_group_of_distinct_samples(build: Build) -> None:
    world = WorldConfig(ENV, ("train=1",), agent="bare", instructions=False)
    loop = build(loop_config(world=world))
    (group,) = collect_rollouts(loop, initial_state(loop)).own
    assert [e.sample for e in group.episodes] == list(range(12))


def test_environments_of_a_mixture_keep_their_shares_when_resampled(build: Build) -> None:
    other = WorldConfig(OTHER, agent="bare", instructions=False)
    loop = build(
        loop_config(
            extra_worlds=(other,), tasks_per_step=24, group_size=1, algorithm=grpo_with_group_filter(single="keep")
        ),
        random_guesses(),
    )
    # 12 groups of each, although the second environment has only ten tasks, so some are repeated.
    groups = collect_rollouts(loop, initial_state(loop)).groups
    assert Counter(e.world for group in groups for e in group.episodes) == {COIN: 12, "coin/OneSided-v0": 12}
    resampling = grpo_with_group_filter(zero_variance="resample", rounds=1)
    loop = build(
        loop_config(extra_worlds=(other,), tasks_per_step=4, group_size=2, algorithm=resampling),
        lambda: "heads",
        name="flat",
    )
    assert Counter(group.world for group in collect_rollouts(loop, initial_state(loop)).groups) == {
        COIN: 4,
        "coin/OneSided-v0": 4,
    }


def test_more_tasks_are_played_until_a_step_has_enough_turns(build: Build) -> None:
    """The coin's episodes have at most 3 turns here, so 2 tasks with 3 episodes each have at most 18."""
    config = loop_config(tasks_per_step=2, turns_per_step=60)
    loop = build(config, random_guesses())
    rollouts = collect_rollouts(loop, initial_state(loop))
    turns = [sum(episode.turns for episode in group.episodes) for group in rollouts.groups]
    assert sum(turns) == pytest.approx(60, abs=sum(turns) / len(turns) / 2)
    assert [group.number for group in rollouts.groups] == list(range(len(turns)))
    assert len({group.task for group in rollouts.groups}) == len(turns) > 2
    assert batch_fill([replace(group, treatment="keep") for group in rollouts.groups], config) == pytest.approx(1.0)
    again = collect_rollouts(build(config, random_guesses(), name="again"), initial_state(loop))
    assert [group.task for group in again.groups] == [group.task for group in rollouts.groups]


def test_groups_of_different_lengths_hardly_bias_the_turns_of_a_step() -> None:
    """Most of the groups have 16 to 96 turns, and the others 192. All of the estimate at once gives 23% more."""

    def group(rng: np.random.Generator) -> GroupOutcome:
        turns = int(rng.choice([*range(2, 13), *[24] * 4]))
        outcome = replace(EpisodeOutcome.of(_episode(0.0)), turns=turns)
        return GroupOutcome(0, "ok", "keep", (outcome,) * 8)

    totals = list[int]()
    for seed in range(300):
        rng = np.random.default_rng(seed)
        groups = [group(rng) for _ in range(4)]
        while missing := missing_groups(groups, 768):
            groups += [group(rng) for _ in range(missing)]
        totals.append(sum(episode.turns for each in groups for episode in each.episodes))
    assert 768 * 0.95 < np.mean(totals) < 768 * 1.1


def test_turns_of_replaced_groups_dont_count(build: Build) -> None:
    replacing = grpo_with_group_filter(zero_variance="resample", rounds=50)
    loop = build(loop_config(tasks_per_step=2, turns_per_step=60, algorithm=replacing), random_guesses())
    groups = collect_rollouts(loop, initial_state(loop)).groups
    turns = [sum(episode.turns for episode in group.episodes) for group in groups if group.treatment == "keep"]
    assert len(turns) < len(groups)
    assert sum(turns) == pytest.approx(60, abs=sum(turns) / len(turns) / 2)


def test_a_step_with_enough_turns_plays_no_further_tasks(build: Build) -> None:
    loop = build(loop_config(turns_per_step=5), random_guesses())
    assert len(collect_rollouts(loop, initial_state(loop)).groups) == 4


def test_tasks_that_run_out_end_a_step_with_fewer_turns(build: Build) -> None:
    loop = build(loop_config(turns_per_step=10**6), random_guesses())
    tasks = [group.task for group in collect_rollouts(loop, initial_state(loop)).groups]
    assert sorted(tasks) == sorted(loop.worlds[0].tasks.train.ids)
