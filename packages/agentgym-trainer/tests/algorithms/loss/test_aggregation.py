"""What each said token counts in the loss: the three means, over everything and over two processes."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
import torch
from agentgym_trainer.algorithms import PPO, AdvantageOutput, Aggregation, Algorithm, Imitation
from completion_tokens import Said, column, saids, seen_of
from hypothesis import given, settings
from hypothesis import strategies as st
from token_batches import alone, at_once

pytestmark = pytest.mark.quick

if TYPE_CHECKING:
    from agentgym_trainer.algorithms.types import Total

aggregations = st.builds(
    Aggregation, kind=st.sampled_from(["token", "sequence", "fixed"]), length=st.sampled_from([1, 5, 1024])
)


def slow_weights(tokens: list[Said], chosen: list[bool], knobs: Aggregation) -> list[float]:
    spoken = Counter(token.episode for token, counts in zip(tokens, chosen, strict=True) if counts)
    each = {
        "token": lambda token: 1 / sum(spoken.values()),
        "sequence": lambda token: 1 / len(spoken) / spoken[token.episode],
        "fixed": lambda token: 1 / len(spoken) / knobs.length,
    }[knobs.kind]
    return [each(token) if counts else 0.0 for token, counts in zip(tokens, chosen, strict=True)]


@settings(max_examples=30)
@given(saids(min_size=0), aggregations, st.data())
def test_weights_are_the_slow_twins(tokens: list[Said], knobs: Aggregation, data: st.DataObject) -> None:
    chosen = [data.draw(st.booleans()) for _ in tokens]
    weight_N = Algorithm(aggregation=knobs).weights(seen_of(tokens), torch.tensor(chosen, dtype=torch.bool), alone)
    assert weight_N.dtype == torch.float32
    assert weight_N.tolist() == pytest.approx(slow_weights(tokens, chosen, knobs))
    if any(chosen) and knobs.kind != "fixed":
        assert weight_N.sum().item() == pytest.approx(1)


@settings(max_examples=15)
@given(saids(min_size=0), aggregations)
def test_two_processes_weigh_like_one(tokens: list[Said], knobs: Aggregation) -> None:
    shares = [[t for t in tokens if t.episode != 1], [t for t in tokens if t.episode == 1]]

    def weights(tokens: list[Said], total: Total = alone) -> list[float]:
        return knobs.weights(seen_of(tokens), torch.ones(len(tokens), dtype=torch.bool), total).tolist()

    whole = weights(tokens)
    first, second = at_once(lambda rank, total: weights(shares[rank], total))
    assert first == pytest.approx([w for w, t in zip(whole, tokens, strict=True) if t.episode != 1])
    assert second == pytest.approx([w for w, t in zip(whole, tokens, strict=True) if t.episode == 1])


@settings(max_examples=15)
@given(saids(min_size=0), st.data())
def test_the_critic_counts_where_it_is_trained_and_chosen(tokens: list[Said], data: st.DataObject) -> None:
    chosen_N = torch.tensor([data.draw(st.booleans()) for _ in tokens], dtype=torch.bool)
    credit = AdvantageOutput(column(tokens, "advantage"), {}, column(tokens, "target"), column(tokens, "valued"))
    weight_N = PPO.critic_weights(credit, chosen_N, alone)
    assert weight_N is not None
    counted = [bool(chosen) and token.valued for chosen, token in zip(chosen_N, tokens, strict=True)]
    assert weight_N.tolist() == pytest.approx([counts / max(1, sum(counted)) for counts in counted])
    assert PPO.critic_weights(replace(credit, value_mask_N=None), chosen_N, alone) is None


@settings(max_examples=10)
@given(saids(min_size=0))
def test_imitation_credits_and_weighs_every_token_alike(tokens: list[Said]) -> None:
    experience = seen_of(tokens)
    credit = Imitation().compute_advantages(experience, alone)
    assert credit.advantages_N.tolist() == [1.0] * len(tokens)
    assert (credit.value_targets_N, credit.value_mask_N, credit.metrics) == (None, None, {})
    weight_N = Imitation().weights(experience, torch.ones(len(tokens), dtype=torch.bool), alone)
    assert weight_N.tolist() == pytest.approx([1 / len(tokens) for _ in tokens])


def test_knobs_that_mean_nothing_are_refused() -> None:
    with pytest.raises(ValueError, match=r"at least 1 completion token"):
        Aggregation("fixed", 0)
