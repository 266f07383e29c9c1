"""Tests of reward shaping, which changes the rewards of training but not the reported scores."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import plugin_examples
import pytest
from agentgym_envs import Episode, read_episodes
from agentgym_trainer.algorithms import GRPO, Algorithm
from agentgym_trainer.config import AsyncRollout, EngineSettings
from agentgym_trainer.plugins import PluginError, blaming
from agentgym_trainer.reward_shaping import EnvironmentReward, PerTurn, shaped_rewards
from agentgym_trainer.rollout.groups import EpisodeGroup
from agentgym_trainer.run.metrics import episode_metrics
from agentgym_trainer.trainers.rl_loop import RLLoop
from coin_loops import Build, grpo_with_group_filter, initial_state, loop_config, random_guesses, take_step
from hypothesis import given
from hypothesis import strategies as st
from toy_learner import coin_flags, episode_with_samples, train_cli


def _episode(*turns: tuple[str, str | None, bool, float], **options: Any) -> Episode:
    """Return an episode with turns of these kinds, actions, validities and rewards."""
    base = episode_with_samples([None] * len(turns), [reward for *_, reward in turns], **options)
    return replace(
        base,
        turns=tuple(
            replace(turn, kind=kind, action=action, valid=valid)
            for turn, (kind, action, valid, _) in zip(base.turns, turns, strict=True)
        ),
    )


MIXED = _episode(
    ("plan", None, True, 0.0),
    ("act", "go", True, 0.25),
    ("act", "fly", False, 0.0),
    ("act", None, False, 0.0),
    ("act", "go", True, 0.5),
)


def test_default_shapings_keep_the_environments_rewards() -> None:
    assert shaped_rewards(EnvironmentReward(), MIXED) == (0.0, 0.25, 0.0, 0.0, 0.5)
    assert shaped_rewards(PerTurn(), MIXED) == (0.0, 0.25, 0.0, 0.0, 0.5)


def test_penalties_and_bonus_apply_to_actions() -> None:
    assert shaped_rewards(PerTurn(turn_penalty=0.125), MIXED) == (0.0, 0.125, -0.125, -0.125, 0.375)
    assert shaped_rewards(PerTurn(invalid_penalty=0.5), MIXED) == (0.0, 0.25, -0.5, -0.5, 0.5)
    assert shaped_rewards(PerTurn(format_bonus=1.0), MIXED) == (0.0, 0.5, 0.25, 0.0, 0.75)


@given(st.lists(st.booleans(), min_size=1, max_size=30))
def test_format_bonus_is_bounded_for_any_number_of_turns(valid: list[bool]) -> None:
    stalling = _episode(*(("act", "wait" if is_valid else None, is_valid, 0.0) for is_valid in valid))
    assert sum(shaped_rewards(PerTurn(format_bonus=0.1), stalling)) == pytest.approx(0.1 * sum(valid) / len(valid))


@pytest.mark.parametrize(
    "settings", [{"turn_penalty": -1.0}, {"invalid_penalty": math.inf}, {"format_bonus": math.nan}]
)
def test_penalties_and_bonus_must_be_finite_and_nonnegative(settings: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="reward needs turn_penalty, invalid_penalty and format_bonus that are finite"):
        PerTurn(**settings)


@pytest.mark.parametrize(
    ("shaping", "message"),
    [
        (plugin_examples.Constant(math.nan), "the reward of turn 0 is nan, not a finite number in float32"),
        (plugin_examples.Constant(-math.inf), "the reward of turn 0 is -inf, not a finite number"),
        (plugin_examples.Constant(1e39), "the reward of turn 0 is 1e\\+39, not a finite number in float32"),
        (plugin_examples.Constant(10**400), "not a finite number in float32"),
        (plugin_examples.Constant("much"), "the reward of turn 0 is 'much', not a finite number"),
        (plugin_examples.Constant(None), "the reward of turn 0 is None, not a finite number"),
        (plugin_examples.Constant(turns=3), "it returned 3 rewards for 5 turns"),
        (plugin_examples.Constant(turns=0), "it returned 0 rewards for 5 turns"),
    ],
)
def test_invalid_rewards_are_rejected(shaping: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        shaped_rewards(shaping, MIXED)


def _attempts(*episodes: Episode) -> list[Episode]:
    return [replace(episode, sample=number) for number, episode in enumerate(episodes)]


def test_groups_are_classified_by_shaped_rewards() -> None:
    short = _episode(("act", "go", True, 0.0))
    long = _episode(("act", "go", True, 0.0), ("act", "go", True, 0.0))
    attempts = _attempts(short, long)
    assert EpisodeGroup.from_episodes(attempts, GRPO).kind == "zero_variance"
    taught = EpisodeGroup.from_episodes(attempts, GRPO, has_teacher=True)
    assert (taught.kind, taught.treatment) == ("zero_variance", "keep")
    shaped = EpisodeGroup.from_episodes(attempts, GRPO, reward=PerTurn(turn_penalty=0.1))
    assert shaped.kind == "ok"
    assert [shaped.rewards(attempt) for attempt in attempts] == [(-0.1,), (-0.1, -0.1)]
    assert [outcome.shaped for outcome in shaped.outcome.episodes] == [-0.1, -0.2]


def test_failed_episodes_are_not_shaped_and_scores_are_unchanged() -> None:
    @dataclass(frozen=True)
    class ConstantReward:
        def __call__(self, played: Episode, /) -> Sequence[float]:
            assert not played.failed
            return [2.0] * len(played.turns)

    stops = ("terminated", "failed", "length")
    attempts = _attempts(*(_episode(("act", "go", True, 0.5), stop=stop) for stop in stops))
    group = EpisodeGroup.from_episodes(attempts, GRPO, masked=frozenset({"length"}), reward=ConstantReward())
    assert group.shaped.keys() == {0, 2}
    assert [attempt.sample for attempt in group.usable] == [0, 2]
    metrics = episode_metrics(group.outcome.episodes)
    assert (metrics["score"], metrics["shaped_return"], metrics["failed"]) == (0.5, 2.0, 1)
    assert "shaped_return" not in episode_metrics(EpisodeGroup.from_episodes(attempts, GRPO).outcome.episodes)


# In the training loop.

KEPT = grpo_with_group_filter(zero_variance="keep")


def _line(loop: RLLoop) -> dict[str, Any]:
    (line,) = loop.folder.read_metrics()
    return line


@pytest.mark.parametrize("staleness", [0, 1])
def test_training_uses_shaped_rewards_and_reports_scores(build: Build, staleness: int) -> None:
    config = loop_config(algorithm=KEPT, reward=plugin_examples.Constant(7.0))
    # The scripted engine's log-probabilities aren't those of the learner.
    config = replace(
        config, async_rollout=AsyncRollout(max_staleness=staleness), engine=EngineSettings(tolerance=100.0)
    )
    loop = build(config, random_guesses())
    take_step(loop, initial_state(loop))
    loop.collector.close()
    line = _line(loop)
    episodes = list(read_episodes(loop.folder.rollouts / "step-000001.jsonl"))
    assert line["return"] == line["shaped_return"] == pytest.approx(7.0 * 3)
    assert line["worlds"]["coin/Coin-v0"]["shaped_return"] == pytest.approx(21.0)
    assert 0 <= line["score"] <= 1
    assert line["score"] == pytest.approx(sum(e.score or 0 for e in episodes) / len(episodes))
    for each_episode in episodes:
        assert sum(turn.reward for turn in each_episode.turns) == pytest.approx(each_episode.score)


def test_shaped_return_is_not_reported_without_shaping(build: Build) -> None:
    loop = build(loop_config(algorithm=KEPT), random_guesses())
    take_step(loop, initial_state(loop))
    line = _line(loop)
    assert "shaped_return" not in json.dumps(line)
    assert line["return"] == pytest.approx(line["score"])


# Errors of plugins end the run with an error message, and progress is saved.


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"reward": plugin_examples.NanAfterUpdate()},
            "plugin_examples:NanAfterUpdate could not shape the rewards of .* coin/.*: the reward of turn 0 is nan",
        ),
        (
            {"algorithm": replace(KEPT, advantages=plugin_examples.Misshapen())},
            r"plugin_examples:Misshapen could not estimate advantages of step 1: .*the shape \(\d+,\) and not",
        ),
        (
            {"sampler": plugin_examples.FixedWeights(math.inf)},
            "plugin_examples:FixedWeights could not draw training tasks: .*16 finite numbers from 0",
        ),
        (
            {"sampler": plugin_examples.IntegerKeys()},
            "plugin_examples:IntegerKeys could not take note of step 1: .*strings to finite",
        ),
        ({"sampler": plugin_examples.FixedWeights(-1.0)}, "plugin_examples:FixedWeights could not draw training tasks"),
        ({"sampler": plugin_examples.FixedWeights(0.0)}, "plugin_examples:FixedWeights could not draw training tasks"),
        (
            {"horizon": plugin_examples.Jump(4)},
            "plugin_examples:Jump could not say .* turns episodes have after step 1: .*a Stage has from 1 to 3 turns",
        ),
        (
            {"horizon": plugin_examples.Jump(0)},
            "plugin_examples:Jump could not say how many turns episodes have after step 1",
        ),
    ],
)
def test_plugin_errors_name_the_plugin(build: Build, settings: dict[str, Any], message: str) -> None:
    config = loop_config(**({"algorithm": KEPT} | settings), save_every=2)
    loop = build(config, random_guesses())
    with pytest.raises(PluginError, match=message):
        loop.run(lambda: False)
    # Progress is saved after the first update; before it there is nothing to save.
    steps = 1 if {"horizon"} & settings.keys() or isinstance(config.reward, plugin_examples.NanAfterUpdate) else 0
    latest = loop.checkpoints.latest()
    assert (latest.name if latest else None) == ("step-000001" if steps else None)


def test_stop_iteration_of_a_plugin_names_it() -> None:
    message = r"^plugin_examples:FixedWeights could not draw: StopIteration \(test_reward_shaping\.py, line \d+\)\.$"
    with pytest.raises(PluginError, match=message), blaming(plugin_examples.FixedWeights(), doing="draw"):
        next(iter(()))


def test_exit_of_a_plugin_names_it() -> None:
    message = r"^plugin_examples:FixedWeights could not draw: SystemExit: 0 \(test_reward_shaping\.py, line \d+\)\.$"
    with pytest.raises(PluginError, match=message), blaming(plugin_examples.FixedWeights(), doing="draw"):
        raise SystemExit(0)


def test_train_reports_plugin_errors_and_saves_progress(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    flags = coin_flags(
        tmp_path / "run", "--reward", "plugin_examples:NanAfterUpdate", "--algorithm.groups.zero-variance", "keep"
    )
    assert train_cli([*flags, "--save-every", "5"]) == 1
    error = " ".join(capfd.readouterr().err.split())
    assert "Traceback" not in error
    assert "error: plugin_examples:NanAfterUpdate could not shape the rewards of an episode of coin/train/" in error
    assert f"Progress is saved; resume with: uv run train --resume {tmp_path / 'run'}" in error
    assert (tmp_path / "run/checkpoints/step-000001").is_dir()


def test_failing_loss_ends_the_run_without_a_partial_update(build: Build) -> None:
    fields = {name: getattr(KEPT, name) for name in Algorithm.__dataclass_fields__}
    loop = build(loop_config(algorithm=plugin_examples.Weighted(**fields, broken=True)), random_guesses())
    with pytest.raises(
        Exception, match=r"plugin_examples:Weighted could not take update 1; .*ZeroDivisionError: no loss today"
    ):
        loop.run(lambda: False)
    assert loop.checkpoints.latest() is None


def test_custom_loss_is_used_for_training(build: Build) -> None:
    fields = {name: getattr(KEPT, name) for name in Algorithm.__dataclass_fields__}
    loop = build(loop_config(algorithm=plugin_examples.Weighted(**fields, factor=3.0)), random_guesses())
    take_step(loop, initial_state(loop))
    assert _line(loop)["factor"] == pytest.approx(3.0)


def test_errors_of_built_in_code_are_not_plugin_errors(build: Build, monkeypatch: pytest.MonkeyPatch) -> None:
    loop = build(loop_config(algorithm=GRPO), random_guesses())
    monkeypatch.setattr(type(loop.config.sampler), "weights", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        loop.run(lambda: False)
