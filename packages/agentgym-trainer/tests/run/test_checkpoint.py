"""Tests of checkpoints: resuming bit for bit, detecting damage, retention, and full disks."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from agentgym_eval.util.errors import UsageError
from agentgym_trainer.curriculum.horizon import Stage
from agentgym_trainer.curriculum.state import Best, TrainingState
from agentgym_trainer.run.checkpoint import Checkpoints
from agentgym_trainer.run.manifest import find_damage, seal
from agentgym_trainer.tokens.chat import Chat
from hypothesis import given, settings
from hypothesis import strategies as st
from toy_learner import limit_file_size
from transformers import AutoModelForCausalLM, AutoTokenizer

STAGE = Stage(10, 1, 3, "cut", {"coin/dev/1": [0.25, None, 1 / 3]}, 0.125)
PROGRESS = TrainingState(STAGE, 4, 321, {"coin/Coin-v0": {"coin/train/1": 1 / 3}}, Best(3, 0.5))


@pytest.fixture
def messages() -> list[str]:
    return []


@pytest.fixture
def checkpoints(tmp_path: Path, messages: list[str]) -> Checkpoints:
    return Checkpoints(tmp_path / "checkpoints", keep=2, say=messages.append)


@pytest.fixture(scope="session")
def sealed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A sealed folder with a few small files, one of them in a subfolder."""
    folder = tmp_path_factory.mktemp("made") / "step-000001"
    (folder / "shards").mkdir(parents=True)
    for name, content in {"a.bin": b"abc" * 40, "progress.json": b"{}", "shards/b.bin": bytes(range(256))}.items():
        (folder / name).write_bytes(content)
    seal(folder)
    return folder


def _copy_sealed(checkpoints: Checkpoints, sealed: Path, *steps: int) -> None:
    """Create intact checkpoints of these steps."""
    for step in steps:
        shutil.copytree(sealed, checkpoints.folder / f"step-{step:06d}")


# Resuming.


@pytest.mark.parametrize("kind", ["plain", "head", "separate", "lora"])
def test_resumed_learner_continues_bit_for_bit(
    kind: str, make_learner: Callable[..., Any], chat: Chat, checkpoints: Checkpoints
) -> None:
    torch.manual_seed(1)
    learner = make_learner(kind)
    for _ in range(3):
        learner.update()
    checkpoints.save(learner, chat.tokenizer, PROGRESS)
    expected_losses = [learner.update() for _ in range(3)]
    torch.manual_seed(2)
    other = make_learner(kind)
    assert checkpoints.resume(other) == PROGRESS
    assert [other.update() for _ in range(3)] == expected_losses
    states = learner.actor.state_dict(), other.actor.state_dict()
    assert all(torch.equal(states[0][name], states[1][name]) for name in states[0])
    assert [group["lr"] for group in learner.optimizer.param_groups] == [g["lr"] for g in other.optimizer.param_groups]


def test_transformers_loads_a_checkpoint(
    make_learner: Callable[..., Any], chat: Chat, checkpoints: Checkpoints
) -> None:
    learner = make_learner("head")
    learner.update()
    path = checkpoints.save(learner, chat.tokenizer, PROGRESS)
    loaded, info = AutoModelForCausalLM.from_pretrained(path, output_loading_info=True)
    assert not any(info.values())
    for name, weight in learner.actor.policy.state_dict().items():
        assert torch.equal(weight, loaded.state_dict()[name])
    assert "packed" not in (path / "config.json").read_text()
    text = chat.tokenizer.apply_chat_template([{"role": "user", "content": "Flip 1"}], tokenize=False)
    assert AutoTokenizer.from_pretrained(path).encode(text) == chat.tokenizer.encode(text)


def test_transformers_loads_an_adapter_with_its_base_model(
    make_learner: Callable[..., Any],
    new_model: Callable[..., Any],
    chat: Chat,
    checkpoints: Checkpoints,
    tmp_path: Path,
) -> None:
    new_model(3).save_pretrained(tmp_path / "start")
    learner = make_learner("lora")
    learner.actor.policy.peft_config["default"].base_model_name_or_path = str(tmp_path / "start")
    learner.update()
    path = checkpoints.save(learner, chat.tokenizer, PROGRESS)
    assert not list(path.glob("model*"))
    loaded = AutoModelForCausalLM.from_pretrained(path)
    ids = torch.arange(3, 9)[None]
    with torch.no_grad():
        torch.testing.assert_close(loaded(ids).logits, learner.actor.policy.eval()(ids).logits)


def test_saving_an_adapter_does_not_ask_the_hub_for_its_base_model(
    make_learner: Callable[..., Any], chat: Chat, checkpoints: Checkpoints, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Any] = []
    monkeypatch.setattr("peft.utils.save_and_load.file_exists", lambda *given, **_: asked.append(given))
    learner = make_learner("lora")
    learner.actor.policy.peft_config["default"].base_model_name_or_path = "someone/model"
    checkpoints.save(learner, chat.tokenizer, PROGRESS)
    assert not asked


