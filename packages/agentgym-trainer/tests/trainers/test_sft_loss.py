"""Tests of supervised fine-tuning: labels, context budgets, and the loss of TRL's trainer."""

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
from agentgym_trainer.tokens.trajectory import ContextLimit, Trimming
from agentgym_trainer.trainers.sft import IGNORED, Example, Imitator, encode_examples, make_imitator
from agentgym_trainer.trainers.training_data import good_enough
from agentgym_trainer.trainers.trl_run import TrainingSetup
from hypothesis import given, settings
from hypothesis import strategies as st
from toy_learner import TEXTS, episode_with_samples, sft_flags, train_cli
from trl.trainer.sft_config import SFTConfig as TRLSFTConfig

LONGEST = 512


def trimming() -> Trimming:
    """Return statistics for a limit that no context exceeds."""
    return Trimming(ContextLimit(LONGEST))


def recorded(*exchanges: tuple[str, str], loss: Sequence[bool] = ()) -> Episode:
    """Return an episode with given observations and replies, some of which may be out of the loss."""
    turns = tuple(
        Turn(observation, Reply(reply), reply, valid=True, reward=0.0, state_key="", loss=in_loss)
        for (observation, reply), in_loss in zip(exchanges, loss or [True] * len(exchanges), strict=True)
    )
    return replace(episode_with_samples([]), turns=turns, instructions="Say heads or tails.", final_observation="Over.")


EPISODES = (
    recorded(("Flip 1.", "heads"), ("Flip 2. <|im_end|>", "tails"), ("Flip 3.", "heads or tails?")),
    recorded(("Flip 1.", "heads"), ("Flip 2.", "<|im_end|>"), loss=(True, True)),
    recorded(("Flip 1.", "tails")),
)


def labelled_runs(example: Example) -> list[list[int]]:
    """Return the consecutive runs of labels."""
    runs: list[list[int]] = [[]]
    for label in example.labels:
        if label != IGNORED:
            runs[-1].append(label)
        elif runs[-1]:
            runs.append([])
    return [run for run in runs if run]


@pytest.mark.parametrize("recording", EPISODES)
def test_labels_are_exactly_the_completion_tokens(chat: Chat, recording: Episode) -> None:
    (example,) = encode_examples(chat, [recording], trimming())
    assert len(example.ids) == len(example.labels)
    assert all(label in (IGNORED, token) for token, label in zip(example.ids, example.labels, strict=True))
    assert labelled_runs(example) == [chat.reply_ids(turn.reply.text) for turn in recording.turns]
    # The other tokens include the observations.
    text = chat.tokenizer.decode(list(example.ids))
    for turn in recording.turns:
        assert turn.observation in text


def test_turns_out_of_the_loss_are_only_context(chat: Chat) -> None:
    exchanges = (("Flip 1.", "heads"), ("Flip 2.", "tails"), ("Flip 3.", "heads"))
    (complete,) = encode_examples(chat, [recorded(*exchanges)], trimming())
    (partial,) = encode_examples(chat, [recorded(*exchanges, loss=(False, True, True))], trimming())
    assert partial.ids == complete.ids
    assert labelled_runs(partial) == labelled_runs(complete)[1:]
    assert list(encode_examples(chat, [recorded(*exchanges, loss=(False,) * 3)], trimming())) == []


def test_the_loss_may_be_on_all_tokens_but_replies_that_are_context(chat: Chat) -> None:
    exchanges = (("Flip 1.", "heads"), ("Flip 2.", "tails"), ("Flip 3.", "heads"))
    (complete,) = encode_examples(chat, [recorded(*exchanges)], trimming(), completion_only_loss=False)
    assert complete.labels == complete.ids
    partial_loss = recorded(*exchanges, loss=(True, False, True))
    (partial,) = encode_examples(chat, [partial_loss], trimming(), completion_only_loss=False)
    assert partial.ids == complete.ids
    (completions,) = encode_examples(chat, [recorded(*exchanges)], trimming())
    context = labelled_runs(completions)[1]
    ignored = [token for token, label in zip(partial.ids, partial.labels, strict=True) if label == IGNORED]
    assert ignored == context
    opened = recorded(*exchanges, loss=(False, True, True))
    turns = (replace(opened.turns[0], reply=Reply("heads", expert=True)), *opened.turns[1:])
    (led,) = encode_examples(chat, [replace(opened, turns=turns)], trimming(), completion_only_loss=False)
    ignored = [token for token, label in zip(led.ids, led.labels, strict=True) if label == IGNORED]
    assert ignored == labelled_runs(completions)[0]
    nothing = recorded(*exchanges, loss=(False,) * 3)
    assert list(encode_examples(chat, [nothing], trimming(), completion_only_loss=False)) == []


