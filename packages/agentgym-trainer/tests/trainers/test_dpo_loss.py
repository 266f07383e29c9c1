"""Tests of the DPO losses against slow reference implementations, and of the tokens that pairs compare."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from math import isfinite, log
from pathlib import Path
from types import SimpleNamespace
from typing import Any, get_args

import numpy as np
import pytest
import torch
from agentgym_envs import Episode, EpisodeSpec, Policy, Reply, TurnContext, play_many
from agentgym_envs.agents.agent import Agent
from agentgym_eval.data.pairing import Pairing
from agentgym_eval.data.pairs import make_pairs
from agentgym_eval.util.errors import UsageError
from agentgym_trainer.config import DPOConfig, Generation, Lora
from agentgym_trainer.config.dpo import Loss
from agentgym_trainer.models.load import with_lora
from agentgym_trainer.tokens.chat import Chat
from agentgym_trainer.tokens.encode import encode
from agentgym_trainer.tokens.trajectory import trajectory
from agentgym_trainer.trainers.dpo import PairCollator, PairTrainer, Row, dpo_settings, encode_pair, learnable
from agentgym_trainer.trainers.trl_run import TrainingSetup
from coin_world import Coin
from torch.nn.functional import logsigmoid

BETA = 0.3


def some_rows(seed: int, sides: list[tuple[list[int], list[int]]]) -> list[Row]:
    """Return pairs of random ids with about half of them in the loss, given the lengths of each side's segments."""
    rng = np.random.default_rng(seed)

    def side(lengths: list[int]) -> list[dict[str, list[int]]]:
        segments: list[dict[str, list[int]]] = []
        for n in lengths:
            loss_mask = [0, *rng.integers(0, 2, n - 2).tolist(), 1]
            segments.append({"ids": rng.integers(3, 320, n).tolist(), "loss_mask": loss_mask})
        return segments

    return [{"chosen": side(chosen), "rejected": side(rejected)} for chosen, rejected in sides]


SINGLE = [([9], [5]), ([4], [12])]
SEVERAL = [([9, 4], [5]), ([4], [6, 7, 3])]


def completion_logps(model: Any, side: list[dict[str, list[int]]]) -> torch.Tensor:
    """Return the log-probabilities of all completion tokens of a side."""
    logps: list[torch.Tensor] = []
    for segment in side:
        logp = torch.log_softmax(model(torch.tensor([segment["ids"]])).logits[0], -1)
        logps += [logp[t - 1, segment["ids"][t]] for t, in_loss in enumerate(segment["loss_mask"]) if in_loss]
    return torch.stack(logps)


def completion_logp(model: Any, side: list[dict[str, list[int]]]) -> torch.Tensor:
    """Return the log-probability of all completion tokens of a side together."""
    return completion_logps(model, side).sum()


def slow_loss(model: Any, reference: Any, rows: list[Row]) -> torch.Tensor:
    """Compute eq. 7 of arXiv 2305.18290, one pair at a time."""
    losses: list[torch.Tensor] = []
    for row in rows:
        with torch.no_grad():
            ref = {name: completion_logp(reference, side) for name, side in row.items()}
        ratio = {name: completion_logp(model, side) - ref[name] for name, side in row.items()}
        losses.append(-torch.log(torch.sigmoid(BETA * (ratio["chosen"] - ratio["rejected"]))))
    return torch.stack(losses).mean()


@pytest.fixture
def trainer_of(tmp_path: Path, chat: Chat) -> Callable[..., PairTrainer]:
    def build(model: Any, rows: list[Row], reference: Any, **settings: Any) -> PairTrainer:
        config = DPOConfig(model="scratch", beta=BETA, device="cpu", **settings)
        arguments = {"output_dir": str(tmp_path), "use_cpu": True, "report_to": "none", "disable_tqdm": True}
        arguments |= {"per_device_train_batch_size": len(rows), "bf16": False, "max_grad_norm": 1e9}
        return PairTrainer(model, rows, chat, dpo_settings(config, arguments), reference)

    return build


def perturbed(model: Any, scale: float = 0.05) -> Any:
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter.add_(scale * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(7)))
    return model


