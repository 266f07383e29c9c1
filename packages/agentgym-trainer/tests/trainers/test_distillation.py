"""Tests of on-policy distillation in RL: labels of an expert as a loss, a teacher's advantages, and what is refused."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from agentgym_eval.util.errors import UsageError
from agentgym_trainer.algorithms import RLOO
from agentgym_trainer.config import AsyncRollout, Distillation, EngineSettings, RLConfig, WorldConfig
from agentgym_trainer.models.policy import PolicyModel
from agentgym_trainer.models.scratch import train_tokenizer
from agentgym_trainer.rollout.environments import open_environments
from agentgym_trainer.run.folder import RunFolder
from agentgym_trainer.tokens.batch import make_batch
from agentgym_trainer.tokens.chat import Chat
from agentgym_trainer.tokens.labels import label_trajectory
from agentgym_trainer.trainers.auxiliary_loss import label_term
from agentgym_trainer.trainers.distillation import check_expert, check_tokenizers
from agentgym_trainer.trainers.rl_loop import RLLoop
from coin_configs import coin_config
from coin_loops import Build, collect_rollouts, grpo_with_group_filter, initial_state, loop_config, random_guesses
from coin_world import Coin
from toy_learner import TEXTS, coin_flags, make_learner, train_cli, update_on

KEEP = grpo_with_group_filter(zero_variance="keep")


def gradient(model: Any) -> torch.Tensor:
    return torch.cat([parameter.grad.flatten() for parameter in model.parameters()])


def test_the_gradient_of_labels_is_that_of_sft_on_the_same_tokens(build: Build, new_model: Callable[..., Any]) -> None:
    loop = build(loop_config(distillation=Distillation("oracle")), random_guesses())
    groups = collect_rollouts(loop, initial_state(loop)).own
    segments = [
        segment
        for group in groups
        for episode in group.usable
        for segment in label_trajectory(episode, loop.chat, longest=400).segments
    ]
    assert len(segments) == 36
    student = make_learner(new_model(init=1.0), clip_norm=1e9, micro_tokens=400)
    steps: list[torch.Tensor] = []
    student.optimizer.optimizer.register_step_pre_hook(lambda *_: steps.append(gradient(student.policy).clone()))
    term = label_term(groups, loop.chat, student, longest=400, weight=0.7)
    metrics = update_on(student, [], KEEP, auxiliary=[term])
    model = new_model(init=1.0).train()
    losses: list[torch.Tensor] = []
    for segment in segments:
        logp = torch.log_softmax(model(torch.tensor([segment.ids])).logits[0], -1)
        losses += [-logp[t - 1, segment.ids[t]] for t, in_loss in enumerate(segment.loss_mask) if in_loss]
    nll = torch.stack(losses).mean()
    (0.7 * nll).backward()
    torch.testing.assert_close(steps[0], gradient(model), atol=1e-5, rtol=1e-4)
    assert metrics["label/nll"] == pytest.approx(nll.item(), rel=1e-4)
    # The contexts of a group's episodes are prefixes of each other, and computed once.
    assert metrics["shared"] > 0.4


def test_the_weight_means_the_same_for_any_number_of_labels(build: Build, new_model: Callable[..., Any]) -> None:
    loop = build(loop_config(distillation=Distillation("oracle")), random_guesses())
    groups = collect_rollouts(loop, initial_state(loop)).own
    gradients: list[torch.Tensor] = []
    for repeated in (1, 3):
        several = [replace(group, number=group.number + 10 * n) for n in range(repeated) for group in groups]
        student = make_learner(new_model(init=1.0), clip_norm=1e9)
        student.optimizer.optimizer.register_step_pre_hook(
            lambda *_, student=student: gradients.append(gradient(student.policy).clone())
        )
        update_on(student, [], KEEP, auxiliary=[label_term(several, loop.chat, student, longest=400, weight=1.0)])
    torch.testing.assert_close(gradients[1], gradients[0], atol=1e-6, rtol=1e-4)


def take_steps(loop: RLLoop, count: int) -> list[dict[str, Any]]:
    """Take steps, and return the lines of the metrics."""
    state, lines = initial_state(loop), list[dict[str, Any]]()
    for _ in range(count):
        state = loop.step(state)
        lines.append((state.learned or {})["line"])
        state = replace(state, learned=None)
    return lines


@pytest.mark.long
def test_a_tiny_model_learns_the_experts_actions_without_rewards(build: Build) -> None:
    config = loop_config(
        distillation=Distillation("oracle", label_weight=1.0, reward_weight=0.0),
        world=WorldConfig("coin_world:coin/OneSided-v0", agent="bare", instructions=False),
        generation=replace(loop_config().generation, max_tokens=4),
        steps=24,
        tasks_per_step=2,
        group_size=2,
    )
    lines = take_steps(build(config), 24)
    assert lines[0]["label/agreement"] < 0.2
    assert lines[-1]["label/agreement"] > 0.8
    assert lines[-1]["label/nll"] < 0.1 * lines[0]["label/nll"]
    assert all(line["label/turns"] > 0 and line["label/errors"] == 0 for line in lines)
    assert all(line["tokens"]["labeled"] > 0 for line in lines)


def test_labels_of_groups_without_variance_train(build: Build) -> None:
    config = loop_config(
        algorithm=grpo_with_group_filter(zero_variance="drop"), distillation=Distillation("oracle"), minibatches=2
    )
    loop = build(config, lambda: "edge")
    (line,) = take_steps(loop, 1)
    assert line["trained"] == 0
    assert line["label/turns"] == 36
    assert (line["label/agreement"], line["optimizer_steps"]) == (0, 2)


def test_schedules_decay_the_weight_and_end_the_questions(build: Build) -> None:
    settings = Distillation("oracle", label_weight=0.4, schedule="linear", decay_steps=2)
    lines = take_steps(build(loop_config(distillation=settings, algorithm=KEEP, steps=4), random_guesses()), 3)
    assert [line.get("label/weight") for line in lines] == [0.4, 0.2, None]
    assert "labeled" not in lines[2]["tokens"]
    assert [Distillation(schedule="cosine").decay(step, 4) for step in (0, 2, 4, 9)] == pytest.approx([1, 0.5, 0, 0])
    assert [Distillation(schedule="linear").decay(step, 4) for step in (0, 1, 4)] == [1, 0.75, 0]
    assert Distillation().decay(3, 4) == 1


def test_a_label_weight_of_almost_nothing_changes_almost_nothing(build: Build) -> None:
    weights: list[torch.Tensor] = []
    for name, settings in (("with", Distillation("oracle", label_weight=1e-12)), ("without", Distillation())):
        loop = build(loop_config(distillation=settings, algorithm=KEEP), random_guesses(), name=name)
        take_steps(loop, 1)
        weights.append(torch.cat([p.detach().flatten() for p in loop.learner.policy.parameters()]))
    torch.testing.assert_close(weights[0], weights[1], atol=1e-6, rtol=0)


# A teacher model.


@pytest.mark.long
def test_a_student_approaches_its_teacher(build: Build, new_model: Callable[..., Any]) -> None:
    config = loop_config(
        distillation=Distillation(teacher="given", reward_weight=0.0), algorithm=KEEP, steps=25, tasks_per_step=8,
        generation=replace(loop_config().generation, max_tokens=4),
    )  # fmt: skip
    loop = build(config, teacher=PolicyModel(new_model(3, init=3.0).requires_grad_(False).eval()))
    lines = take_steps(loop, 25)
    # One sample of every token's divergence is noisy; the gradient itself is tested against enumeration.
    first, last = (sum(line["teacher/kl"] for line in some) for some in (lines[:8], lines[-8:]))
    assert last < 0.8 * first


def test_a_teacher_equal_to_the_policy_adds_nothing(build: Build, new_model: Callable[..., Any]) -> None:
    config = loop_config(distillation=Distillation(teacher="given"), algorithm=KEEP)
    loop = build(config, teacher=PolicyModel(new_model(init=1.0).requires_grad_(False).eval()))
    batch = loop.compute_logprobs(loop.make_batch(collect_rollouts(loop, initial_state(loop))))
    plain = loop.algorithm.compute_advantages(batch.tokens, loop.learner.total)
    found = loop.compute_advantages(batch, 0)
    torch.testing.assert_close(found.advantages_N, plain.advantages_N, atol=1e-4, rtol=0)
    assert found.metrics["teacher/kl"] == pytest.approx(0, abs=1e-5)


@pytest.mark.parametrize("max_staleness", [0, 1])
def test_groups_of_equal_rewards_train_as_long_as_the_teacher_has_a_weight(
    build: Build, new_model: Callable[..., Any], max_staleness: int
) -> None:
    config = loop_config(
        distillation=Distillation(teacher="given", schedule="linear", decay_steps=2),
        algorithm=grpo_with_group_filter(zero_variance="drop"),
        async_rollout=AsyncRollout(max_staleness),
        engine=EngineSettings(tolerance=100.0),  # a script isn't the policy
        steps=4,
    )
    loop = build(config, lambda: "edge", teacher=PolicyModel(new_model(3).requires_grad_(False).eval()))
    assert [bool(line["trained"]) for line in take_steps(loop, 4)] == [True, True, False, False]
    loop.collector.close()


def test_a_learner_without_a_teacher_has_no_teacher_logprobs(new_model: Callable[..., Any]) -> None:
    with pytest.raises(ValueError, match="made without"):
        make_learner(new_model()).teacher_logprobs(make_batch([]))


def test_a_teacher_with_another_tokenizer_is_refused(chat: Chat) -> None:
    check_tokenizers("same", chat, Chat(train_tokenizer(TEXTS, 320)))
    other = Chat(train_tokenizer(["craft a wooden pickaxe"] * 9, 300))
    with pytest.raises(UsageError, match=r"^The teacher big has another tokenizer.* differ, such as .*expert hf:big"):
        check_tokenizers("big", chat, other)


# Whole runs.


@pytest.mark.long
def test_runs_learn_from_named_policies_and_teachers(tmp_path: Path) -> None:
    first, second = RunFolder(tmp_path / "first"), RunFolder(tmp_path / "second")
    short = ("--steps", "2", "--evaluation.every", "0")
    assert train_cli(coin_flags(first.path, *short, "--distillation.expert", "plugin_examples:Tails")) == 0
    assert all(line["label/turns"] for line in first.read_metrics())
    teacher = ("--model", str(first.model), "--warm-start.episodes", "0", "--distillation.teacher", str(first.model))
    expert = ("--distillation.expert", f"hf:{first.model}", "--async-rollout.max-staleness", "1")
    assert train_cli(coin_flags(second.path, *short, *teacher, *expert)) == 0
    lines = list(second.read_metrics())
    assert all(line["label/turns"] and abs(line["teacher/kl"]) < 1 for line in lines)


@pytest.mark.long
def test_policies_and_models_that_can_not_be_used_end_the_command(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    short = ("--steps", "1", "--evaluation.every", "0")
    assert train_cli(coin_flags(tmp_path / "run", *short, "--distillation.expert", "random")) == 2
    assert "set --distillation.expert oracle" in " ".join(capsys.readouterr().err.split())
    assert train_cli(coin_flags(tmp_path / "other", *short, "--distillation.expert", "orcale")) == 2
    assert "There is no policy 'orcale'" in capsys.readouterr().err
    monkeypatch.delenv("OPENAI_BASE_URL", raising=False)
    assert train_cli(coin_flags(tmp_path / "openai", *short, "--distillation.expert", "openai:big")) == 2
    assert "OPENAI_BASE_URL is not set" in " ".join(capsys.readouterr().err.split())
    assert train_cli(coin_flags(tmp_path / "none", *short, "--distillation.teacher", str(tmp_path / "no"))) == 2


# Refused settings.


@pytest.mark.parametrize(
    ("name", "value", "sentence"),
    [
        ("oracle_replans", False, r"any state, and that of coin/Coin-v0 follows a path"),
        ("has_oracle", False, r"coin/Coin-v0 has no expert, so its turns can't be labeled: .* hf:PATH"),
    ],
)
def test_environments_without_a_suitable_expert_are_refused(
    monkeypatch: pytest.MonkeyPatch, name: str, value: bool, sentence: str
) -> None:
    config = coin_config(distillation=Distillation("oracle"))
    with open_environments(config) as worlds:
        check_expert(config, worlds)
        monkeypatch.setattr(Coin, name, value)
        with pytest.raises(UsageError, match=sentence):
            check_expert(config, worlds)
        check_expert(coin_config(), worlds)


def test_experts_that_the_agent_cannot_express_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    config = coin_config(distillation=Distillation("oracle"))
    with open_environments(config) as worlds:
        monkeypatch.setattr(worlds[0].wrapped, "format", lambda *_: 1 / 0)
        with pytest.raises(UsageError, match=r"can't reply as the agent bare in coin/train/0 .*ZeroDivisionError"):
            check_expert(config, worlds)


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"fraction": 0.0}, "a fraction above 0"),
        ({"expert": "oracle", "label_weight": 0.0}, r"label_weight above 0"),
        ({"teacher": "big", "teacher_weight": 0.0}, r"teacher_weight above 0"),
        ({"teacher_weight": -1.0}, "finite weights from 0"),
        ({"reward_weight": 0.0}, r"set distillation\.expert"),
        ({"decay_steps": 5}, r"schedule linear"),
    ],
)
def test_settings_are_checked(settings: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        Distillation(**settings)


def test_settings_are_checked_with_those_of_the_run() -> None:
    with pytest.raises(ValueError, match=r"which a harness doesn't have"):
        RLConfig(harness="some:harness", distillation=Distillation("oracle"))
    with pytest.raises(ValueError, match=r"leaves out a KL penalty in the reward: set algorithm\.kl\.where loss"):
        RLConfig(algorithm=RLOO, distillation=Distillation("oracle", reward_weight=0.0))
