from __future__ import annotations

from typing import Any

import pytest
import torch
from agentgym_trainer.models.lm_head import token_scores
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

pytestmark = pytest.mark.quick


def _case(tokens: int, *, width: int = 6, vocab: int = 40, dtype: torch.dtype = torch.float32) -> tuple[Tensor, ...]:
    rng = torch.Generator().manual_seed(tokens)
    hidden, weight = (torch.randn(n, width, generator=rng, dtype=dtype).requires_grad_() for n in (tokens, vocab))
    return hidden, weight, torch.randint(vocab, (tokens,), generator=rng)


def _naive(hidden: Tensor, weight: Tensor, target: Tensor, temperature: float) -> tuple[Tensor, Tensor]:
    logp = torch.log_softmax((hidden @ weight.T).float() / temperature, -1)
    return logp.gather(1, target[:, None])[:, 0], -(logp.exp() * logp).sum(-1)


@pytest.mark.parametrize("outputs", [(0,), (1,), (0, 1)])
def test_gradients_match_finite_differences(outputs: tuple[int, ...]) -> None:
    hidden, weight, target = _case(5, width=3, vocab=7, dtype=torch.float64)

    def scores(h: Tensor, w: Tensor) -> tuple[Tensor, ...]:
        results = token_scores(h, w, target, temperature=0.7, chunk=2)
        return tuple(results[i] for i in outputs)

    assert torch.autograd.gradcheck(scores, (hidden, weight))


@settings(max_examples=40)
@given(st.integers(1, 20), st.integers(1, 25), st.sampled_from([1.0, 0.6, 1.7]))
def test_scores_and_gradients_match_naive_for_any_chunk_size(tokens: int, chunk: int, temperature: float) -> None:
    hidden, weight, target = _case(tokens)
    pairs = (
        token_scores(hidden, weight, target, temperature=temperature, chunk=chunk),
        _naive(hidden, weight, target, temperature),
    )
    direction = torch.randn(2, tokens, generator=torch.Generator().manual_seed(1))
    gradients = [torch.autograd.grad((torch.stack(pair) * direction).sum(), (hidden, weight)) for pair in pairs]
    for one, other in zip((*pairs[0], *gradients[0]), (*pairs[1], *gradients[1]), strict=True):
        assert one.dtype == torch.float32
        torch.testing.assert_close(one, other, atol=1e-5, rtol=1e-5)


def test_no_tokens_give_zero_gradients() -> None:
    hidden, weight, target = _case(0)
    logp, entropy = token_scores(hidden, weight, target)
    assert logp.shape == entropy.shape == (0,)
    (logp.sum() + entropy.sum()).backward()
    assert weight.grad is not None
    assert not weight.grad.any()


def test_frozen_head_gets_no_gradient() -> None:
    hidden, weight, target = _case(4)
    token_scores(hidden, weight.detach(), target)[0].sum().backward()
    expected = torch.autograd.grad(_naive(hidden, weight, target, 1.0)[0].sum(), hidden)[0]
    torch.testing.assert_close(hidden.grad, expected, atol=1e-5, rtol=1e-5)


def test_autocast_multiplies_in_bfloat16_and_sums_in_float32() -> None:
    hidden, weight, target = _case(12)
    with torch.autocast("cpu", torch.bfloat16):
        ours, naive = token_scores(hidden, weight, target, chunk=5), _naive(hidden, weight, target, 1.0)
    for one, other in zip(ours, naive, strict=True):
        assert one.dtype == torch.float32
        torch.testing.assert_close(one, other, atol=1e-5, rtol=1e-5)
    gradients = [torch.autograd.grad(sum(pair).sum(), (hidden, weight)) for pair in (ours, naive)]
    for one, other in zip(*gradients, strict=True):
        torch.testing.assert_close(one, other, atol=5e-2, rtol=5e-2)


class _LargestTensor(TorchDispatchMode):
    """Records the size of the largest tensor that any operation creates, including the backward pass."""

    largest = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        sizes = (leaf.untyped_storage().nbytes() for leaf in tree_leaves(result) if isinstance(leaf, Tensor))
        self.largest = max(self.largest, *sizes, 0)
        return result


def _largest(tokens: int, score: Any) -> int:
    hidden, weight, target = _case(tokens, width=4, vocab=1000)
    with _LargestTensor() as watch:
        logp, entropy = score(hidden, weight, target)
        (logp.sum() + entropy.sum()).backward()
    return watch.largest


def test_no_tensor_has_tokens_times_vocabulary_elements() -> None:
    chunk, size = 8, 4

    def ours(hidden: Tensor, weight: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
        return token_scores(hidden, weight, target, chunk=chunk)

    def naive(hidden: Tensor, weight: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
        return _naive(hidden, weight, target, 1.0)

    assert [_largest(tokens, ours) for tokens in (64, 128, 256)] == [chunk * 1000 * size] * 3
    assert [_largest(tokens, naive) for tokens in (64, 128, 256)] == [tokens * 1000 * size for tokens in (64, 128, 256)]


def test_only_one_number_per_token_is_saved_for_backward() -> None:
    saved: list[int] = []

    def pack(tensor: Tensor) -> Tensor:
        saved.append(tensor.numel())
        return tensor

    hidden, weight, target = _case(30)
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        token_scores(hidden, weight, target, chunk=4)
    assert sorted(saved) == sorted([hidden.numel(), weight.numel(), 30, 30])
