"""Tests of the weight of each completion token in the loss, for the three aggregations, in one process and in two."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
import torch
from agentgym_trainer.algorithms import PPO, AdvantageOutput, Aggregation, Algorithm, Imitation
from completion_tokens import CompletionToken, column, completion_tokens, token_batch_of
from hypothesis import given, settings
from hypothesis import strategies as st
from token_batches import run_processes, single_process_total

pytestmark = pytest.mark.quick

if TYPE_CHECKING:
    from agentgym_trainer.algorithms.types import Total

aggregations = st.builds(
    Aggregation, kind=st.sampled_from(["token", "sequence", "fixed"]), length=st.sampled_from([1, 5, 1024])
)


def slow_weights(tokens: list[CompletionToken], chosen: list[bool], aggregation: Aggregation) -> list[float]:
    token_counts = Counter(token.episode for token, is_chosen in zip(tokens, chosen, strict=True) if is_chosen)
    weight = {
        "token": lambda token: 1 / sum(token_counts.values()),
        "sequence": lambda token: 1 / len(token_counts) / token_counts[token.episode],
        "fixed": lambda token: 1 / len(token_counts) / aggregation.length,
    }[aggregation.kind]
    return [weight(token) if is_chosen else 0.0 for token, is_chosen in zip(tokens, chosen, strict=True)]


@settings(max_examples=30)
@given(completion_tokens(min_size=0), aggregations, st.data())
def test_weights_match_the_slow_reference(
    tokens: list[CompletionToken], aggregation: Aggregation, data: st.DataObject
) -> None:
    chosen = [data.draw(st.booleans()) for _ in tokens]
    weight_N = Algorithm(aggregation=aggregation).weights(
        token_batch_of(tokens), torch.tensor(chosen, dtype=torch.bool), single_process_total
    )
    assert weight_N.dtype == torch.float32
    assert weight_N.tolist() == pytest.approx(slow_weights(tokens, chosen, aggregation))
    if any(chosen) and aggregation.kind != "fixed":
        assert weight_N.sum().item() == pytest.approx(1)


@settings(max_examples=15)
@given(completion_tokens(min_size=0), aggregations)
def test_two_processes_have_the_same_weights_as_one(tokens: list[CompletionToken], aggregation: Aggregation) -> None:
    shares = [[t for t in tokens if t.episode != 1], [t for t in tokens if t.episode == 1]]

    def weights(tokens: list[CompletionToken], total: Total = single_process_total) -> list[float]:
        return aggregation.weights(token_batch_of(tokens), torch.ones(len(tokens), dtype=torch.bool), total).tolist()

    expected = weights(tokens)
    first, second = run_processes(lambda rank, total: weights(shares[rank], total))
    assert first == pytest.approx([w for w, t in zip(expected, tokens, strict=True) if t.episode != 1])
    assert second == pytest.approx([w for w, t in zip(expected, tokens, strict=True) if t.episode == 1])


@settings(max_examples=15)
@given(completion_tokens(min_size=0), st.data())
def test_critic_weights_of_chosen_and_trained_tokens(tokens: list[CompletionToken], data: st.DataObject) -> None:
    chosen_N = torch.tensor([data.draw(st.booleans()) for _ in tokens], dtype=torch.bool)
    trains_critic_N = column(tokens, "trains_critic")
    advantages = AdvantageOutput(column(tokens, "advantage"), {}, column(tokens, "target"), trains_critic_N)
    weight_N = PPO.critic_weights(advantages, chosen_N, single_process_total)
    assert weight_N is not None
    trained = [bool(chosen) and token.trains_critic for chosen, token in zip(chosen_N, tokens, strict=True)]
    assert weight_N.tolist() == pytest.approx([is_trained / max(1, sum(trained)) for is_trained in trained])
    assert PPO.critic_weights(replace(advantages, value_mask_N=None), chosen_N, single_process_total) is None


@settings(max_examples=10)
@given(completion_tokens(min_size=0))
def test_imitation_has_equal_advantages_and_weights(tokens: list[CompletionToken]) -> None:
    token_batch = token_batch_of(tokens)
    advantages = Imitation().compute_advantages(token_batch, single_process_total)
    assert advantages.advantages_N.tolist() == [1.0] * len(tokens)
    assert (advantages.value_targets_N, advantages.value_mask_N, advantages.metrics) == (None, None, {})
    weight_N = Imitation().weights(token_batch, torch.ones(len(tokens), dtype=torch.bool), single_process_total)
    assert weight_N.tolist() == pytest.approx([1 / len(tokens) for _ in tokens])


def test_invalid_length_is_rejected() -> None:
    with pytest.raises(ValueError, match=r"at least 1 completion token"):
        Aggregation("fixed", 0)