@settings(max_examples=30)
@given(
    turns=st.integers(1, 99),
    success=st.none() | st.floats(0, 1),
    step=st.integers(0, 10**7),
    sampler=st.dictionaries(st.text(), st.floats(0, 1), max_size=3),
    best=st.none() | st.builds(Best, st.integers(1, 99), st.floats(0, 1)),
)
def test_progress_survives_json(
    turns: int, success: float | None, step: int, sampler: dict[str, Any], best: Best | None
) -> None:
    progress = TrainingState(Stage(turns, success={"coin/dev/1": [success]}), step, 3 * step, sampler, best)
    assert TrainingState.from_json(json.loads(json.dumps(progress.to_json()))) == progress


def test_best_is_the_first_step_with_the_highest_success() -> None:
    progress = TrainingState(Stage(3))
    for step, success in enumerate([0.9, 0.2, None, 0.5, 0.5, 0.4]):
        progress = replace(progress, step=step).evaluated(success)
    assert progress.best == Best(3, 0.5)


# Damage.


def _truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def _flip_bit(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


DAMAGE = {
    "truncated": (lambda folder: _truncate(folder / "shards" / "b.bin"), "shards/b.bin has 255 bytes instead of 256"),
    "flipped bit": (lambda folder: _flip_bit(folder / "a.bin"), "a.bin has other content than was written"),
    "missing": (lambda folder: (folder / "progress.json").unlink(), "progress.json is missing"),
    "no manifest": (lambda folder: (folder / "manifest.json").unlink(), "manifest.json is missing"),
    "truncated manifest": (
        lambda folder: _truncate(folder / "manifest.json") or _truncate(folder / "manifest.json"), "it can't be read: ",
    ),
    "invalid manifest": (lambda folder: (folder / "manifest.json").write_text("[]"), "it can't be read: "),
}  # fmt: skip


@pytest.mark.parametrize("name", DAMAGE)
def test_damaged_checkpoint_is_skipped_with_a_message(
    name: str, sealed: Path, checkpoints: Checkpoints, messages: list[str]
) -> None:
    _copy_sealed(checkpoints, sealed, 1, 2, 9, 10)
    damage, reason = DAMAGE[name]
    damage(checkpoints.folder / "step-000010")
    assert checkpoints.latest() == checkpoints.folder / "step-000009"
    (message,) = messages
    assert message.startswith(f"Skipping checkpoint step-000010 ({reason}")
    assert message.endswith("): it is damaged.")


@settings(max_examples=30)
@given(place=st.floats(0, 1, exclude_max=True), bit=st.integers(0, 7))
def test_any_flipped_bit_is_detected(place: float, bit: int, sealed: Path) -> None:
    for name in ("a.bin", "shards/b.bin"):
        path = sealed / name
        content = path.read_bytes()
        flipped = bytearray(content)
        flipped[int(place * len(content))] ^= 1 << bit
        path.write_bytes(flipped)
        try:
            assert find_damage(sealed) == f"{name} has other content than was written"
        finally:
            path.write_bytes(content)
    assert find_damage(sealed) is None


def test_unfinished_checkpoint_is_skipped_with_a_message(
    sealed: Path, checkpoints: Checkpoints, messages: list[str]
) -> None:
    (checkpoints.folder / ".step-000003").mkdir(parents=True)
    assert checkpoints.latest() is None
    _copy_sealed(checkpoints, sealed, 1, 2)
    assert checkpoints.latest() == checkpoints.folder / "step-000002"
    assert messages == ["Skipping checkpoint step-000003: it was never finished."] * 2
    (checkpoints.folder / ".step-000001").mkdir()
    (checkpoints.folder / "step-12").mkdir()
    (checkpoints.folder / "step-000013.partial").mkdir()
    assert checkpoints.latest() == checkpoints.folder / "step-000002"
    assert len(messages) == 3


def test_intact_checkpoint_with_a_temporary_name_is_renamed(
    sealed: Path, checkpoints: Checkpoints, messages: list[str]
) -> None:
    _copy_sealed(checkpoints, sealed, 1, 2)
    shutil.copytree(sealed, checkpoints.folder / ".step-000002")
    # As if a process was killed while it removed the previous checkpoint of that name.
    (checkpoints.folder / "step-000002" / "a.bin").unlink()
    assert checkpoints.latest() == checkpoints.folder / "step-000002"
    assert find_damage(checkpoints.folder / "step-000002") is None
    assert _names(checkpoints) == ["step-000001", "step-000002"]
    assert not messages


def test_only_damaged_checkpoints_raise_an_error(sealed: Path, checkpoints: Checkpoints) -> None:
    _copy_sealed(checkpoints, sealed, 1, 2)
    _truncate(checkpoints.folder / "step-000001" / "a.bin")
    _flip_bit(checkpoints.folder / "step-000002" / "a.bin")
    with pytest.raises(UsageError) as error:
        checkpoints.latest()
    for part in (
        f"All checkpoints in {checkpoints.folder} are damaged: ",
        "step-000002 (a.bin has other content than was written); step-000001 (a.bin has 119 bytes instead of 120)",
        f"remove {checkpoints.folder} to train from the start.",
    ):
        assert part in str(error.value)
    assert len(list(checkpoints.folder.iterdir())) == 2


# Retention.


def _names(checkpoints: Checkpoints) -> list[str]:
    return sorted(path.name for path in checkpoints.folder.iterdir())


def test_last_and_best_checkpoints_are_kept(
    make_learner: Callable[..., Any], chat: Chat, checkpoints: Checkpoints
) -> None:
    learner, progress = make_learner(), TrainingState(Stage(3))
    for step, success in enumerate([0.1, 0.5, 0.4, None, 0.6, 0.2], 1):
        learner.update()
        progress = replace(progress, step=step).evaluated(success)
        checkpoints.save(learner, chat.tokenizer, progress)
        assert progress.best
        assert checkpoints.best.resolve() == checkpoints.folder / f"step-{progress.best.step:06d}"
        assert Checkpoints.load(checkpoints.best, learner) == replace(
            progress, step=progress.best.step, best=progress.best
        )
        if step == 4:
            assert _names(checkpoints) == ["best", "step-000002", "step-000003", "step-000004"]
    assert _names(checkpoints) == ["best", "step-000005", "step-000006"]


def test_resume_cleans_up_after_a_killed_process(
    make_learner: Callable[..., Any], chat: Chat, checkpoints: Checkpoints
) -> None:
    learner = make_learner()
    keeping_all = Checkpoints(checkpoints.folder, keep=9, say=print)
    for step in (1, 2, 3, 4):
        keeping_all.save(learner, chat.tokenizer, TrainingState(Stage(3), step, best=Best(1, 0.5)))
    checkpoints.best.unlink()
    (checkpoints.folder / ".best").symlink_to("step-000003")
    checkpoints.resume(learner)
    assert _names(checkpoints) == ["best", "step-000001", "step-000003", "step-000004"]
    assert checkpoints.best.resolve().name == "step-000001"


def test_damaged_checkpoint_is_rewritten_and_displaces_none(
    sealed: Path, make_learner: Callable[..., Any], chat: Chat, checkpoints: Checkpoints
) -> None:
    learner = make_learner()
    for step in (1, 2):
        checkpoints.save(learner, chat.tokenizer, TrainingState(Stage(3), step))
    _copy_sealed(checkpoints, sealed, 4)
    _truncate(checkpoints.folder / "step-000004" / "a.bin")
    assert checkpoints.resume(learner) == TrainingState(Stage(3), 2)
    checkpoints.save(learner, chat.tokenizer, TrainingState(Stage(3), 3))
    assert _names(checkpoints) == ["step-000002", "step-000003", "step-000004"]
    checkpoints.save(learner, chat.tokenizer, TrainingState(Stage(3), 4))
    assert checkpoints.latest() == checkpoints.folder / "step-000004"
    assert _names(checkpoints) == ["step-000003", "step-000004"]


@pytest.mark.parametrize("share", [0, 0.01, 0.5, 0.999])
def test_full_disk_raises_and_keeps_other_checkpoints(
    share: float, make_learner: Callable[..., Any], chat: Chat, checkpoints: Checkpoints
) -> None:
    learner = make_learner("head")
    existing = checkpoints.save(learner, chat.tokenizer, PROGRESS)
    biggest = max(path.stat().st_size for path in existing.iterdir())
    with limit_file_size(int(biggest * share)), pytest.raises(OSError, match="can't be written") as error:
        checkpoints.save(learner, chat.tokenizer, replace(PROGRESS, step=5))
    for part in (
        "step-000005 can't be written: ",
        "doesn't allow files of this size",
        "Other checkpoints are untouched (step-000004)",
        "--resume",
    ):
        assert part in str(error.value)
    assert _names(checkpoints) == ["step-000004"]
    assert checkpoints.latest() == existing
    # Once there is space, the same learner can be saved.
    assert find_damage(checkpoints.save(learner, chat.tokenizer, replace(PROGRESS, step=5))) is None


def test_checkpoint_is_overdue_minutes_after_the_last(
    make_learner: Callable[..., Any], chat: Chat, tmp_path: Path
) -> None:
    clock = iter((100.0, 219.0, 220.0, 300.0, 419.0, 420.0)).__next__
    checkpoints = Checkpoints(tmp_path / "made", keep=2, say=print, minutes=2, clock=clock)
    assert [checkpoints.overdue, checkpoints.overdue] == [False, True]
    checkpoints.save(make_learner(), chat.tokenizer, TrainingState(Stage(1), 1))
    assert [checkpoints.overdue, checkpoints.overdue] == [False, True]
    assert not Checkpoints(tmp_path, keep=2, say=print, clock=iter((0.0, 1e9)).__next__).overdue, (
        "never overdue without `minutes`"
    )
