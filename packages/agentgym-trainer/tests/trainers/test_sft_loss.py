"""What supervised fine-tuning learns from, token by token, and that TRL's loss of it is the textbook's."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from agentgym_envs import Episode, Reply, Turn
from agentgym_trainer.config import DataConfig, Generation, Optimizer, SFTConfig
from agentgym_trainer.config.scratch import Merges
from agentgym_trainer.models.load import with_lora
from agentgym_trainer.models.scratch import train_tokenizer
from agentgym_trainer.run.folder import RunFolder
from agentgym_trainer.tokens.chat import Chat
from agentgym_trainer.tokens.trajectory import Trimming
from agentgym_trainer.trainers.sft import IGNORED, Example, Imitator, encode_examples, make_imitator
from agentgym_trainer.trainers.training_data import good_enough
from agentgym_trainer.trainers.trl_run import TrainingSetup
from hypothesis import given, settings
from hypothesis import strategies as st
from toy_learner import episode, sft_flags, train_cli

LONGEST = 512


def recorded(*exchanges: tuple[str, str], loss: Sequence[bool] = ()) -> Episode:
    """An episode that somebody recorded: observations and replies, some of which are not to be learnt from."""
    turns = tuple(
        Turn(seen, Reply(said), said, valid=True, reward=0.0, state_key="", loss=learnt)
        for (seen, said), learnt in zip(exchanges, loss or [True] * len(exchanges), strict=True)
    )
    return replace(episode([]), turns=turns, instructions="Say heads or tails.", final_observation="Over.")


EPISODES = (
    recorded(("Flip 1.", "heads"), ("Flip 2. <|im_end|>", "tails"), ("Flip 3.", "heads or tails?")),
    recorded(("Flip 1.", "heads"), ("Flip 2.", "<|im_end|>"), loss=(True, True)),
    recorded(("Flip 1.", "tails")),
)


def stretches(example: Example) -> list[list[int]]:
    """What is learnt from, run by run."""
    runs: list[list[int]] = [[]]
    for label in example.labels:
        if label != IGNORED:
            runs[-1].append(label)
        elif runs[-1]:
            runs.append([])
    return [run for run in runs if run]


@pytest.mark.parametrize("recording", EPISODES)
def test_every_token_that_was_said_is_a_label_and_no_other(chat: Chat, recording: Episode) -> None:
    (example,) = encode_examples(chat, [recording], Trimming(LONGEST))
    assert len(example.ids) == len(example.labels)
    assert all(label in (IGNORED, token) for token, label in zip(example.ids, example.labels, strict=True))
    assert stretches(example) == [chat.reply_ids(turn.reply.text) for turn in recording.turns]
    # The rest is what a conversation consists of besides.
    whole = chat.tokenizer.decode(list(example.ids))
    for turn in recording.turns:
        assert turn.observation in whole


def test_turns_without_loss_are_read_and_not_learnt_from(chat: Chat) -> None:
    exchanges = (("Flip 1.", "heads"), ("Flip 2.", "tails"), ("Flip 3.", "heads"))
    (whole,) = encode_examples(chat, [recorded(*exchanges)], Trimming(LONGEST))
    (some,) = encode_examples(chat, [recorded(*exchanges, loss=(False, True, True))], Trimming(LONGEST))
    assert some.ids == whole.ids
    assert stretches(some) == stretches(whole)[1:]
    assert list(encode_examples(chat, [recorded(*exchanges, loss=(False,) * 3)], Trimming(LONGEST))) == []


def test_what_is_too_long_ends_with_a_turn(chat: Chat) -> None:
    (whole,) = encode_examples(chat, EPISODES[:1], Trimming(LONGEST))
    ends = [i + 1 for i, label in enumerate(whole.labels) if label == chat.end_id]
    for longest in range(1, len(whole.ids) + 1):
        found = list(encode_examples(chat, EPISODES[:1], Trimming(longest)))
        end = max((end for end in ends if end <= longest), default=0)
        assert [example.ids for example in found] == ([whole.ids[:end]] if end else [])


def test_how_much_of_what_was_said_a_budget_loses_is_counted(chat: Chat) -> None:
    (whole,) = encode_examples(chat, EPISODES[:1], Trimming(LONGEST))
    replies = [len(chat.reply_ids(turn.reply.text)) for turn in EPISODES[0].turns]
    short, silent = EPISODES[2], recorded(("Flip 1.", "heads"), loss=(False,))
    budget = Trimming(len(whole.ids) - 1)
    list(encode_examples(chat, [EPISODES[0], short, silent], budget))
    said = sum(replies) + len(chat.reply_ids("tails"))
    assert (budget.contexts, budget.cut, budget.dropped) == (2, 1, 0)
    assert (budget.total, budget.lost) == (said, replies[-1])
    assert f"cuts 1 of 2 contexts and drops 0: {replies[-1] / said:.1%} of the completion tokens" in str(budget)
    none = Trimming(1)
    assert not list(encode_examples(chat, [EPISODES[0], short, silent], none))
    assert (none.cut, none.dropped, none.lost) == (0, 2, said)
    enough = Trimming(LONGEST)
    list(encode_examples(chat, EPISODES, enough))
    assert str(enough) == ""


@pytest.mark.long
def test_a_run_says_what_its_budget_loses_and_why_nothing_is_left(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    def run(name: str, episodes: Sequence[Episode], budget: int) -> tuple[int, str]:
        data = tmp_path / f"{name}.jsonl"
        data.write_text("".join(f"{one.to_json()}\n" for one in episodes))
        more = ("--data.files", str(data), "--data.keep", "all", "--generation.max-context", str(budget))
        code = train_cli(sft_flags(tmp_path / name, *more, "--epochs", "1", "--evaluation.tasks", "1"))
        return code, " ".join(capfd.readouterr().err.split())

    code, told = run("cut", [EPISODES[0], EPISODES[2]], 60)
    assert code == 0
    assert "generation.max_context, 60 tokens, cuts 1 of 2 contexts and drops 0: " in told
    code, told = run("long", EPISODES, 8)
    assert code == 2
    assert "In none of the 3 episodes does a reply end within generation.max_context, 8 tokens." in told
    code, told = run("silent", [recorded(("Flip 1.", "heads"), loss=(False,))], 200)
    assert code == 2
    assert "nothing to train on: there are no replies, or all are marked `loss: false`" in told
    assert "max_context" not in told


@settings(max_examples=25)
@given(
    st.lists(st.tuples(st.text(max_size=6), st.text(max_size=6), st.booleans()), min_size=1, max_size=5),
)
def test_whatever_was_seen_and_said(chat: Chat, exchanges: list[tuple[str, str, bool]]) -> None:
    recording = recorded(*((seen, said) for seen, said, _ in exchanges), loss=[learnt for *_, learnt in exchanges])
    learnt = [run for example in encode_examples(chat, [recording], Trimming(4096)) for run in stretches(example)]
    assert learnt == [chat.reply_ids(said) for _, said, wanted in exchanges if wanted]


def test_episodes_are_kept_by_success_and_score() -> None:
    def of(score: float | None, **more: Any) -> Episode:
        return replace(EPISODES[0], score=score, success=None if score is None else score == 1.0, **more)

    episodes = [of(1.0), of(0.5), of(0.0), of(None, stop="failed", error="it broke")]
    assert list(good_enough(episodes, DataConfig())) == episodes[:1]
    assert list(good_enough(episodes, DataConfig(keep="all"))) == episodes[:3]
    assert list(good_enough(episodes, DataConfig(keep="all", min_score=0.5))) == episodes[:2]


# TRL's trainer.


@pytest.fixture
def imitator(chat: Chat, new_model: Callable[..., Any], tmp_path: Path) -> Callable[..., Imitator]:
    def make(examples: list[Example], *, lora: bool = False, **settings: Any) -> Imitator:
        known: dict[str, Any] = {
            "generation": Generation(max_context=LONGEST),
            "optimizer": Optimizer(lr=1e-3, micro_tokens=LONGEST),
            "batch": 4,
            "device": "cpu",
        }
        config = SFTConfig(**(known | settings))
        model = new_model().train()
        training = TrainingSetup(with_lora(model, config.lora, seed=0) if lora else model, chat, EPISODES)
        return make_imitator(config, RunFolder(tmp_path), training, examples)

    return make


def losses(trainer: Imitator) -> tuple[float, dict[str, torch.Tensor]]:
    """The loss over all examples at once, by micro-batches, and its gradient."""
    trainer.model.zero_grad()
    batches = list(trainer.get_train_dataloader())
    said = sum((batch["labels"] != IGNORED).sum() for batch in batches)
    total = torch.zeros(())
    for batch in batches:
        loss = trainer.compute_loss(trainer.model, dict(batch), num_items_in_batch=said)
        loss.backward()
        total += loss.detach()
    return float(total), {n: p.grad.clone() for n, p in trainer.model.named_parameters() if p.grad is not None}


def test_the_loss_is_the_mean_over_what_was_said_however_it_is_laid_out(
    chat: Chat, new_model: Callable[..., Any], imitator: Callable[..., Imitator]
) -> None:
    examples = list(encode_examples(chat, EPISODES, Trimming(LONGEST)))
    model, missing = new_model(), list[float]()
    for example in examples:
        with torch.no_grad():
            chances = torch.log_softmax(model(torch.tensor([example.ids])).logits[0], -1)
        missing += [-float(chances[i - 1, label]) for i, label in enumerate(example.labels) if label != IGNORED]
    one_by_one, gradient = losses(imitator(examples, optimizer=Optimizer(micro_tokens=1)))
    assert one_by_one == pytest.approx(sum(missing) / len(missing), rel=1e-5)
    for packing in (False, True):
        loss, other = losses(imitator(examples, packing=packing))
        assert loss == pytest.approx(one_by_one, rel=1e-5)
        assert other.keys() == gradient.keys()
        for name, grad in gradient.items():
            torch.testing.assert_close(other[name], grad, rtol=1e-4, atol=1e-6)


def test_packed_examples_lie_in_one_row(chat: Chat, imitator: Callable[..., Imitator]) -> None:
    examples = list(encode_examples(chat, EPISODES, Trimming(LONGEST)))
    (row,) = imitator(examples, packing=True).get_train_dataloader()
    assert row["input_ids"].shape == (1, sum(len(example.ids) for example in examples))
    assert sorted(row["input_ids"][0].tolist()) == sorted(token for example in examples for token in example.ids)
    learnt = [
        token
        for token, label in zip(row["input_ids"][0].tolist(), row["labels"][0].tolist(), strict=True)
        if label != IGNORED
    ]
    assert sorted(learnt) == sorted(token for example in examples for run in stretches(example) for token in run)


@pytest.mark.parametrize(
    ("batch", "micro_tokens", "layout"), [(4, 1, (1, 4)), (4, 10_000, (4, 1)), (6, 200, (2, 3)), (7, 400, (1, 7))]
)
def test_a_batch_goes_through_the_model_in_equal_parts_that_fit(
    chat: Chat, imitator: Callable[..., Imitator], batch: int, micro_tokens: int, layout: tuple[int, int]
) -> None:
    examples = [Example((1,) * 80, (1,) * 80, 1.0)] * 8
    arguments = imitator(examples, batch=batch, optimizer=Optimizer(micro_tokens=micro_tokens)).args
    assert (arguments.per_device_train_batch_size, arguments.gradient_accumulation_steps) == layout


def test_nothing_of_a_run_is_told_to_anyone(
    chat: Chat, imitator: Callable[..., Imitator], monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[Any] = []
    monkeypatch.delenv("CI", raising=False)
    monkeypatch.setattr("trl.trainer.base_trainer.send_telemetry", lambda **what: told.append(what))
    imitator(list(encode_examples(chat, EPISODES, Trimming(LONGEST))))
    assert told == []


def test_a_tokenizer_of_words_spells_a_name_alike_wherever_it_stands() -> None:
    lines = [
        "craft 1 oak slab using 3 oak planks",
        "Goal: craft oak slab",
        "get 2 oak log",
        "using 2 oak planks, 1 stick",
    ]

    def spelled(merges: Merges) -> tuple[list[str], bool]:
        tokenizer = train_tokenizer(lines * 20, 400, merges)
        made = [tokenizer.tokenize(line) for line in lines]
        assert [tokenizer.decode(tokenizer.encode(line)) for line in lines] == lines
        return [token for line in made for token in line], all("Ġoak" in line for line in made)

    words, alike = spelled("words")
    assert alike
    assert not any("Ġ" in token[1:] for token in words)
    phrases, alike = spelled("phrases")
    assert not alike
    assert len(phrases) < len(words)
