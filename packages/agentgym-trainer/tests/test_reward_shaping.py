"""Reward shaping: what is trained on changes, what is reported doesn't."""

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
from agentgym_trainer.plugins import PluginError
from agentgym_trainer.reward_shaping import EnvironmentReward, PerTurn, shaped_rewards
from agentgym_trainer.rollout.groups import EpisodeGroup
from agentgym_trainer.run.metrics import episode_metrics
from agentgym_trainer.trainers.rl_loop import RLLoop
from coin_loops import Build, begin, coins, guess, rules, take_step
from hypothesis import given
from hypothesis import strategies as st
from toy_learner import coin_flags, episode, train_cli


def _played(*turns: tuple[str, str | None, bool, float], **more: Any) -> Episode:
    """An episode with turns of these kinds, actions, validities and rewards."""
    made = episode([None] * len(turns), [reward for *_, reward in turns], **more)
    return replace(
        made,
        turns=tuple(
            replace(turn, kind=kind, action=action, valid=valid)
            for turn, (kind, action, valid, _) in zip(made.turns, turns, strict=True)
        ),
    )


MIXED = _played(
    ("plan", None, True, 0.0),
    ("act", "go", True, 0.25),
    ("act", "fly", False, 0.0),
    ("act", None, False, 0.0),
    ("act", "go", True, 0.5),
)


def test_the_environments_rewards_are_those_of_the_turns() -> None:
    assert shaped_rewards(EnvironmentReward(), MIXED) == (0.0, 0.25, 0.0, 0.0, 0.5)
    assert shaped_rewards(PerTurn(), MIXED) == (0.0, 0.25, 0.0, 0.0, 0.5)


def test_penalties_and_the_bonus_are_for_actions() -> None:
    assert shaped_rewards(PerTurn(turn_penalty=0.125), MIXED) == (0.0, 0.125, -0.125, -0.125, 0.375)
    assert shaped_rewards(PerTurn(invalid_penalty=0.5), MIXED) == (0.0, 0.25, -0.5, -0.5, 0.5)
    assert shaped_rewards(PerTurn(format_bonus=1.0), MIXED) == (0.0, 0.5, 0.25, 0.0, 0.75)


@given(st.lists(st.booleans(), min_size=1, max_size=30))
def test_no_number_of_turns_earns_more_than_the_bonus(readable: list[bool]) -> None:
    stalling = _played(*(("act", "wait" if read else None, read, 0.0) for read in readable))
    assert sum(shaped_rewards(PerTurn(format_bonus=0.1), stalling)) == pytest.approx(
        0.1 * sum(readable) / len(readable)
    )