def test_long_contexts_are_cut_at_the_end_of_a_turn(chat: Chat) -> None:
    (complete,) = encode_examples(chat, EPISODES[:1], trimming())
    ends = [i + 1 for i, label in enumerate(complete.labels) if label == chat.end_id]
    for budget in range(1, len(complete.ids) + 1):
        examples = list(encode_examples(chat, EPISODES[:1], Trimming(ContextLimit(budget))))
        end = max((end for end in ends if end <= budget), default=0)
        assert [example.ids for example in examples] == ([complete.ids[:end]] if end else [])


def test_completion_tokens_lost_to_the_context_budget_are_counted(chat: Chat) -> None:
    (complete,) = encode_examples(chat, EPISODES[:1], trimming())
    replies = [len(chat.reply_ids(turn.reply.text)) for turn in EPISODES[0].turns]
    short, masked = EPISODES[2], recorded(("Flip 1.", "heads"), loss=(False,))
    budget = Trimming(ContextLimit(len(complete.ids) - 1))
    list(encode_examples(chat, [EPISODES[0], short, masked], budget))
    total = sum(replies) + len(chat.reply_ids("tails"))
    assert (budget.contexts, budget.cut, budget.dropped) == (2, 1, 0)
    assert (budget.total, budget.lost) == (total, replies[-1])
    assert f"cuts 1 of 2 contexts and drops 0: {replies[-1] / total:.1%} of the completion tokens" in str(budget)
    too_small = Trimming(ContextLimit(1))
    assert not list(encode_examples(chat, [EPISODES[0], short, masked], too_small))
    assert (too_small.cut, too_small.dropped, too_small.lost) == (0, 2, total)
    sufficient = trimming()
    list(encode_examples(chat, EPISODES, sufficient))
    assert str(sufficient) == ""


