"""What DPO compares: said tokens since two episodes diverged, and the loss over them against a slow twin."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from math import isfinite, log
from pathlib import Path
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
    """Pairs of random ids: for each side the lengths of its segments; about half of each is said."""
    rng = np.random.default_rng(seed)

    def side(lengths: list[int]) -> list[dict[str, list[int]]]:
        made: list[dict[str, list[int]]] = []
        for n in lengths:
            said = [0, *rng.integers(0, 2, n - 2).tolist(), 1]
            made.append({"ids": rng.integers(3, 320, n).tolist(), "loss_mask": said})
        return made

    return [{"chosen": side(chosen), "rejected": side(rejected)} for chosen, rejected in sides]


SINGLE = [([9], [5]), ([4], [12])]
ANEW = [([9, 4], [5]), ([4], [6, 7, 3])]


def said_logps(model: Any, side: list[dict[str, list[int]]]) -> torch.Tensor:
    """Log-probabilities of all that is said, segment by segment and token by token."""
    found: list[torch.Tensor] = []
    for segment in side:
        logp = torch.log_softmax(model(torch.tensor([segment["ids"]])).logits[0], -1)
        found += [logp[t - 1, segment["ids"][t]] for t, said in enumerate(segment["loss_mask"]) if said]
    return torch.stack(found)


def said_logp(model: Any, side: list[dict[str, list[int]]]) -> torch.Tensor:
    """Log-probability of all that is said."""
    return said_logps(model, side).sum()


def slow_loss(model: Any, reference: Any, rows: list[Row]) -> torch.Tensor:
    """Eq. 7 of arXiv 2305.18290, a pair at a time."""
    losses: list[torch.Tensor] = []
    for row in rows:
        with torch.no_grad():
            before = {name: said_logp(reference, side) for name, side in row.items()}
        ratio = {name: said_logp(model, side) - before[name] for name, side in row.items()}
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


def moved(model: Any, far: float = 0.05) -> Any:
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter.add_(far * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(7)))
    return model


@pytest.mark.parametrize("sides", [SINGLE, ANEW], ids=["one context", "contexts that begin anew"])
def test_loss_and_gradients_are_those_of_the_slow_twin(
    new_model: Callable[..., Any], chat: Chat, trainer_of: Callable[..., PairTrainer], sides: Any
) -> None:
    rows = some_rows(3, sides)
    trainer = trainer_of(moved(new_model()), rows, new_model().eval())
    trainer.model.eval()
    loss = trainer.compute_loss(trainer.model, PairCollator(chat.pad_id)(rows))
    loss.backward()
    twin = moved(new_model()).eval()
    expected = slow_loss(twin, new_model().eval(), rows)
    expected.backward()
    assert loss.item() == pytest.approx(expected.item(), rel=1e-4)
    assert abs(loss.item() - log(2)) > 0.01
    for (name, parameter), other in zip(trainer.model.named_parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(parameter.grad, other.grad, atol=1e-5, rtol=1e-3, msg=name)


def test_an_adapters_reference_is_the_model_without_it(
    new_model: Callable[..., Any], chat: Chat, trainer_of: Callable[..., PairTrainer]
) -> None:
    rows = some_rows(3, SINGLE)
    student = with_lora(new_model(), Lora(rank=4), seed=0)
    trainer = trainer_of(student, rows, None, lora=Lora(rank=4))
    assert list(trainer.model.peft_config) == ["default"]
    assert trainer.compute_loss(trainer.model, PairCollator(chat.pad_id)(rows)).item() == pytest.approx(log(2))
    moved(student)
    student.eval()
    loss = trainer.compute_loss(student, PairCollator(chat.pad_id)(rows))
    twin = moved(with_lora(new_model(), Lora(rank=4), seed=0)).eval()
    assert loss.item() == pytest.approx(slow_loss(twin, new_model().eval(), rows).item(), rel=1e-4)


def test_the_term_of_imitation_is_the_mean_over_what_was_chosen(
    new_model: Callable[..., Any], chat: Chat, trainer_of: Callable[..., PairTrainer]
) -> None:
    rows = some_rows(3, ANEW)
    trainer = trainer_of(moved(new_model()), rows, new_model().eval(), imitation=0.5)
    trainer.model.eval()
    loss = trainer.compute_loss(trainer.model, PairCollator(chat.pad_id)(rows)).item()
    twin = moved(new_model()).eval()
    said = sum(sum(segment["loss_mask"]) for row in rows for segment in row["chosen"])
    with torch.no_grad():
        nll = -sum(said_logp(twin, row["chosen"]).item() for row in rows) / said
        assert loss == pytest.approx(slow_loss(twin, new_model().eval(), rows).item() + 0.5 * nll, rel=1e-4)


# Other losses, of log-ratios of the tokens said in the chosen and the rejected.
OTHERS: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "sigmoid_norm": lambda c, r: -logsigmoid(BETA * (c.mean() - r.mean())),
    "hinge": lambda c, r: (1 - BETA * (c.sum() - r.sum())).relu(),
    "ipo": lambda c, r: (c.mean() - r.mean() - 1 / (2 * BETA)) ** 2,
    "bco_pair": lambda c, r: -logsigmoid(BETA * c.sum()) - logsigmoid(-BETA * r.sum()),
    "apo_zero": lambda c, r: 1 - (BETA * c.sum()).sigmoid() + (BETA * r.sum()).sigmoid(),
}


@pytest.mark.parametrize("loss", OTHERS)
@pytest.mark.parametrize("sides", [SINGLE, ANEW], ids=["one context", "contexts that begin anew"])
def test_other_losses_are_those_of_slow_twins(
    new_model: Callable[..., Any], chat: Chat, trainer_of: Callable[..., PairTrainer], sides: Any, loss: str
) -> None:
    rows = some_rows(3, sides)
    trainer = trainer_of(moved(new_model()), rows, new_model().eval(), loss=loss)
    trainer.model.eval()
    twin, reference = moved(new_model()).eval(), new_model().eval()
    with torch.no_grad():
        found = trainer.compute_loss(trainer.model, PairCollator(chat.pad_id)(rows)).item()
        ratios = [[said_logps(twin, row[n]) - said_logps(reference, row[n]) for n in row] for row in rows]
    expected = torch.stack([OTHERS[loss](chosen, rejected) for chosen, rejected in ratios]).mean().item()
    assert found == pytest.approx(expected, rel=1e-4)


def test_every_loss_of_the_flag_is_one_of_trl(
    new_model: Callable[..., Any], chat: Chat, trainer_of: Callable[..., PairTrainer]
) -> None:
    rows, found = some_rows(3, SINGLE), dict[str, float]()
    for loss in get_args(Loss):
        smoothed = {"label_smoothing": 0.1} if loss in ("exo_pair", "robust") else {}
        trainer = trainer_of(moved(new_model()), rows, new_model().eval(), loss=loss, **smoothed)
        trainer.model.eval()
        with torch.no_grad():
            found[loss] = trainer.compute_loss(trainer.model, PairCollator(chat.pad_id)(rows)).item()
    assert all(map(isfinite, found.values()))
    # Those of distributions are others' where sorting pairs changes nothing.
    assert len({round(value, 5) for name, value in found.items() if "aot" not in name}) == len(found) - 2


@pytest.mark.parametrize("ld_alpha", [0.0, 0.4])
def test_what_the_longer_side_says_beyond_the_shorter_counts_less(
    new_model: Callable[..., Any], chat: Chat, trainer_of: Callable[..., PairTrainer], ld_alpha: float
) -> None:
    rows = some_rows(3, ANEW)
    trainer = trainer_of(moved(new_model()), rows, new_model().eval(), ld_alpha=ld_alpha)
    trainer.model.eval()
    twin, reference, losses = moved(new_model()).eval(), new_model().eval(), list[torch.Tensor]()
    with torch.no_grad():
        found = trainer.compute_loss(trainer.model, PairCollator(chat.pad_id)(rows)).item()
        for row in rows:
            ratios = [said_logps(twin, side) - said_logps(reference, side) for side in row.values()]
            both = min(map(len, ratios))
            chosen, rejected = (side[:both].sum() + ld_alpha * side[both:].sum() for side in ratios)
            losses.append(-logsigmoid(BETA * (chosen - rejected)))
    assert found == pytest.approx(torch.stack(losses).mean().item(), rel=1e-4)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"loss": "exo_pair"}, "exo_pair needs label_smoothing above 0"),
        ({"label_smoothing": 0.1}, "not for sigmoid"),
        ({"loss": "robust", "label_smoothing": 0.5}, "below 0.5"),
        ({"ld_alpha": 1.5}, "ld_alpha from 0 to 1"),
    ],
)
def test_losses_that_make_no_sense_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        DPOConfig(**settings)


@pytest.mark.parametrize("sides", [SINGLE, ANEW], ids=["one context", "contexts that begin anew"])
def test_what_was_read_and_how_much_is_padded_change_nothing(
    new_model: Callable[..., Any], chat: Chat, trainer_of: Callable[..., PairTrainer], sides: Any
) -> None:
    rows = some_rows(5, sides)
    trainer = trainer_of(moved(new_model()), rows, new_model().eval())
    trainer.model.eval()
    collate = PairCollator(chat.pad_id)
    with torch.no_grad():
        together = trainer.compute_loss(trainer.model, collate(rows)).item()
        apart = [trainer.compute_loss(trainer.model, collate([row])).item() for row in rows]
        assert together == pytest.approx(sum(apart) / len(apart), abs=1e-5)
        # A token behind the last that is said is only read.
        behind = [{n: [*side[:-1], {k: [*v, 0] for k, v in side[-1].items()}] for n, side in r.items()} for r in rows]
        assert trainer.compute_loss(trainer.model, collate(behind)).item() == pytest.approx(together, abs=1e-5)


# What is compared of episodes.


class Reader(Policy):
    """Says one line after the other, whatever it is asked."""

    name = "reader"

    def __init__(self, lines: tuple[str, ...]) -> None:
        self._lines = iter(lines)

    async def reply(self, context: TurnContext) -> Reply:
        return Reply(next(self._lines))


def play(agent: str, lines: tuple[str, ...]) -> Episode:
    """In a world where tails, heads, tails is right."""
    env = Agent.parse(agent).wrap(Coin())
    (episode,) = play_many(env, Reader(lines), [EpisodeSpec("coin/train/5", seed=0)])
    return episode


def test_chosen_and_rejected_share_their_tokens_up_to_where_they_diverge(chat: Chat) -> None:
    one, other = play("bare", ("tails", "heads", "tails")), play("bare", ("tails", "tails", "tails"))
    (pair,) = make_pairs([one, other], Pairing())
    row = encode_pair(chat, pair)
    (chosen,), (rejected,) = row["chosen"], row["rejected"]
    assert pair.shared == 1
    for side, episode in ((chosen, one), (rejected, other)):
        (whole,) = trajectory(encode(chat, episode)).segments
        assert side["ids"] == list(whole.ids)
        assert side["loss_mask"] == [int(turn >= 1) for turn in whole.turns]
        said = [i for i, said in zip(side["ids"], side["loss_mask"], strict=True) if said]
        replies = [turn.reply.text for turn in episode.turns[1:]]
        assert said == [i for text in replies for i in chat.reply_ids(text)]
    first = chosen["loss_mask"].index(1)
    assert rejected["loss_mask"].index(1) == first
    assert chosen["ids"][:first] == rejected["ids"][:first]
    assert chosen["ids"][first:] != rejected["ids"][first:]


def test_contexts_that_end_before_they_diverge_are_in_neither(chat: Chat) -> None:
    agent = "bare+retry:2"
    lost, won = ("heads",) * 3, ("tails", "heads", "tails")
    note = "Other sides."
    one = play(agent, (*lost, note, *won))
    other = play(agent, (*lost, note, *lost, note, *lost))
    assert (one.score, other.score) == (1.0, pytest.approx(1 / 3))
    (pair,) = make_pairs([one, other], Pairing())
    row = encode_pair(chat, pair)
    assert pair.shared == 4
    assert (len(row["chosen"]), len(row["rejected"])) == (1, 2)
    texts = {name: [chat.tokenizer.decode(s["ids"]) for s in side] for name, side in row.items()}
    assert all(note in text for side in texts.values() for text in side)


def test_a_reply_that_was_cut_off_does_not_say_that_it_ended(chat: Chat) -> None:
    one, other = play("bare", ("tails", "heads", "tails")), play("bare", ("tails", "tails", "tails"))
    cut = replace(other.turns[1], reply=Reply("ta", finish="length"), action=None)
    other = replace(other, turns=(other.turns[0], cut), stop="length")
    (pair,) = make_pairs([one, other], Pairing())
    (rejected,) = encode_pair(chat, pair)["rejected"]
    said = [i for i, said in zip(rejected["ids"], rejected["loss_mask"], strict=True) if said]
    assert said == chat.reply_ids("ta")[:-1]
    assert chat.end_id not in said


def of_two_tries() -> list[Episode]:
    """Two episodes that say the same before their second try, which one of them wins."""
    lost, won, note = ("heads",) * 3, ("tails", "heads", "tails"), "Other sides."
    return [play("bare+retry:1", (*lost, note, *last)) for last in (won, lost)]


def test_the_budget_holds_for_each_context_and_not_for_all_of_a_side_together(chat: Chat) -> None:
    episodes = of_two_tries()
    early = [
        replace(e, turns=(replace(e.turns[0], reply=Reply(said)), *e.turns[1:]))
        for e, said in zip(episodes, "ab", strict=True)
    ]
    pairs = make_pairs(early, Pairing())
    (row,) = (encode_pair(chat, pair) for pair in pairs)
    assert [len(side) for side in row.values()] == [2, 2]
    longest = max(len(segment["ids"]) for side in row.values() for segment in side)

    def chosen(most: int) -> tuple[list[Row], str]:
        config = DPOConfig(model="scratch", generation=Generation(max_tokens=1, max_context=most))
        return learnable(TrainingSetup(None, chat, early), pairs, config)

    assert chosen(longest) == ([row], "")
    with pytest.raises(UsageError, match=f"1 pairs have a context of more than generation.max_context, {longest - 1}"):
        chosen(longest - 1)


def test_pairs_without_anything_to_learn_from_are_not_called_too_long(chat: Chat) -> None:
    one, other = play("bare", ("tails", "heads", "tails")), play("bare", ("tails", "tails", "tails"))
    silent = replace(other, turns=tuple(replace(turn, loss=False) for turn in other.turns))
    (pair,), config = make_pairs([one, other], Pairing()), DPOConfig(model="scratch")
    unsaid = replace(pair, rejected=silent)
    rows, left_out = learnable(TrainingSetup(None, chat, [one, silent]), [pair, unsaid], config)
    assert rows == [encode_pair(chat, pair)]
    assert left_out == "; in 1 more, one side has no tokens in the loss (`loss: false`)"
    with pytest.raises(UsageError, match="one side has no tokens in the loss: its replies are marked `loss: false`"):
        learnable(TrainingSetup(None, chat, [one, silent]), [unsaid], config)