@pytest.mark.parametrize("sides", [SINGLE, SEVERAL], ids=["one context", "several contexts"])
def test_loss_and_gradients_match_the_slow_reference(
    new_model: Callable[..., Any], chat: Chat, trainer_of: Callable[..., PairTrainer], sides: Any
) -> None:
    rows = some_rows(3, sides)
    trainer = trainer_of(perturbed(new_model()), rows, new_model().eval())
    trainer.model.eval()
    loss = trainer.compute_loss(trainer.model, PairCollator(chat.pad_id)(rows))
    loss.backward()
    model = perturbed(new_model()).eval()
    expected = slow_loss(model, new_model().eval(), rows)
    expected.backward()
    assert loss.item() == pytest.approx(expected.item(), rel=1e-4)
    assert abs(loss.item() - log(2)) > 0.01
    for (name, parameter), other in zip(trainer.model.named_parameters(), model.parameters(), strict=True):
        torch.testing.assert_close(parameter.grad, other.grad, atol=1e-5, rtol=1e-3, msg=name)


def test_the_reference_of_an_adapter_is_the_base_model(
    new_model: Callable[..., Any], chat: Chat, trainer_of: Callable[..., PairTrainer]
) -> None:
    rows = some_rows(3, SINGLE)
    student = with_lora(new_model(), Lora(rank=4), seed=0)
    trainer = trainer_of(student, rows, None, lora=Lora(rank=4))
    assert list(trainer.model.peft_config) == ["default"]
    assert trainer.compute_loss(trainer.model, PairCollator(chat.pad_id)(rows)).item() == pytest.approx(log(2))
    perturbed(student)
    student.eval()
    loss = trainer.compute_loss(student, PairCollator(chat.pad_id)(rows))
    model = perturbed(with_lora(new_model(), Lora(rank=4), seed=0)).eval()
    assert loss.item() == pytest.approx(slow_loss(model, new_model().eval(), rows).item(), rel=1e-4)


def test_the_imitation_term_is_the_mean_over_chosen_tokens(
    new_model: Callable[..., Any], chat: Chat, trainer_of: Callable[..., PairTrainer]
) -> None:
    rows = some_rows(3, SEVERAL)
    trainer = trainer_of(perturbed(new_model()), rows, new_model().eval(), imitation=0.5)
    trainer.model.eval()
    loss = trainer.compute_loss(trainer.model, PairCollator(chat.pad_id)(rows)).item()
    model = perturbed(new_model()).eval()
    tokens = sum(sum(segment["loss_mask"]) for row in rows for segment in row["chosen"])
    with torch.no_grad():
        nll = -sum(completion_logp(model, row["chosen"]).item() for row in rows) / tokens
        assert loss == pytest.approx(slow_loss(model, new_model().eval(), rows).item() + 0.5 * nll, rel=1e-4)


# Other losses, as functions of the log-ratios of chosen and rejected completion tokens.
OTHERS: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "sigmoid_norm": lambda c, r: -logsigmoid(BETA * (c.mean() - r.mean())),
    "hinge": lambda c, r: (1 - BETA * (c.sum() - r.sum())).relu(),
    "ipo": lambda c, r: (c.mean() - r.mean() - 1 / (2 * BETA)) ** 2,
    "bco_pair": lambda c, r: -logsigmoid(BETA * c.sum()) - logsigmoid(-BETA * r.sum()),
    "apo_zero": lambda c, r: 1 - (BETA * c.sum()).sigmoid() + (BETA * r.sum()).sigmoid(),
}


@pytest.mark.parametrize("loss", OTHERS)
@pytest.mark.parametrize("sides", [SINGLE, SEVERAL], ids=["one context", "several contexts"])
def test_other_losses_match_slow_references(
    new_model: Callable[..., Any], chat: Chat, trainer_of: Callable[..., PairTrainer], sides: Any, loss: str
) -> None:
    rows = some_rows(3, sides)
    trainer = trainer_of(perturbed(new_model()), rows, new_model().eval(), loss=loss)
    trainer.model.eval()
    model, reference = perturbed(new_model()).eval(), new_model().eval()
    with torch.no_grad():
        actual = trainer.compute_loss(trainer.model, PairCollator(chat.pad_id)(rows)).item()
        ratios = [[completion_logps(model, row[n]) - completion_logps(reference, row[n]) for n in row] for row in rows]
    expected = torch.stack([OTHERS[loss](chosen, rejected) for chosen, rejected in ratios]).mean().item()
    assert actual == pytest.approx(expected, rel=1e-4)


def test_every_loss_option_is_implemented_by_trl(
    new_model: Callable[..., Any], chat: Chat, trainer_of: Callable[..., PairTrainer]
) -> None:
    rows, losses = some_rows(3, SINGLE), dict[str, float]()
    for loss in get_args(Loss):
        smoothed = {"label_smoothing": 0.1} if loss in ("exo_pair", "robust") else {}
        trainer = trainer_of(perturbed(new_model()), rows, new_model().eval(), loss=loss, **smoothed)
        trainer.model.eval()
        with torch.no_grad():
            losses[loss] = trainer.compute_loss(trainer.model, PairCollator(chat.pad_id)(rows)).item()
    assert all(map(isfinite, losses.values()))
    # The two `aot` losses may coincide with others where sorting pairs changes nothing.
    assert len({round(value, 5) for name, value in losses.items() if "aot" not in name}) == len(losses) - 2


