"""Checkpoints: what comes back from one is the learner that was saved, to the bit, or the one before it and a word."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from accelerate import Accelerator
from agentgym_eval.util.errors import UsageError
from agentgym_trainer.curriculum.horizon import Stage
from agentgym_trainer.curriculum.state import Best, TrainingState
from agentgym_trainer.models.policy import PolicyModel, ValueHead, separate_critic
from agentgym_trainer.run.checkpoint import Checkpoints, find_damage, seal
from agentgym_trainer.tokens.chat import Chat
from hypothesis import given, settings
from hypothesis import strategies as st
from peft import LoraConfig, get_peft_model
from toy_learner import files_up_to
from transformers import AutoModelForCausalLM, AutoTokenizer, get_scheduler

STAGE = Stage(10, 1, 3, "cut", {"coin/dev/1": [0.25, None, 1 / 3]}, 0.125)
PROGRESS = TrainingState(STAGE, 4, 321, {"coin/Coin-v0": {"coin/train/1": 1 / 3}}, Best(3, 0.5))


class Student:
    """A learner of its own making: like the real one it has an accelerator and an actor, and learns from chance."""

    def __init__(self, actor: PolicyModel) -> None:
        critic = list(actor.critic.parameters()) if actor.critic else []
        policy = [p for p in actor.policy.parameters() if p.requires_grad]
        groups = [{"params": policy, "lr": 1e-2}, {"params": critic, "lr": 3e-2}]
        optimizer = torch.optim.AdamW([group for group in groups if group["params"]])
        schedule = get_scheduler("cosine", optimizer, num_warmup_steps=2, num_training_steps=20)
        self.accelerator = Accelerator(cpu=True)
        self.actor, self.optimizer, self.schedule = self.accelerator.prepare(actor, optimizer, schedule)

    def update(self) -> float:
        """One step on random tokens, out of the process's own generator."""
        ids, position, before = torch.randint(3, 320, (12,)), torch.arange(12), torch.arange(11)
        scores = self.actor(ids, position, (12,), before, ids[1:])
        loss = -scores.logprobs_M.mean() + (0 if scores.values_M is None else (scores.values_M - 1).square().mean())
        self.accelerator.backward(loss)
        self.optimizer.step()
        self.schedule.step()
        self.optimizer.zero_grad()
        return loss.item()


@pytest.fixture
def student(new_model: Callable[..., Any]) -> Callable[..., Any]:
    """Makes learners that start alike; the same generators don't."""

    def make(kind: str = "plain") -> Any:
        model = new_model(3)
        critic = {"head": lambda: ValueHead(32), "separate": lambda: separate_critic(model)}.get(kind, lambda: None)()
        if kind == "lora":
            torch.manual_seed(5)
            model = get_peft_model(model, LoraConfig(r=2, target_modules=["q_proj", "v_proj"]))
        return Student(PolicyModel(model, critic=critic))

    return make


@pytest.fixture
def said() -> list[str]:
    return []


@pytest.fixture
def checkpoints(tmp_path: Path, said: list[str]) -> Checkpoints:
    return Checkpoints(tmp_path / "checkpoints", keep=2, say=said.append)


