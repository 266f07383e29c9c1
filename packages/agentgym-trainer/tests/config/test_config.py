from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from agentgym_trainer.algorithms import (
    KL,
    PRESETS,
    Algorithm,
    Clip,
    GoalDistance,
    GroupFilter,
    GroupRelative,
    NestedStepGroups,
    StepGroups,
)
from agentgym_trainer.config import (
    AgentEvolConfig,
    AsyncRollout,
    CriticModel,
    DataConfig,
    DPOConfig,
    EngineSettings,
    Evaluation,
    Lora,
    Optimizer,
    RLConfig,
    SFTConfig,
    SFTTerm,
    WarmStart,
    WorldConfig,
)
from agentgym_trainer.config.scratch import Scratch
from agentgym_trainer.config.serialization import from_json, to_json
from agentgym_trainer.curriculum.horizon import AdaptiveHorizon, FixedHorizon, StepHorizon
from agentgym_trainer.curriculum.task_sampler import MidSuccess
from agentgym_trainer.kinds import KINDS, tiny
from agentgym_trainer.recipes import RECIPES
from agentgym_trainer.recipes.rl import RL_RECIPES

pytestmark = pytest.mark.quick

QLORA = Lora(rank=4, quantize="nf4")
OFFLOAD = Optimizer(offload=True)
ONE_TASK = DataConfig(tasks=1)
KEEP_FLAT = GroupFilter(zero_variance="keep")


@pytest.mark.parametrize("name", RECIPES)
@pytest.mark.parametrize("small", [False, True])
def test_every_recipe_survives_a_json_round_trip(name: str, small: bool) -> None:
    config = tiny(RECIPES[name].config) if small else RECIPES[name].config
    restored = from_json(type(config), json.loads(json.dumps(to_json(config))))
    assert restored == config
    assert repr(restored) == repr(config)


def test_every_kind_of_run_has_a_recipe() -> None:
    assert {type(recipe.config) for recipe in RECIPES.values()} == {kind.config for kind in KINDS.values()}


@pytest.mark.parametrize(
    "config",
    [
        *(RLConfig(horizon=horizon) for horizon in (FixedHorizon(7), StepHorizon((2, 3), every=4))),
        RLConfig(horizon=AdaptiveHorizon((2, 3), at_least=4), evaluation=Evaluation(every=5)),
        *(RLConfig(algorithm=algorithm) for algorithm in PRESETS.values()),
        RLConfig(sampler=MidSuccess(memory=0.25)),
        RLConfig(extra_worlds=(WorldConfig("agentgym/BabyAI-v0", weight=2.0), WorldConfig("agentgym/SciWorld-v0"))),
        RLConfig(lora=Lora(rank=8, targets=("q_proj",)), critic=CriticModel("separate", lr=1e-4)),
    ],
)
def test_every_type_of_setting_survives_a_json_round_trip(config: RLConfig) -> None:
    restored = from_json(RLConfig, json.loads(json.dumps(to_json(config))))
    assert restored == config
    assert repr(restored) == repr(config)


def test_json_records_the_type_of_union_settings() -> None:
    record = to_json(RLConfig())
    assert record["horizon"]["type"] == "FixedHorizon"
    assert record["algorithm"]["advantages"]["type"] == "GroupRelative"


def test_missing_settings_get_their_defaults() -> None:
    assert from_json(RLConfig, {"steps": 3}) == RLConfig(steps=3)