@pytest.mark.long
def test_runs_report_what_the_context_budget_cuts(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    def run(name: str, episodes: Sequence[Episode], budget: int) -> tuple[int, str]:
        data = tmp_path / f"{name}.jsonl"
        data.write_text("".join(f"{e.to_json()}\n" for e in episodes))
        more = ("--data.files", str(data), "--data.keep", "all", "--generation.max-context", str(budget))
        code = train_cli(sft_flags(tmp_path / name, *more, "--epochs", "1", "--evaluation.tasks", "1"))
        return code, " ".join(capfd.readouterr().err.split())

    code, stderr = run("cut", [EPISODES[0], EPISODES[2]], 60)
    assert code == 0
    assert "generation.max_context, 60 tokens, cuts 1 of 2 contexts and drops 0: " in stderr
    code, stderr = run("long", EPISODES, 8)
    assert code == 2
    assert "In none of the 3 episodes does a reply end within generation.max_context, 8 tokens." in stderr
    code, stderr = run("silent", [recorded(("Flip 1.", "heads"), loss=(False,))], 200)
    assert code == 2
    assert "nothing to train on: there are no replies, or all are marked `loss: false`" in stderr
    assert "max_context" not in stderr


@pytest.mark.long
def test_contexts_end_within_those_of_the_model(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    def run(name: str, context: int, *more: str) -> str:
        data = tmp_path / f"{name}.jsonl"
        data.write_text("".join(f"{e.to_json()}\n" for e in (EPISODES[0], EPISODES[2])))
        more = ("--data.files", str(data), "--data.keep", "all", "--scratch.context", str(context), *more)
        train_cli(sft_flags(tmp_path / name, *more, "--epochs", "1", "--evaluation.tasks", "1"))
        return " ".join(capfd.readouterr().err.split())

    stderr = run("cut", 60)
    assert "The context of the model, 60 tokens, cuts 1 of 2 contexts and drops 0: " in stderr
    assert "are not trained on. Choose a model with a longer one to keep more." in stderr
    stderr = run("long", 8)
    assert "In none of the 2 episodes does a reply end within the context of the model, 8 tokens. Choose a" in stderr


@settings(max_examples=25)
@given(
    st.lists(st.tuples(st.text(max_size=6), st.text(max_size=6), st.booleans()), min_size=1, max_size=5),
)
def test_labels_are_the_replies_for_arbitrary_texts(chat: Chat, exchanges: list[tuple[str, str, bool]]) -> None:
    recording = recorded(
        *((observation, reply) for observation, reply, _ in exchanges), loss=[in_loss for *_, in_loss in exchanges]
    )
    labels = [run for example in encode_examples(chat, [recording], trimming()) for run in labelled_runs(example)]
    assert labels == [chat.reply_ids(reply) for _, reply, in_loss in exchanges if in_loss]


def test_episodes_are_selected_by_success_and_score() -> None:
    def with_score(score: float | None, **changes: Any) -> Episode:
        return replace(EPISODES[0], score=score, success=None if score is None else score == 1.0, **changes)

    episodes = [with_score(1.0), with_score(0.5), with_score(0.0), with_score(None, stop="failed", error="it broke")]
    assert list(good_enough(episodes, DataConfig())) == episodes[:1]
    assert list(good_enough(episodes, DataConfig(keep="all"))) == episodes[:3]
    assert list(good_enough(episodes, DataConfig(keep="all", min_score=0.5))) == episodes[:2]


# TRL's trainer.


@pytest.fixture
def imitator(chat: Chat, new_model: Callable[..., Any], tmp_path: Path) -> Callable[..., Imitator]:
    def make(examples: list[Example], *, lora: bool = False, chat: Chat = chat, **settings: Any) -> Imitator:
        defaults: dict[str, Any] = {
            "generation": Generation(max_context=LONGEST),
            "optimizer": Optimizer(lr=1e-3, micro_tokens=LONGEST),
            "batch": 4,
            "device": "cpu",
        }
        config = SFTConfig(**(defaults | settings))
        model = new_model().train()
        training = TrainingSetup(with_lora(model, config.lora, seed=0) if lora else model, chat, EPISODES)
        return make_imitator(config, RunFolder(tmp_path), training, examples)

    return make


def losses(trainer: Imitator) -> tuple[float, dict[str, torch.Tensor]]:
    """Return the loss over all examples, accumulated over micro-batches, and its gradient."""
    trainer.model.zero_grad()
    batches = list(trainer.get_train_dataloader())
    labels = sum((batch["labels"] != IGNORED).sum() for batch in batches)
    total = torch.zeros(())
    for batch in batches:
        loss = trainer.compute_loss(trainer.model, dict(batch), num_items_in_batch=labels)
        loss.backward()
        total += loss.detach()
    return float(total), {n: p.grad.clone() for n, p in trainer.model.named_parameters() if p.grad is not None}


def test_the_loss_is_the_mean_over_labels_in_any_layout(
    chat: Chat, new_model: Callable[..., Any], imitator: Callable[..., Imitator]
) -> None:
    examples = list(encode_examples(chat, EPISODES, trimming()))
    model, nlls = new_model(), list[float]()
    for example in examples:
        with torch.no_grad():
            logps = torch.log_softmax(model(torch.tensor([example.ids])).logits[0], -1)
        nlls += [-float(logps[i - 1, label]) for i, label in enumerate(example.labels) if label != IGNORED]
    unpacked, gradient = losses(imitator(examples, optimizer=Optimizer(micro_tokens=1)))
    assert unpacked == pytest.approx(sum(nlls) / len(nlls), rel=1e-5)
    for packing in (False, True):
        loss, other_gradient = losses(imitator(examples, packing=packing))
        assert loss == pytest.approx(unpacked, rel=1e-5)
        assert other_gradient.keys() == gradient.keys()
        for name, grad in gradient.items():
            torch.testing.assert_close(other_gradient[name], grad, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("packing", [False, True])
def test_tokenizers_without_padding_and_end_tokens_work(imitator: Callable[..., Imitator], packing: bool) -> None:
    tokenizer = train_tokenizer(TEXTS, 320)
    tokenizer.pad_token = tokenizer.eos_token = None
    chat = Chat(tokenizer)
    examples = list(encode_examples(chat, EPISODES, trimming()))
    expected, _ = losses(imitator(examples, packing=packing))
    assert losses(imitator(examples, packing=packing, chat=chat))[0] == pytest.approx(expected, rel=1e-6)


def test_packed_examples_share_one_row(chat: Chat, imitator: Callable[..., Imitator]) -> None:
    examples = list(encode_examples(chat, EPISODES, trimming()))
    (row,) = imitator(examples, packing=True).get_train_dataloader()
    assert row["input_ids"].shape == (1, sum(len(example.ids) for example in examples))
    assert sorted(row["input_ids"][0].tolist()) == sorted(token for example in examples for token in example.ids)
    labels = [
        token
        for token, label in zip(row["input_ids"][0].tolist(), row["labels"][0].tolist(), strict=True)
        if label != IGNORED
    ]
    assert sorted(labels) == sorted(token for example in examples for run in labelled_runs(example) for token in run)


@pytest.mark.parametrize(
    ("batch", "micro_tokens", "layout"), [(4, 1, (1, 4)), (4, 10_000, (4, 1)), (6, 200, (2, 3)), (7, 400, (1, 7))]
)
def test_batches_are_split_into_equal_micro_batches_that_fit(
    chat: Chat, imitator: Callable[..., Imitator], batch: int, micro_tokens: int, layout: tuple[int, int]
) -> None:
    examples = [Example((1,) * 80, (1,) * 80, 1.0)] * 8
    arguments = imitator(examples, batch=batch, optimizer=Optimizer(micro_tokens=micro_tokens)).args
    assert (arguments.per_device_train_batch_size, arguments.gradient_accumulation_steps) == layout


def test_one_of_several_gpus_trains(
    chat: Chat, imitator: Callable[..., Imitator], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Unless a launcher starts a process for each; TRL refuses what transformers would do with them."""

    def on_two_gpus(**settings: Any) -> Any:
        arguments = TRLSFTConfig(**settings)
        arguments._n_gpu = 2
        return arguments

    monkeypatch.setattr("agentgym_trainer.trainers.sft.TRLSFTConfig", on_two_gpus)
    assert imitator(list(encode_examples(chat, EPISODES, trimming()))).args.n_gpu == 1


def test_no_telemetry_is_sent(chat: Chat, imitator: Callable[..., Imitator], monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[Any] = []
    monkeypatch.delenv("CI", raising=False)
    monkeypatch.setattr("trl.trainer.base_trainer.send_telemetry", lambda **event: sent.append(event))
    imitator(list(encode_examples(chat, EPISODES, trimming())))
    assert sent == []


def test_word_merges_tokenize_a_word_alike_at_any_position() -> None:
    lines = [
        "craft 1 oak slab using 3 oak planks",
        "Goal: craft oak slab",
        "get 2 oak log",
        "using 2 oak planks, 1 stick",
    ]

    def tokenize(merges: Merges) -> tuple[list[str], bool]:
        tokenizer = train_tokenizer(lines * 20, 400, merges)
        tokenized = [tokenizer.tokenize(line) for line in lines]
        assert [tokenizer.decode(tokenizer.encode(line)) for line in lines] == lines
        return [token for line in tokenized for token in line], all("Ġoak" in line for line in tokenized)

    words, is_uniform = tokenize("words")
    assert is_uniform
    assert not any("Ġ" in token[1:] for token in words)
    phrases, is_uniform = tokenize("phrases")
    assert not is_uniform
    assert len(phrases) < len(words)


def test_label_merges_tokenize_a_name_alike_after_a_space_and_in_quotation_marks() -> None:
    lines = ["radio 'tellus' checked: False", 'Select tellus or "tellus", [tellus].', "radio 'Tx9' [17]", "Tx9, x"]
    tokenizer = train_tokenizer(lines * 20, 400, "labels")
    tokenized = [tokenizer.tokenize(line) for line in lines]
    assert [tokenizer.decode(tokenizer.encode(line)) for line in lines] == lines
    assert [tokens.count("tellus") for tokens in tokenized] == [1, 3, 0, 0]
    assert [tokens.count("Tx") == tokens.count("9") == 1 for tokens in tokenized] == [False, False, True, True]
    words = train_tokenizer(lines * 20, 400, "words").tokenize(lines[1])
    assert words.count("tellus") == 2  # after a space it is another token
