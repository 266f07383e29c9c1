"""Tests of settings from other packages: lookup by name, error messages, and round trips through run.json."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import plugin_examples
import pytest
from agentgym_eval.util.errors import UsageError
from agentgym_trainer.algorithms import ADVANTAGES, GAE, GRPO, PPO, PRESETS, GroupRelative
from agentgym_trainer.cli import _parse, main
from agentgym_trainer.config import Evaluation, RLConfig, SFTConfig
from agentgym_trainer.config.serialization import from_json, to_json
from agentgym_trainer.curriculum.horizon import AdaptiveHorizon, FixedHorizon, StepHorizon
from agentgym_trainer.curriculum.task_sampler import MidSuccess, Uniform
from agentgym_trainer.recipes import RECIPES, find_recipe
from agentgym_trainer.reward_shaping import EnvironmentReward, PerTurn
from agentgym_trainer.run.folder import RunFolder
from hypothesis import given, settings
from hypothesis import strategies as st

pytestmark = pytest.mark.quick


def _config(*arguments: str) -> Any:
    return _parse(("quickstart", *arguments))[1].config


def _round_trip(config: Any) -> Any:
    return from_json(type(config), json.loads(json.dumps(to_json(config))))


# Lookup by name.


def test_named_settings_replace_those_of_the_recipe() -> None:
    config = _config(
        *("--algorithm.advantages", "plugin_examples:Scaled", "--algorithm.advantages.scale", "2"),
        *("--algorithm.advantages.bounds.high", "3", "--algorithm.advantages.inner.gamma", "0.5"),
        *(
            "--sampler=plugin_examples:FixedWeights",
            "--sampler.weight",
            "0.5",
            "--horizon",
            "plugin_examples:Jump",
            "--horizon.turns",
            "3",
        ),
        *("--reward", "plugin_examples:Constant", "--reward.reward", "0.25"),
    )
    scaled = plugin_examples.Scaled(2.0, GroupRelative(gamma=0.5), plugin_examples.Bounds(high=3.0))
    assert config.algorithm == replace(RECIPES["quickstart"].config.algorithm, advantages=scaled)
    assert (config.sampler, config.horizon) == (plugin_examples.FixedWeights(0.5), plugin_examples.Jump(3))
    assert config.reward == plugin_examples.Constant(0.25)
    assert config == _round_trip(config)


def test_algorithm_may_be_an_instance_or_a_class() -> None:
    assert _config("--algorithm", "plugin_examples:CLIPPED", "--algorithm.factor", "3").algorithm == replace(
        plugin_examples.CLIPPED, factor=3.0
    )
    assert _config("--algorithm", "plugin_examples:Weighted").algorithm == plugin_examples.Weighted()
    combined = _config(
        "--algorithm",
        "plugin_examples:CLIPPED",
        "--algorithm.advantages",
        "gae",
        "--algorithm.advantages.lam",
        "0.5",
    )
    assert combined.algorithm == replace(plugin_examples.CLIPPED, advantages=GAE(lam=0.5), groups=PPO.groups)


def test_built_in_settings_have_short_names() -> None:
    for name, estimator in ADVANTAGES.items():
        assert _config("--algorithm.advantages", name).algorithm.advantages == estimator
    assert _config("--reward", "per-turn", "--reward.turn-penalty", "0.01").reward == PerTurn(turn_penalty=0.01)
    assert _config("--reward", "per-turn", "--reward", "environment").reward == EnvironmentReward()
    assert _config("--reward", "plugin_examples:by_stop").reward is plugin_examples.by_stop


def test_flags_can_replace_a_custom_horizon() -> None:
    assert _parse(("plugin_examples:JUMPING",))[1].config == plugin_examples.JUMPING
    replaced = _parse(("plugin_examples:JUMPING", "--horizon", "fixed", "--reward", "environment"))[1].config
    assert replaced == replace(plugin_examples.JUMPING, horizon=FixedHorizon(3), reward=EnvironmentReward())


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        (
            ("--sampler", "midsuccess"),
            "There is no sampler 'midsuccess'. Did you mean 'mid-success'? There are: mid-success, unif",
        ),
        (("--reward", "per-trun"), "There is no reward shaping 'per-trun'. Did you mean 'per-turn'?"),
        (("--algorithm.advantages", "gea"), "There is no advantage estimator 'gea'. Did you mean 'gae'?"),
        (
            ("--sampler", "plugin_examples:FixedWeight"),
            "plugin_examples has no 'FixedWeight'. Did you mean FixedWeights?",
        ),
        (
            ("--sampler", "no_such:X"),
            "sampler no_such:X can't be imported: No module named 'no_such'. Install its",
        ),
        (("--sampler", ":X"), "sampler :X can't be imported: Empty module name."),
        (("--sampler", "plugin_examples:"), "plugin_examples has no ''."),
        (
            ("--sampler", "plugin_examples:IncompleteSampler"),
            "plugin_examples:IncompleteSampler is no sampler: it lacks after. agentgym_trainer.curriculum",
        ),
        (
            ("--sampler", "plugin_examples:Stateless"),
            "is no sampler: after must take (state, success), as in agentgym_trai",
        ),
        (
            ("--sampler", "plugin_examples:MissingDefault"),
            "plugin_examples:MissingDefault has no default for needed: give every field one",
        ),
        (
            ("--sampler", "plugin_examples:Refusing"),
            "plugin_examples:Refusing can't be created with its defaults: weight needs thought.",
        ),
        (
            ("--sampler", "plugin_examples:by_stop"),
            "plugin_examples:by_stop is no sampler: it lacks weights and after.",
        ),
        (
            ("--reward", "plugin_examples:two_arguments"),
            "is no reward shaping: __call__ must take (episode), as in agentgym_tr",
        ),
        (
            ("--reward", "plugin_examples:NotFrozen"),
            "is no reward shaping: it must be a frozen dataclass or a function, and the",
        ),
        (
            ("--reward", "plugin_examples:TypeCheckingOnly"),
            "The types of the fields of plugin_examples:TypeCheckingOnly can't be read: name 'TokenBatch'",
        ),
        (("--reward", "os:system"), "os:system is no reward shaping: it must be a frozen dataclass or a function"),
        (
            ("--algorithm.advantages", "plugin_examples:FixedWeights"),
            "is no advantage estimator: it lacks needs_critic and estimate.",
        ),
        (
            ("--algorithm", "plugin_examples:Scaled"),
            "plugin_examples:Scaled is no algorithm: it is of Scaled and not of agentgym_tra",
        ),
        (
            ("--algorithm", "plugin_examples:NUMBER"),
            "plugin_examples:NUMBER is no algorithm: it is of int and not of agentgym_trainer",
        ),
        (
            ("--horizon", "plugin_examples:FixedWeights"),
            "plugin_examples:FixedWeights is no horizon: it lacks longest and begin.",
        ),
    ],
)
def test_invalid_names_give_one_line_errors(
    flags: tuple[str, ...], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as end:
        main(["quickstart", *flags])
    err = capsys.readouterr().err
    assert end.value.code == 2
    assert err.startswith("error: ")
    assert sentence in err
    assert err.count("\n") == 1


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        ("import no_such_module", "ModuleNotFoundError: No module named 'no_such_module' (half_done.py, line 1)."),
        ("x = 1 / 0", "ZeroDivisionError: division by zero (half_done.py, line 1)."),
        ("def f(:", "invalid syntax (half_done.py, line 1)."),
        ("raise SystemExit(0)", "SystemExit: 0 (half_done.py, line 1)."),
    ],
)
def test_import_errors_name_file_and_line(
    code: str, reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "half_done.py").write_text(code)
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(UsageError) as error:
        _config("--sampler", "half_done:X")
    assert str(error.value) == f"The module of the sampler half_done:X can't be imported: {reason}"


def _install(site: Path, entry_points: str) -> None:
    info = site / "added-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: added\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(entry_points)


def test_entry_points_are_imported_only_when_selected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "added_here.py").write_text(
        "from agentgym_trainer.recipes import RECIPES\nfrom plugin_examples import FixedWeights\n"
        "SMALL = RECIPES['babyai-grpo'].config\n"
    )
    _install(
        tmp_path,
        "[agentgym.samplers]\nevenly = added_here:FixedWeights\nuniform = added_here:Nothing\n"
        "[agentgym.recipes]\nsmall = added_here:SMALL\n",
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "added_here", raising=False)
    with pytest.raises(SystemExit):
        main(["--list"])
    out = capsys.readouterr().out
    assert "samplers of installed packages: evenly, uniform\n" in out
    assert "recipes of installed packages: small\n" in out
    with pytest.raises(UsageError, match="Did you mean 'evenly'"):
        _config("--sampler", "evenyl")
    assert "added_here" not in sys.modules
    # Built-in names take precedence over entry points.
    assert _config("--sampler", "uniform").sampler == Uniform()
    assert _parse(["small", "--sampler", "evenly"])[1].config == replace(
        RECIPES["babyai-grpo"].config, sampler=plugin_examples.FixedWeights()
    )
    monkeypatch.delitem(sys.modules, "added_here")


@pytest.mark.parametrize("name", ["plugin_examples:NUMBER", "plugin_examples:Scaled", "plugin_examples:CLIPPED"])
def test_recipe_must_be_a_recipe_or_a_configuration(name: str) -> None:
    with pytest.raises(UsageError, match=f"{name} is no recipe: it must be a Recipe or a configuration"):
        find_recipe(name)


# Serialization in run.json.

FINITE = st.floats(allow_nan=False, allow_infinity=False)
BUILT_IN = st.sampled_from([*ADVANTAGES.values(), GAE(lam=0.5), GroupRelative(baseline="leave_one_out")])
SCALED = st.builds(
    plugin_examples.Scaled,
    scale=FINITE,
    inner=st.deferred(lambda: BUILT_IN | SCALED),
    bounds=st.builds(plugin_examples.Bounds, low=FINITE, high=st.none() | FINITE),
    names=st.lists(st.text(max_size=5), max_size=3).map(tuple),
    kind=st.sampled_from(["a", "b"]),
)
ALGORITHMS = st.builds(
    # Some advantages are refused with a KL penalty on rewards.
    lambda algorithm, advantages: replace(algorithm, advantages=advantages, kl=replace(algorithm.kl, where="loss")),
    st.sampled_from([*PRESETS.values(), plugin_examples.CLIPPED, plugin_examples.Weighted(factor=0.25)]),
    BUILT_IN | SCALED,
)
HORIZONS = st.one_of(
    st.builds(FixedHorizon, st.integers(1, 99)),
    st.builds(StepHorizon, st.lists(st.integers(1, 99), min_size=1).map(sorted).map(tuple), st.integers(1, 99)),
    st.builds(AdaptiveHorizon, st.just((2, 3)), at_least=st.integers(1, 99)),
    st.builds(plugin_examples.Jump, st.integers()),
)
SHARES = st.floats(0.0, 1.0, exclude_min=True, exclude_max=True)
CONFIGS = st.builds(
    RLConfig,
    algorithm=ALGORITHMS,
    horizon=HORIZONS,
    sampler=st.just(Uniform())
    | st.builds(MidSuccess, SHARES, SHARES)
    | st.builds(plugin_examples.FixedWeights, FINITE),
    reward=st.one_of(
        st.sampled_from([EnvironmentReward(), plugin_examples.by_stop]),
        st.builds(PerTurn, SHARES, SHARES, SHARES),
        st.builds(plugin_examples.Constant, FINITE, st.none() | st.integers()),
    ),
    evaluation=st.just(Evaluation(every=5)),
)


@settings(max_examples=50)
@given(CONFIGS)
def test_every_configuration_survives_a_json_round_trip(config: RLConfig) -> None:
    restored = _round_trip(config)
    assert restored == config
    assert repr(restored) == repr(config)


def test_types_of_other_packages_are_saved_with_their_module() -> None:
    record = to_json(
        RLConfig(
            algorithm=plugin_examples.CLIPPED,
            sampler=plugin_examples.FixedWeights(),
            reward=plugin_examples.by_stop,
        )
    )
    assert record["algorithm"]["type"] == "plugin_examples:Weighted"
    assert record["algorithm"]["advantages"]["type"] == "GroupRelative"
    assert record["sampler"] == {"type": "plugin_examples:FixedWeights", "weight": 1.0}
    assert record["reward"] == {"type": "plugin_examples:by_stop"}
    assert record["horizon"]["type"] == "FixedHorizon"
    assert "type" not in to_json(RLConfig())["algorithm"]
    assert "type" not in to_json(SFTConfig())["horizon"]


@pytest.mark.parametrize(
    ("record", "message"),
    [
        ({"sampler": {"type": "no_such:X"}}, "The module of the sampler no_such:X can't be imported: No module named"),
        ({"sampler": {"type": "plugin_examples:Gone", "weight": 1.0}}, "plugin_examples has no 'Gone'"),
        ({"sampler": {"type": "__main__:Gone"}}, "__main__:Gone was defined within a function, a script or a notebook"),
        (
            {"sampler": {"type": "plugin_examples:FixedWeights", "wieght": 1.0}},
            "no setting 'sampler.wieght'. Did you mean 'weight'",
        ),
        (
            {"sampler": {"type": "plugin_examples:FixedWeights", "weight": "1"}},
            "sampler.weight must be of type float, not '1'",
        ),
        (
            {"sampler": {"type": "plugin_examples:NUMBER"}},
            "sampler can't be of type 'plugin_examples:NUMBER', which is neither a class",
        ),
        (
            {"sampler": {"type": "plugin_examples:Constant"}},
            "plugin_examples:Constant is no sampler: it lacks weights and after",
        ),
        ({"reward": {"type": "os:system"}}, "reward can't be of type 'os:system', which is neither a class nor"),
        (
            {"reward": {"type": "plugin_examples:by_stop", "x": 1}},
            "function plugin_examples:by_stop, which has no setting 'x'",
        ),
        (
            {"reward": {"type": "plugin_examples:NotFrozen"}},
            "plugin_examples:NotFrozen is no reward shaping: it must be a frozen dataclass",
        ),
        ({"algorithm": {"type": "plugin_examples:Scaled"}}, "plugin_examples:Scaled is no algorithm"),
        ({"sampler": 3}, "sampler must be a record of settings, not 3"),
    ],
)
def test_invalid_records_are_rejected(record: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message.replace("(", r"\(")):
        from_json(RLConfig, record)


def _local() -> Any:
    @dataclass(frozen=True)
    class Local(plugin_examples.FixedWeights):
        pass

    return Local()


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: RLConfig(sampler=_local()), "_local.<locals>.Local was defined within a function, a script or"),
        (
            lambda: RLConfig(sampler=plugin_examples.FixedWeights(weight="1")),
            "can't be read back: sampler.weight must be of type float",
        ),
        (
            lambda: RLConfig(sampler=plugin_examples.FixedWeights(weight=object())),
            "can't be read back: Object of type object",
        ),
        (lambda: RLConfig(reward=lambda episode: []), "define it at the top of a module of its own"),
        (
            lambda: RLConfig(algorithm=replace(GRPO, advantages=plugin_examples.Scaled(names=["a"]))),
            "these change when they are read back. The values of your own fields must match their types",
        ),
    ],
)
def test_run_that_could_not_be_resumed_is_not_created(
    build: Callable[[], RLConfig], message: str, tmp_path: Path
) -> None:
    with pytest.raises(UsageError, match=message):
        RunFolder.create(tmp_path / "run", build(), "test")
    assert not (tmp_path / "run").exists()


def test_opened_run_has_its_original_configuration(tmp_path: Path) -> None:
    config = RLConfig(
        algorithm=plugin_examples.CLIPPED,
        sampler=plugin_examples.FixedWeights(2.0),
        reward=plugin_examples.by_stop,
    )
    RunFolder.create(tmp_path / "run", config, "mine")
    assert RunFolder.open(tmp_path / "run")[1:] == (config, "mine")


def test_a_run_with_a_module_of_the_working_folder_is_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own = "from plugin_examples import FixedWeights\n\nclass Own(FixedWeights):\n    pass\n"
    (tmp_path / "own_sampler.py").write_text(own)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.chdir(tmp_path)
    RunFolder.create(tmp_path / "run", RLConfig(), "test")
    record = json.loads((tmp_path / "run/run.json").read_text())
    record["config"]["sampler"] = {"type": "own_sampler:Own"}
    (tmp_path / "run/run.json").write_text(json.dumps(record))
    assert type(RunFolder.open(tmp_path / "run")[1].sampler).__name__ == "Own"