@pytest.mark.parametrize("wrong", [{"turn_penalty": -1.0}, {"invalid_penalty": math.inf}, {"format_bonus": math.nan}])
def test_penalties_and_bonus_are_finite_and_not_negative(wrong: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="reward needs turn_penalty, invalid_penalty and format_bonus that are finite"):
        PerTurn(**wrong)


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
def test_what_is_no_reward_is_refused(shaping: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        shaped_rewards(shaping, MIXED)


def _attempts(*episodes: Episode) -> list[Episode]:
    return [replace(episode, sample=number) for number, episode in enumerate(episodes)]


def test_groups_are_judged_by_what_they_are_trained_on() -> None:
    short = _played(("act", "go", True, 0.0))
    long = _played(("act", "go", True, 0.0), ("act", "go", True, 0.0))
    both = _attempts(short, long)
    assert EpisodeGroup.from_episodes(both, GRPO).kind == "zero_variance"
    shaped = EpisodeGroup.from_episodes(both, GRPO, reward=PerTurn(turn_penalty=0.1))
    assert shaped.kind == "ok"
    assert [shaped.rewards(attempt) for attempt in both] == [(-0.1,), (-0.1, -0.1)]
    assert [outcome.shaped for outcome in shaped.outcome.episodes] == [-0.1, -0.2]


def test_failed_episodes_are_not_shaped_and_scores_stay() -> None:
    @dataclass(frozen=True)
    class Asked:
        def __call__(self, played: Episode, /) -> Sequence[float]:
            assert not played.failed
            return [2.0] * len(played.turns)

    kinds = ("terminated", "failed", "length")
    group = _attempts(*(_played(("act", "go", True, 0.5), stop=stop) for stop in kinds))
    judged = EpisodeGroup.from_episodes(group, GRPO, masked=frozenset({"length"}), reward=Asked())
    assert judged.shaped.keys() == {0, 2}
    assert [attempt.sample for attempt in judged.usable] == [0, 2]
    figures = episode_metrics(judged.outcome.episodes)
    assert (figures["score"], figures["shaped_return"], figures["failed"]) == (0.5, 2.0, 1)
    assert "shaped_return" not in episode_metrics(EpisodeGroup.from_episodes(group, GRPO).outcome.episodes)


# In the loop.

KEPT = rules(zero_variance="keep")


def _line(loop: RLLoop) -> dict[str, Any]:
    (line,) = loop.folder.read_metrics()
    return line


@pytest.mark.parametrize("versions", [0, 1])
def test_training_sees_the_shaped_rewards_and_reports_the_environments(build: Build, versions: int) -> None:
    config = coins(algorithm=KEPT, reward=plugin_examples.Constant(7.0))
    # What the engine says is no sample of the learner's.
    config = replace(config, async_rollout=AsyncRollout(max_staleness=versions), engine=EngineSettings(tolerance=100.0))
    loop = build(config, guess())
    take_step(loop, begin(loop))
    loop.collector.close()
    line = _line(loop)
    played = list(read_episodes(loop.folder.rollouts / "step-000001.jsonl"))
    assert line["return"] == line["shaped_return"] == pytest.approx(7.0 * 3)
    assert line["worlds"]["coin/Coin-v0"]["shaped_return"] == pytest.approx(21.0)
    assert 0 <= line["score"] <= 1
    assert line["score"] == pytest.approx(sum(e.score or 0 for e in played) / len(played))
    for one in played:
        assert sum(turn.reward for turn in one.turns) == pytest.approx(one.score)


def test_without_shaping_nothing_is_reported_of_it(build: Build) -> None:
    loop = build(coins(algorithm=KEPT), guess())
    take_step(loop, begin(loop))
    line = _line(loop)
    assert "shaped_return" not in json.dumps(line)
    assert line["return"] == pytest.approx(line["score"])


# What other packages do wrong ends the run in a sentence, with what is done saved.


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        (
            {"reward": plugin_examples.Later()},
            "plugin_examples:Later could not shape the rewards of an episode of coin/.*: the reward of turn 0 is nan",
        ),
        (
            {"algorithm": replace(KEPT, advantages=plugin_examples.Misshapen())},
            r"plugin_examples:Misshapen could not estimate advantages of step 1: .*the shape \(\d+,\) and not",
        ),
        (
            {"sampler": plugin_examples.Given(math.inf)},
            "plugin_examples:Given could not draw training tasks: .*16 finite numbers from 0",
        ),
        (
            {"sampler": plugin_examples.Numbered()},
            "plugin_examples:Numbered could not take note of step 1: .*strings to finite",
        ),
        ({"sampler": plugin_examples.Given(-1.0)}, "plugin_examples:Given could not draw training tasks"),
        ({"sampler": plugin_examples.Given(0.0)}, "plugin_examples:Given could not draw training tasks"),
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
def test_a_mistake_of_another_package_is_told_with_its_name(
    build: Build, settings: dict[str, Any], sentence: str
) -> None:
    config = coins(**({"algorithm": KEPT} | settings), save_every=2)
    loop = build(config, guess())
    with pytest.raises(PluginError, match=sentence):
        loop.run(lambda: False)
    # Saved where the learner is: after the first update, or at the beginning, where there is nothing to save.
    steps = 1 if {"horizon"} & settings.keys() or isinstance(config.reward, plugin_examples.Later) else 0
    latest = loop.checkpoints.latest()
    assert (latest.name if latest else None) == ("step-000001" if steps else None)


def test_the_command_says_so_saves_and_fails(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    flags = coin_flags(
        tmp_path / "run", "--reward", "plugin_examples:Later", "--algorithm.groups.zero-variance", "keep"
    )
    assert train_cli([*flags, "--save-every", "5"]) == 1
    told = " ".join(capfd.readouterr().err.split())
    assert "Traceback" not in told
    assert "error: plugin_examples:Later could not shape the rewards of an episode of coin/train/" in told
    assert f"Progress is saved; resume with: uv run train --resume {tmp_path / 'run'}" in told
    assert (tmp_path / "run/checkpoints/step-000001").is_dir()


def test_a_loss_that_breaks_ends_the_run_and_saves_no_half_update(build: Build) -> None:
    fields = {name: getattr(KEPT, name) for name in Algorithm.__dataclass_fields__}
    loop = build(coins(algorithm=plugin_examples.Weighted(**fields, broken=True)), guess())
    with pytest.raises(
        Exception, match=r"plugin_examples:Weighted could not take update 1; .*ZeroDivisionError: no loss today"
    ):
        loop.run(lambda: False)
    assert loop.checkpoints.latest() is None


def test_a_loss_of_another_package_is_the_one_that_trains(build: Build) -> None:
    fields = {name: getattr(KEPT, name) for name in Algorithm.__dataclass_fields__}
    loop = build(coins(algorithm=plugin_examples.Weighted(**fields, factor=3.0)), guess())
    take_step(loop, begin(loop))
    assert _line(loop)["factor"] == pytest.approx(3.0)


def test_what_goes_wrong_in_this_package_is_not_blamed_on_others(build: Build, monkeypatch: pytest.MonkeyPatch) -> None:
    loop = build(coins(algorithm=GRPO), guess())
    monkeypatch.setattr(type(loop.config.sampler), "weights", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        loop.run(lambda: False)