@pytest.mark.parametrize(
    ("record", "message"),
    [
        ({"step": 3}, "There is no setting 'step'. Did you mean 'steps'?"),
        ({"optimizer": {"learning_rate": 1}}, "There is no setting 'optimizer.learning_rate'. There are: .*lr"),
        ({"algorithm": {"clip": {"hihg": 1}}}, "There is no setting 'algorithm.clip.hihg'. Did you mean 'high'?"),
        ({"extra_worlds": [{}, {"envv": "X"}]}, "There is no setting 'extra_worlds.1.envv'. Did you mean 'env'?"),
        (
            {"horizon": {"type": "StepHorizon", "stage": [1]}},
            "There is no setting 'horizon.stage'. Did you mean 'stages'?",
        ),
        (
            {"horizon": {"type": "StepHorizons"}},
            "horizon can't be of type 'StepHorizons'. Did you mean 'StepHorizon'?",
        ),
        ({"horizon": {"turns": 3}}, "horizon can't be of type None"),
        (
            {"algorithm": {"advantages": {"type": "GEA"}}},
            "algorithm.advantages can't be of type 'GEA'. Did you mean 'GAE'?",
        ),
    ],
)
def test_unknown_settings_are_rejected_with_a_suggestion(record: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        from_json(RLConfig, record)


@pytest.mark.parametrize(
    ("record", "message"),
    [
        ({"steps": "3"}, "steps must be of type int, not '3'"),
        ({"steps": 3.0}, "steps must be of type int, not 3.0"),
        ({"steps": True}, "steps must be of type int, not True"),
        ({"train_on_truncated": 1}, "train_on_truncated must be of type bool, not 1"),
        ({"model": None}, "model must be of type str, not None"),
        ({"optimizer": {"lr": "1e-3"}}, "optimizer.lr must be of type float, not '1e-3'"),
        ({"optimizer": {"lr": True}}, "optimizer.lr must be of type float, not True"),
        ({"optimizer": {"betas": [0.9]}}, r"optimizer.betas must be a list of 2, not \[0.9\]"),
        ({"optimizer": 1e-3}, "optimizer must be a record of settings, not 0.001"),
        ({"evaluation": {"ks": 4}}, "evaluation.ks must be a list, not 4"),
        ({"evaluation": {"ks": [1, "4"]}}, "evaluation.ks.1 must be of type int, not '4'"),
        ({"horizon": [4, 8]}, r"horizon must be a record of settings, not \[4, 8\]"),
        ({"extra_worlds": [3]}, "extra_worlds.0 must be a record of settings, not 3"),
        ({"precision": ["bf16"]}, "precision can't be"),
    ],
)
def test_values_of_a_wrong_type_are_rejected(record: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        from_json(RLConfig, record)


def test_integers_are_accepted_for_floats() -> None:
    assert repr(from_json(RLConfig, {"optimizer": {"lr": 1}}).optimizer.lr) == "1.0"


@pytest.mark.parametrize(
    "name", ["tasks_per_step", "group_size", "epochs", "minibatches", "save_every", "keep_checkpoints", "threads"]
)  # fmt: skip
def test_counts_are_at_least_one(name: str) -> None:
    with pytest.raises(ValueError, match=f"{name} must be at least 1, not 0"):
        replace(RLConfig(), **{name: 0})
    with pytest.raises(ValueError, match=f"{name} must be at least 1, not 0"):
        from_json(RLConfig, {name: 0})


def test_pass_at_k_needs_k_samples() -> None:
    with pytest.raises(ValueError, match="pass@8 needs"):
        RLConfig(evaluation=Evaluation(samples=4, ks=(1, 8)))


def test_evaluation_during_training_rejects_the_test_split() -> None:
    with pytest.raises(ValueError, match=r"evaluation\.split is dev or train, not test"):
        Evaluation(split="test")
    assert Evaluation().split == "dev"
    with pytest.raises(ValueError, match="test_tasks >= 0"):
        Evaluation(test_tasks=-1)


def test_best_checkpoint_needs_evaluations_to_be_chosen_by() -> None:
    with pytest.raises(ValueError, match=r"selects among evaluations during training: set evaluation\.every"):
        Evaluation(load_best_model_at_end=True)
    evaluation = Evaluation(load_best_model_at_end=True, every=5)
    with pytest.raises(ValueError, match="doesn't apply to AgentEvol, which explores with the last model"):
        AgentEvolConfig(evaluation=evaluation)
    assert SFTConfig(evaluation=evaluation).evaluation.load_best_model_at_end


def test_invalid_scratch_model_sizes_are_rejected() -> None:
    with pytest.raises(ValueError, match="at least 259 entries, not 100"):
        Scratch(vocab=100)
    with pytest.raises(ValueError, match=r"hidden \(96\) must be a multiple of twice heads \(5\)"):
        Scratch(hidden=96, heads=5)
    with pytest.raises(ValueError, match="at least one episode, not 0"):
        Scratch(episodes=0)
    for name in ("hidden", "layers", "heads", "context"):
        with pytest.raises(ValueError, match=rf"scratch\.{name} must be at least 1, not 0"):
            Scratch(**{name: 0})


def test_the_warm_start_needs_a_learning_rate_above_0() -> None:
    for rate in (0.0, -1e-3):
        with pytest.raises(ValueError, match=r"warm_start\.lr must be above 0"):
            WarmStart(episodes=8, lr=rate)


def test_adaptive_horizon_requires_evaluations() -> None:
    with pytest.raises(ValueError, match=r"set evaluation.every, or horizon.patience 0"):
        RLConfig(horizon=AdaptiveHorizon())
    RLConfig(horizon=AdaptiveHorizon(patience=0))


def test_turns_per_step_needs_synchronous_rollouts() -> None:
    with pytest.raises(ValueError, match="turns_per_step must be at least 0"):
        RLConfig(turns_per_step=-1)
    with pytest.raises(ValueError, match="turns_per_step can't be combined with asynchronous rollouts"):
        RLConfig(turns_per_step=100, async_rollout=AsyncRollout(max_staleness=1))


def test_group_size_1_is_rejected_for_group_relative_advantages() -> None:
    with pytest.raises(ValueError, match="With group_size 1 no group has episodes to compare"):
        RLConfig(group_size=1, algorithm=PRESETS["grpo"])
    assert RLConfig(group_size=1, algorithm=PRESETS["ppo"]).group_size == 1


def test_minibatches_cannot_exceed_episodes() -> None:
    with pytest.raises(ValueError, match="6 episodes can't be split into 7 minibatches"):
        RLConfig(tasks_per_step=3, group_size=2, minibatches=7)


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: WorldConfig(weight=0.0), "weight of a world must be above 0"),
        (lambda: CriticModel(lr=0.0), "critic.lr must be above 0"),
        (lambda: Lora(rank=-1), "lora needs a rank from 0"),
        (lambda: Lora(dropout=1.0), "dropout from 0 to below 1"),
        (lambda: Lora(quantize="nf4"), "under an adapter, and without one all weights train: set lora.rank"),
        (lambda: SFTConfig(lora=QLORA), "nf4 is for reinforcement learning only: leave it off in SFT"),
        (lambda: DPOConfig(lora=QLORA), "nf4 is for reinforcement learning only"),
        (lambda: AgentEvolConfig(lora=QLORA), "nf4 is for reinforcement learning only"),
        (lambda: SFTConfig(optimizer=OFFLOAD), "optimizer.offload is for reinforcement learning only: leave it off"),
        (lambda: DPOConfig(optimizer=OFFLOAD), "optimizer.offload is for reinforcement learning only"),
        (lambda: AgentEvolConfig(optimizer=OFFLOAD), "optimizer.offload is for reinforcement learning only"),
        (
            lambda: SFTConfig(extra_worlds=(WorldConfig(),), data=ONE_TASK),
            r"^data.tasks 1 leaves some of the run's 2 environments .* set it to at least 2, or to 0 for any number",
        ),
        (lambda: AgentEvolConfig(extra_worlds=(WorldConfig(),), data=ONE_TASK), "data.tasks 1 leaves some"),
        (
            lambda: RLConfig(extra_worlds=(WorldConfig(),), imitation=SFTTerm(weight=0.1, data=ONE_TASK)),
            "^imitation.data.tasks 1 leaves some",
        ),
        (
            lambda: RLConfig(lora=QLORA, algorithm=PRESETS["ppo"], critic=CriticModel(where="separate")),
            "doesn't work with a separate critic.* set critic.where head",
        ),
        (
            lambda: RLConfig(lora=QLORA, engine=EngineSettings(kind="vllm-server", urls=("http://127.0.0.1:8100",))),
            r"which the servers of engine.urls don't have: let the run start a server",
        ),
        (lambda: Optimizer(warmup=-1), "warmup from 0"),
        (lambda: WorldConfig(weight=math.inf), "above 0 and finite, not inf"),
        (lambda: Optimizer(betas=(2.0, 0.9)), r"betas are from 0 to below 1, not \(2.0, 0.9\)"),
        (lambda: RLConfig(optimizer=Optimizer(lr=math.nan)), "optimizer.lr must be a number, not nan"),
        (lambda: RLConfig(optimizer=Optimizer(betas=(0.9, 0.9), clip_norm=math.nan)), "optimizer.clip_norm must be a"),
        (lambda: RLConfig(algorithm=Algorithm(clip=Clip(low=math.nan))), "algorithm.clip.low must be a number"),
        (lambda: Lora(targets=("q_proj",)), "set lora.rank"),
        (lambda: Lora(dropout=0.1), "set lora.rank"),
        (
            lambda: RLConfig(algorithm=replace(PRESETS["gigpo"], kl=KL(where="reward"))),
            "divided by its own standard deviation",
        ),
        (
            lambda: RLConfig(algorithm=replace(PRESETS["grpo"], kl=KL("reward"), groups=KEEP_FLAT)),
            "^In groups whose rewards are equal, a KL penalty .* or without a teacher algorithm.groups.zero_variance",
        ),
        *(
            (
                lambda estimator=estimator: RLConfig(algorithm=Algorithm(estimator, kl=KL("reward"))),
                "^Turns or episodes that are compared may have equal rewards in .* set algorithm.kl.where loss, or",
            )
            for estimator in (GroupRelative(returns="turn"), StepGroups(), NestedStepGroups(), GoalDistance())
        ),
        (lambda: EngineSettings(kind="vllm", devices="1"), "engine.devices gives GPUs to a server"),
        (lambda: RLConfig(extra_worlds=(WorldConfig(), WorldConfig(weight=math.nan))), "weight of a world"),
        (lambda: DataConfig(episodes=0), "data needs episodes of at least 1"),
        (lambda: DataConfig(min_score=1.5), "min_score from 0 to 1"),
        (lambda: SFTConfig(batch=0), "batch must be at least 1, not 0"),
        (lambda: SFTConfig(seed=-1), "seed must be at least 0, not -1"),
        (
            lambda: SFTConfig(save_minutes=-1.0),
            "save_minutes must be finite and at least 0 \\(off\\), not -1.0",
        ),
        (lambda: SFTConfig(save_minutes=math.inf), "not inf"),
    ],
)
def test_numbers_out_of_range_are_rejected(build: Callable[[], Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        build()


def test_kl_in_rewards_is_allowed_where_only_rewards_that_differ_are_scaled() -> None:
    for advantages in (GroupRelative(), GroupRelative(scale="none", returns="turn"), StepGroups(scale="none")):
        assert RLConfig(algorithm=Algorithm(advantages, kl=KL("reward"))).algorithm.advantages == advantages


def test_one_task_is_enough_where_experts_play_one_environment_or_none() -> None:
    two = (WorldConfig(),)
    assert SFTConfig(data=ONE_TASK).data == ONE_TASK
    assert SFTConfig(extra_worlds=two, data=replace(ONE_TASK, files=("episodes.jsonl",))).extra_worlds == two
    assert RLConfig(extra_worlds=two, imitation=SFTTerm(data=ONE_TASK)).imitation.data == ONE_TASK


def test_tiny_config_keeps_the_essentials_of_the_recipe() -> None:
    for recipe in RL_RECIPES.values():
        small = tiny(recipe.config)
        assert (small.model, small.steps, small.device) == ("scratch", 2, "cpu")
        for name in ("worlds", "sampler", "horizon", "critic", "lora", "epochs"):
            assert getattr(small, name) == getattr(recipe.config, name)
        assert replace(small.algorithm, groups=recipe.config.algorithm.groups) == recipe.config.algorithm


@pytest.mark.parametrize("preset", ["grpo", "dapo", "rloo"])
def test_tiny_config_allows_kl_in_rewards_and_a_number_of_turns(preset: str) -> None:
    algorithm = replace(PRESETS[preset], kl=KL("reward", "k1"))
    small = tiny(RLConfig(algorithm=algorithm, turns_per_step=640))
    # Groups without variance are kept, and a penalty in their rewards can't be scaled by its standard deviation.
    assert small.algorithm.groups.zero_variance == "keep"
    assert small.algorithm.kl == (algorithm.kl if preset == "rloo" else KL("loss", "k1"))
    assert small.turns_per_step == 0


def test_tiny_models_can_be_quantized() -> None:
    config = replace(RECIPES["textcraft-grpo"].config, lora=QLORA)
    assert tiny(config).scratch.hidden % 64 == 0  # a block


def test_critic_lr_of_recipes_is_at_least_the_policy_lr() -> None:
    for name, recipe in RL_RECIPES.items():
        assert recipe.config.critic.lr >= recipe.config.optimizer.lr, name


def test_recipes_for_real_models_have_agentgym_rl_settings() -> None:
    assert len(RL_RECIPES) >= 8
    for recipe in RL_RECIPES.values():
        config = recipe.config
        if config.model != "scratch":
            assert (config.algorithm.kl, config.algorithm.clip) == (KL("loss", "k3", 1e-3), Clip("ppo", 0.2, 0.2))
            assert config.algorithm.advantages == GroupRelative("mean", "std")
            assert (config.optimizer.lr, config.generation.temperature, config.epochs) == (1e-6, 1.0, 2)