@pytest.fixture(scope="session")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A sealed folder of a few small files, one of them in a folder of its own."""
    folder = tmp_path_factory.mktemp("made") / "step-000001"
    (folder / "shards").mkdir(parents=True)
    for name, content in {"a.bin": b"abc" * 40, "progress.json": b"{}", "shards/b.bin": bytes(range(256))}.items():
        (folder / name).write_bytes(content)
    seal(folder)
    return folder


def _line_up(checkpoints: Checkpoints, made: Path, *steps: int) -> None:
    """Whole checkpoints of these steps."""
    for step in steps:
        shutil.copytree(made, checkpoints.folder / f"step-{step:06d}")


# What comes back.


@pytest.mark.parametrize("kind", ["plain", "head", "separate", "lora"])
def test_a_resumed_learner_goes_on_to_the_bit(
    kind: str, student: Callable[..., Any], chat: Chat, checkpoints: Checkpoints
) -> None:
    torch.manual_seed(1)
    one = student(kind)
    for _ in range(3):
        one.update()
    checkpoints.save(one, chat.tokenizer, PROGRESS)
    went_on = [one.update() for _ in range(3)]
    torch.manual_seed(2)
    other = student(kind)
    assert checkpoints.resume(other) == PROGRESS
    assert [other.update() for _ in range(3)] == went_on
    states = one.actor.state_dict(), other.actor.state_dict()
    assert all(torch.equal(states[0][name], states[1][name]) for name in states[0])
    assert [group["lr"] for group in one.optimizer.param_groups] == [g["lr"] for g in other.optimizer.param_groups]


def test_hugging_face_loads_a_checkpoint_as_it_is(
    student: Callable[..., Any], chat: Chat, checkpoints: Checkpoints
) -> None:
    one = student("head")
    one.update()
    path = checkpoints.save(one, chat.tokenizer, PROGRESS)
    loaded, info = AutoModelForCausalLM.from_pretrained(path, output_loading_info=True)
    assert not any(info.values())
    for name, weight in one.actor.policy.state_dict().items():
        assert torch.equal(weight, loaded.state_dict()[name])
    assert "packed" not in (path / "config.json").read_text()
    text = chat.tokenizer.apply_chat_template([{"role": "user", "content": "Flip 1"}], tokenize=False)
    assert AutoTokenizer.from_pretrained(path).encode(text) == chat.tokenizer.encode(text)


def test_hugging_face_loads_an_adapter_on_the_model_it_was_made_for(
    student: Callable[..., Any], new_model: Callable[..., Any], chat: Chat, checkpoints: Checkpoints, tmp_path: Path
) -> None:
    new_model(3).save_pretrained(tmp_path / "start")
    one = student("lora")
    one.actor.policy.peft_config["default"].base_model_name_or_path = str(tmp_path / "start")
    one.update()
    path = checkpoints.save(one, chat.tokenizer, PROGRESS)
    assert not list(path.glob("model*"))
    loaded = AutoModelForCausalLM.from_pretrained(path)
    ids = torch.arange(3, 9)[None]
    with torch.no_grad():
        torch.testing.assert_close(loaded(ids).logits, one.actor.policy.eval()(ids).logits)


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


def test_the_best_is_the_first_of_the_highest_success() -> None:
    progress = TrainingState(Stage(3))
    for step, success in enumerate([0.9, 0.2, None, 0.5, 0.5, 0.4]):
        progress = replace(progress, step=step).evaluated(success)
    assert progress.best == Best(3, 0.5)


# Damage.


def _cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def _flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


DAMAGE = {
    "cut": (lambda folder: _cut(folder / "shards" / "b.bin"), "shards/b.bin has 255 bytes instead of 256"),
    "flipped": (lambda folder: _flip(folder / "a.bin"), "a.bin has other content than was written"),
    "lost": (lambda folder: (folder / "progress.json").unlink(), "progress.json is missing"),
    "unsealed": (lambda folder: (folder / "manifest.json").unlink(), "manifest.json is missing"),
    "cut seal": (lambda folder: _cut(folder / "manifest.json") or _cut(folder / "manifest.json"), "it can't be read: "),
    "empty seal": (lambda folder: (folder / "manifest.json").write_text("[]"), "it can't be read: "),
}  # fmt: skip


@pytest.mark.parametrize("name", DAMAGE)
def test_a_damaged_checkpoint_is_passed_over_with_a_word(
    name: str, made: Path, checkpoints: Checkpoints, said: list[str]
) -> None:
    _line_up(checkpoints, made, 1, 2, 9, 10)
    damage, reason = DAMAGE[name]
    damage(checkpoints.folder / "step-000010")
    assert checkpoints.latest() == checkpoints.folder / "step-000009"
    (sentence,) = said
    assert sentence.startswith(f"Skipping checkpoint step-000010 ({reason}")
    assert sentence.endswith("): it is damaged.")


@settings(max_examples=30)
@given(place=st.floats(0, 1, exclude_max=True), bit=st.integers(0, 7))
def test_no_flipped_bit_goes_unseen(place: float, bit: int, made: Path) -> None:
    for name in ("a.bin", "shards/b.bin"):
        path = made / name
        whole = path.read_bytes()
        flipped = bytearray(whole)
        flipped[int(place * len(whole))] ^= 1 << bit
        path.write_bytes(flipped)
        try:
            assert find_damage(made) == f"{name} has other content than was written"
        finally:
            path.write_bytes(whole)
    assert find_damage(made) is None


def test_what_was_never_finished_is_passed_over_with_a_word(
    made: Path, checkpoints: Checkpoints, said: list[str]
) -> None:
    (checkpoints.folder / ".step-000003").mkdir(parents=True)
    assert checkpoints.latest() is None
    _line_up(checkpoints, made, 1, 2)
    assert checkpoints.latest() == checkpoints.folder / "step-000002"
    assert said == ["Skipping checkpoint step-000003: it was never finished."] * 2
    (checkpoints.folder / ".step-000001").mkdir()
    (checkpoints.folder / "step-12").mkdir()
    (checkpoints.folder / "step-000013.partial").mkdir()
    assert checkpoints.latest() == checkpoints.folder / "step-000002"
    assert len(said) == 3


def test_a_whole_one_that_has_not_got_its_name_yet_gets_it(
    made: Path, checkpoints: Checkpoints, said: list[str]
) -> None:
    _line_up(checkpoints, made, 1, 2)
    shutil.copytree(made, checkpoints.folder / ".step-000002")
    # As a process leaves it that was killed while it made room for the name.
    (checkpoints.folder / "step-000002" / "a.bin").unlink()
    assert checkpoints.latest() == checkpoints.folder / "step-000002"
    assert find_damage(checkpoints.folder / "step-000002") is None
    assert _names(checkpoints) == ["step-000001", "step-000002"]
    assert not said


def test_nothing_begins_anew_over_damaged_checkpoints(made: Path, checkpoints: Checkpoints) -> None:
    _line_up(checkpoints, made, 1, 2)
    _cut(checkpoints.folder / "step-000001" / "a.bin")
    _flip(checkpoints.folder / "step-000002" / "a.bin")
    with pytest.raises(UsageError) as error:
        checkpoints.latest()
    for part in (
        f"All checkpoints in {checkpoints.folder} are damaged: ",
        "step-000002 (a.bin has other content than was written); step-000001 (a.bin has 119 bytes instead of 120)",
        f"remove {checkpoints.folder} to train from the start.",
    ):
        assert part in str(error.value)
    assert len(list(checkpoints.folder.iterdir())) == 2


# What stays.


def _names(checkpoints: Checkpoints) -> list[str]:
    return sorted(path.name for path in checkpoints.folder.iterdir())


def test_the_last_ones_and_the_best_stay(student: Callable[..., Any], chat: Chat, checkpoints: Checkpoints) -> None:
    one, progress = student(), TrainingState(Stage(3))
    for step, success in enumerate([0.1, 0.5, 0.4, None, 0.6, 0.2], 1):
        one.update()
        progress = replace(progress, step=step).evaluated(success)
        checkpoints.save(one, chat.tokenizer, progress)
        assert progress.best
        assert checkpoints.best.resolve() == checkpoints.folder / f"step-{progress.best.step:06d}"
        assert Checkpoints.load(checkpoints.best, one) == replace(progress, step=progress.best.step, best=progress.best)
        if step == 4:
            assert _names(checkpoints) == ["best", "step-000002", "step-000003", "step-000004"]
    assert _names(checkpoints) == ["best", "step-000005", "step-000006"]


def test_what_a_killed_process_left_behind_is_tidied_up(
    student: Callable[..., Any], chat: Chat, checkpoints: Checkpoints
) -> None:
    one = student()
    roomy = Checkpoints(checkpoints.folder, keep=9, say=print)
    for step in (1, 2, 3, 4):
        roomy.save(one, chat.tokenizer, TrainingState(Stage(3), step, best=Best(1, 0.5)))
    checkpoints.best.unlink()
    (checkpoints.folder / ".best").symlink_to("step-000003")
    checkpoints.resume(one)
    assert _names(checkpoints) == ["best", "step-000001", "step-000003", "step-000004"]
    assert checkpoints.best.resolve().name == "step-000001"


def test_a_damaged_one_does_not_push_out_whole_ones_and_is_written_again(
    made: Path, student: Callable[..., Any], chat: Chat, checkpoints: Checkpoints
) -> None:
    one = student()
    for step in (1, 2):
        checkpoints.save(one, chat.tokenizer, TrainingState(Stage(3), step))
    _line_up(checkpoints, made, 4)
    _cut(checkpoints.folder / "step-000004" / "a.bin")
    assert checkpoints.resume(one) == TrainingState(Stage(3), 2)
    checkpoints.save(one, chat.tokenizer, TrainingState(Stage(3), 3))
    assert _names(checkpoints) == ["step-000002", "step-000003", "step-000004"]
    checkpoints.save(one, chat.tokenizer, TrainingState(Stage(3), 4))
    assert checkpoints.latest() == checkpoints.folder / "step-000004"
    assert _names(checkpoints) == ["step-000003", "step-000004"]


@pytest.mark.parametrize("share", [0, 0.01, 0.5, 0.999])
def test_a_full_disk_ends_in_a_sentence_and_harms_nothing(
    share: float, student: Callable[..., Any], chat: Chat, checkpoints: Checkpoints
) -> None:
    one = student("head")
    whole = checkpoints.save(one, chat.tokenizer, PROGRESS)
    biggest = max(path.stat().st_size for path in whole.iterdir())
    with files_up_to(int(biggest * share)), pytest.raises(OSError, match="can't be written") as error:
        checkpoints.save(one, chat.tokenizer, replace(PROGRESS, step=5))
    for part in (
        "step-000005 can't be written: ",
        "GiB free",
        "Other checkpoints are untouched (step-000004)",
        "--resume",
    ):
        assert part in str(error.value)
    assert _names(checkpoints) == ["step-000004"]
    assert checkpoints.latest() == whole
    # With room again the same learner goes on.
    assert find_damage(checkpoints.save(one, chat.tokenizer, replace(PROGRESS, step=5))) is None


def test_a_checkpoint_is_overdue_minutes_after_the_last_one(
    student: Callable[..., Any], chat: Chat, tmp_path: Path
) -> None:
    clock = iter((100.0, 219.0, 220.0, 300.0, 419.0, 420.0)).__next__
    checkpoints = Checkpoints(tmp_path / "made", keep=2, say=print, minutes=2, clock=clock)
    assert [checkpoints.overdue, checkpoints.overdue] == [False, True]
    checkpoints.save(student(), chat.tokenizer, TrainingState(Stage(1), 1))
    assert [checkpoints.overdue, checkpoints.overdue] == [False, True]
    assert not Checkpoints(tmp_path, keep=2, say=print, clock=iter((0.0, 1e9)).__next__).overdue, (
        "unless it is asked for"
    )