@pytest.mark.parametrize("ld_alpha", [0.0, 0.4])
def test_ld_alpha_weights_tokens_beyond_the_shorter_side(
    new_model: Callable[..., Any], chat: Chat, trainer_of: Callable[..., PairTrainer], ld_alpha: float
) -> None:
    rows = some_rows(3, SEVERAL)
    trainer = trainer_of(perturbed(new_model()), rows, new_model().eval(), ld_alpha=ld_alpha)
    trainer.model.eval()
    model, reference, losses = perturbed(new_model()).eval(), new_model().eval(), list[torch.Tensor]()
    with torch.no_grad():
        actual = trainer.compute_loss(trainer.model, PairCollator(chat.pad_id)(rows)).item()
        for row in rows:
            ratios = [completion_logps(model, side) - completion_logps(reference, side) for side in row.values()]
            shared = min(map(len, ratios))
            chosen, rejected = (side[:shared].sum() + ld_alpha * side[shared:].sum() for side in ratios)
            losses.append(-logsigmoid(BETA * (chosen - rejected)))
    assert actual == pytest.approx(torch.stack(losses).mean().item(), rel=1e-4)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"loss": "exo_pair"}, "exo_pair needs label_smoothing above 0"),
        ({"label_smoothing": 0.1}, "not for sigmoid"),
        ({"loss": "robust", "label_smoothing": 0.5}, "below 0.5"),
        ({"ld_alpha": 1.5}, "ld_alpha from 0 to 1"),
    ],
)
def test_invalid_loss_settings_are_rejected(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        DPOConfig(**settings)


@pytest.mark.parametrize("sides", [SINGLE, SEVERAL], ids=["one context", "several contexts"])
def test_trailing_prompt_tokens_and_padding_do_not_affect_the_loss(
    new_model: Callable[..., Any], chat: Chat, trainer_of: Callable[..., PairTrainer], sides: Any
) -> None:
    rows = some_rows(5, sides)
    trainer = trainer_of(perturbed(new_model()), rows, new_model().eval())
    trainer.model.eval()
    collate = PairCollator(chat.pad_id)
    with torch.no_grad():
        together = trainer.compute_loss(trainer.model, collate(rows)).item()
        separate = [trainer.compute_loss(trainer.model, collate([row])).item() for row in rows]
        assert together == pytest.approx(sum(separate) / len(separate), abs=1e-5)
        # Append a prompt token after the last completion token.
        extended = [{n: [*side[:-1], {k: [*v, 0] for k, v in side[-1].items()}] for n, side in r.items()} for r in rows]
        assert trainer.compute_loss(trainer.model, collate(extended)).item() == pytest.approx(together, abs=1e-5)


# Tokens of pairs of episodes.


class FixedReplies(Policy):
    """A policy that gives fixed replies in order."""

    name = "fixed"

    def __init__(self, lines: tuple[str, ...]) -> None:
        self._lines = iter(lines)

    async def reply(self, context: TurnContext) -> Reply:
        return Reply(next(self._lines))


def play(agent: str, lines: tuple[str, ...]) -> Episode:
    """Play an episode in which tails, heads, tails is right."""
    env = Agent.parse(agent).wrap(Coin())
    (episode,) = play_many(env, FixedReplies(lines), [EpisodeSpec("coin/train/5", seed=0)])
    return episode


def test_chosen_and_rejected_share_tokens_until_they_diverge(chat: Chat) -> None:
    won, lost = play("bare", ("tails", "heads", "tails")), play("bare", ("tails", "tails", "tails"))
    (pair,) = make_pairs([won, lost], Pairing())
    row = encode_pair(chat, pair)
    (chosen,), (rejected,) = row["chosen"], row["rejected"]
    assert pair.shared == 1
    for side, episode in ((chosen, won), (rejected, lost)):
        (segment,) = trajectory(encode(chat, episode)).segments
        assert side["ids"] == list(segment.ids)
        assert side["loss_mask"] == [int(turn >= 1) for turn in segment.turns]
        completion = [i for i, in_loss in zip(side["ids"], side["loss_mask"], strict=True) if in_loss]
        replies = [turn.reply.text for turn in episode.turns[1:]]
        assert completion == [i for text in replies for i in chat.reply_ids(text)]
    first = chosen["loss_mask"].index(1)
    assert rejected["loss_mask"].index(1) == first
    assert chosen["ids"][:first] == rejected["ids"][:first]
    assert chosen["ids"][first:] != rejected["ids"][first:]


def test_contexts_before_the_divergence_are_left_out(chat: Chat) -> None:
    agent = "bare+retry:2"
    lost, won = ("heads",) * 3, ("tails", "heads", "tails")
    note = "Other sides."
    first = play(agent, (*lost, note, *won))
    second = play(agent, (*lost, note, *lost, note, *lost))
    assert (first.score, second.score) == (1.0, pytest.approx(1 / 3))
    (pair,) = make_pairs([first, second], Pairing())
    row = encode_pair(chat, pair)
    assert pair.shared == 4
    assert (len(row["chosen"]), len(row["rejected"])) == (1, 2)
    texts = {name: [chat.tokenizer.decode(s["ids"]) for s in side] for name, side in row.items()}
    assert all(note in text for side in texts.values() for text in side)


def test_a_truncated_reply_has_no_end_token(chat: Chat) -> None:
    won, lost = play("bare", ("tails", "heads", "tails")), play("bare", ("tails", "tails", "tails"))
    cut = replace(lost.turns[1], reply=Reply("ta", finish="length"), action=None)
    lost = replace(lost, turns=(lost.turns[0], cut), stop="length")
    (pair,) = make_pairs([won, lost], Pairing())
    (rejected,) = encode_pair(chat, pair)["rejected"]
    completion = [i for i, in_loss in zip(rejected["ids"], rejected["loss_mask"], strict=True) if in_loss]
    assert completion == chat.reply_ids("ta")[:-1]
    assert chat.end_id not in completion


def pair_with_two_trials() -> list[Episode]:
    """Return two episodes with the same replies before the second trial, in which only the first one succeeds."""
    lost, won, note = ("heads",) * 3, ("tails", "heads", "tails"), "Other sides."
    return [play("bare+retry:1", (*lost, note, *second_trial)) for second_trial in (won, lost)]


UNLIMITED = SimpleNamespace(config=SimpleNamespace())


def test_the_context_budget_applies_to_each_context_of_a_side(chat: Chat) -> None:
    episodes = pair_with_two_trials()
    diverging_early = [
        replace(e, turns=(replace(e.turns[0], reply=Reply(text)), *e.turns[1:]))
        for e, text in zip(episodes, "ab", strict=True)
    ]
    pairs = make_pairs(diverging_early, Pairing())
    (row,) = (encode_pair(chat, pair) for pair in pairs)
    assert [len(side) for side in row.values()] == [2, 2]
    longest = max(len(segment["ids"]) for side in row.values() for segment in side)

    def learnable_rows(max_context: int, of_model: int = 512) -> tuple[list[Row], str]:
        config = DPOConfig(model="scratch", generation=Generation(max_tokens=1, max_context=max_context))
        model = SimpleNamespace(config=SimpleNamespace(max_position_embeddings=of_model))
        return learnable(TrainingSetup(model, chat, diverging_early), pairs, config)

    assert learnable_rows(longest) == ([row], "")
    with pytest.raises(UsageError, match=f"1 pairs have a context of more than generation.max_context, {longest - 1}"):
        learnable_rows(longest - 1)
    assert learnable_rows(512, longest) == ([row], "")
    with pytest.raises(UsageError, match=f"1 pairs .* than the context of the model, {longest - 1} tokens. Choose"):
        learnable_rows(512, longest - 1)


def test_pairs_without_tokens_in_the_loss_are_reported_separately(chat: Chat) -> None:
    won, lost = play("bare", ("tails", "heads", "tails")), play("bare", ("tails", "tails", "tails"))
    masked = replace(lost, turns=tuple(replace(turn, loss=False) for turn in lost.turns))
    (pair,), config = make_pairs([won, lost], Pairing()), DPOConfig(model="scratch")
    masked_pair = replace(pair, rejected=masked)
    rows, left_out = learnable(TrainingSetup(UNLIMITED, chat, [won, masked]), [pair, masked_pair], config)
    assert rows == [encode_pair(chat, pair)]
    assert left_out == "; in 1 more, one side has no tokens in the loss (`loss: false`)"
    with pytest.raises(UsageError, match="one side has no tokens in the loss: its replies are marked `loss: false`"):
        learnable(TrainingSetup(UNLIMITED, chat, [won, masked]), [masked_pair], config)
