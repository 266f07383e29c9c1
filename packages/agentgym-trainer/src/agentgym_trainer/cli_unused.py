"""Flags of `train` that have no effect, and options of a recipe that are not used, because of other settings."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from agentgym_envs.cli.flags import given

from agentgym_trainer.config import BaseConfig, DataConfig, DPOConfig, OfflineConfig, RLConfig

_Rule = tuple[str, bool, str]
"""The beginning of flags, whether they have an effect, and what they would need."""


def unused_flags(config: BaseConfig, flags: Sequence[str]) -> Iterator[str]:
    """Yield a sentence for each flag of the command line that has no effect in this configuration."""
    rules = [*_of_all(config), *_of_rl(config), *_of_offline(config)]
    names = (argument[2:].partition("=")[0].replace("_", "-") for argument in flags if argument.startswith("--"))
    for flag in dict.fromkeys(names):
        for beginning, used, needed in rules:
            if not used and (flag == beginning or (beginning.endswith(".") and flag.startswith(beginning))):
                yield f"--{flag} has no effect: that needs {needed}."
                break


def dropped_options(recipe: BaseConfig, parsed: BaseConfig, flags: Sequence[str]) -> Iterator[str]:
    """Yield a sentence for each replaced environment whose options in the recipe were removed without replacement."""
    paths = ["world", *(f"extra_worlds.{i}" for i in range(len(recipe.extra_worlds)))]
    for path, before, after in zip(paths, recipe.worlds, parsed.worlds, strict=False):
        if before.options and not after.options and given(flags, f"--{path}.options") is None:
            yield (
                f"The recipe's options {' '.join(before.options)} are for {before.env} and are not used with "
                f"{after.env}; set options with --{path}.options KEY=VALUE ..."
            )


def _of_all(config: BaseConfig) -> Iterator[_Rule]:
    yield "lora.alpha", config.lora.rank > 0, "an adapter (--lora.rank)"
    yield "scratch.", config.model == "scratch", "--model scratch"
    yield "project", bool(config.track), "an experiment tracker (--track)"
    yield "evaluation.test-tasks", config.evaluation.test, "a test (--evaluation.test)"
    yield "engine.memory", config.engine.kind != "transformers", "--engine.kind vllm or vllm-server"


def _of_rl(config: BaseConfig) -> Iterator[_Rule]:
    if not isinstance(config, RLConfig):
        return
    algorithm, imitation, distillation = config.algorithm, config.imitation, config.distillation
    kl, clip, groups, warm = algorithm.kl, algorithm.clip, algorithm.groups, config.warm_start
    penalty = "a penalty on the divergence from the reference (--algorithm.kl.where loss)"
    yield from ((f"algorithm.kl.{name}", kl.where != "off", penalty) for name in ("weight", "estimator", "clamp"))
    yield "algorithm.kl.clamp", kl.estimator == "k3", "--algorithm.kl.estimator k3"
    yield "algorithm.clip.dual", clip.kind != "cispo", "another --algorithm.clip.kind than cispo"
    for name in ("low", "high"):
        yield f"algorithm.clip.{name}", clip.kind != "none", "a --algorithm.clip.kind other than none"
    yield "algorithm.aggregation.length", algorithm.aggregation.kind == "fixed", "--algorithm.aggregation.kind fixed"
    resampled = "resample" in (groups.has_failures, groups.single, groups.zero_variance)
    yield "algorithm.groups.rounds", resampled, "groups to resample (--algorithm.groups.zero-variance resample)"
    for name in ("algorithm.critic.", "critic."):
        yield name, algorithm.needs_critic, "an algorithm with a critic, such as ppo"
    for name in ("imitation.data.", "imitation.batch"):
        yield name, imitation.weight > 0, "demonstrations in the loss (--imitation.weight)"
    yield from _of_data(imitation.data, "imitation.data")
    yield "distillation.teacher-weight", bool(distillation.teacher), "a --distillation.teacher"
    for name in ("distillation.label-weight", "distillation.fraction"):
        yield name, bool(distillation.expert), "a --distillation.expert"
    yield "rollouts.tokens", config.rollouts.every > 0, "saved rollouts (--rollouts.every)"
    for name in ("harness-timeout", "harness-concurrency"):
        yield name, bool(config.harness or config.harness_command), "a --harness or --harness-command"
    teaches = bool(distillation.teacher or distillation.expert)
    yield "distillation.schedule", teaches, "a --distillation.teacher or --distillation.expert"
    stale = config.async_rollout.max_staleness > 0
    yield "async-rollout.on-stale", stale, "asynchronous rollouts (--async-rollout.max-staleness)"
    demonstrations = "demonstrations to begin with (--warm-start.episodes)"
    for name in ("lr", "imitate-noise", "imitate-labels", "rename", "copies", "epochs", "batch"):
        yield f"warm-start.{name}", warm.episodes > 0, demonstrations
    yield "warm-start.imitate-noise", warm.noise > 0, "random actions (--warm-start.noise)"
    # The texts that a new tokenizer is made for are those of a noisy expert.
    yield "warm-start.noise", warm.episodes > 0 or config.model == "scratch", demonstrations
    for name in ("episodes", "beta", "epochs"):
        yield f"warm-start.dagger.{name}", warm.dagger.rounds > 0, "rounds of DAgger (--warm-start.dagger.rounds)"
    corrected = config.async_rollout.corrected(algorithm).correction.level != "off"
    for name in ("mode", "bound"):
        yield f"algorithm.correction.{name}", corrected, "an --algorithm.correction.level"
    yield (
        "async-rollout.correction",
        stale and algorithm.correction.level == "off",
        "asynchronous rollouts (--async-rollout.max-staleness) and --algorithm.correction.level off",
    )
    yield (
        "algorithm.groups.zero-variance",
        not (distillation.teacher and distillation.decay(config.steps - 1, config.steps)),
        "no teacher, which teaches all groups",
    )
    yield "lora.dropout", False, "training on episodes: in reinforcement learning, it would make ratios noisy"


def _of_offline(config: BaseConfig) -> Iterator[_Rule]:
    if not isinstance(config, OfflineConfig):
        return
    yield from _of_data(config.data, "data", scratch=config.model == "scratch")
    if isinstance(config, DPOConfig):
        yield "data.tasks", False, "SFT or AgentEvol; DPO plays --data.episodes / --samples tasks"
        yield "data.imitate-noise", False, "SFT or AgentEvol; DPO compares all actions"
        yield "data.noise", config.player == "expert", "--player expert"
        yield "lora.dropout", False, "SFT or AgentEvol; TRL's DPO trains without dropout"


def _of_data(data: DataConfig, path: str, *, scratch: bool = False) -> Iterator[_Rule]:
    """Yield the rules for flags of the data at `path`; `scratch`: whether it makes a tokenizer, too."""
    played = not data.files
    for name in ("tasks", "noise", "episodes"):
        used = played or (name == "noise" and scratch)
        yield f"{path}.{name}", used, f"demonstrations that are played, and not those of --{path}.files"
    yield f"{path}.score", not played, f"conversations without scores in --{path}.files"
    random = f"random actions (--{path}.noise, or --{path}.files with some)"
    yield f"{path}.imitate-noise", data.noise > 0 or not played, random
