"""Log-probabilities and entropies of given tokens, with gradients, without a tokens x vocabulary matrix.

The head is applied to one chunk of tokens at a time, and again in the backward pass, so only one number per token is
stored in between. It needs a weight matrix and hidden states, but not the model.
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

CHUNK_BYTES = {"cpu": 2**27, "cuda": 2**30}
"""Size of a chunk's logits in float32, of which there are a few copies. A GPU would wait for memory with smaller ones:
the gradient of the whole head is read and written once per chunk."""


def token_scores(
    hidden_MD: Tensor, weight_VD: Tensor, target_M: Tensor, *, temperature: float = 1.0, chunk: int | None = None
) -> tuple[Tensor, Tensor]:
    """Return the log-probability of each target and the entropy of its distribution in nats.

    Both are differentiable with respect to the hidden states and the weight. The head is applied in autocast's dtype if
    autocast is on, else in that of the hidden states. Softmax, sums, and on a GPU the logits are at least float32.

    Args:
        hidden_MD: Last hidden states.
        weight_VD: Weight of the head.
        target_M: Token ids, int64.
        temperature: Divides the logits.
        chunk: Tokens per chunk; None: 1 GiB of logits on a GPU, 128 MiB on a CPU. Affects memory, not results.
    """
    device, dtype = hidden_MD.device.type, _dtype(hidden_MD)
    chunk = chunk or max(1, CHUNK_BYTES.get(device, 2**30) // (4 * len(weight_VD)))
    with torch.autocast(device, enabled=False):
        scores: Any = _TokenScores.apply(hidden_MD, weight_VD, target_M, temperature, chunk, dtype)
    return scores


class _TokenScores(torch.autograd.Function):
    """With logits z, log-probabilities l, probabilities p and entropy H: dl[y]/dz = 1[y] - p and dH/dz = -p (l + H)."""

    @staticmethod
    def forward(
        ctx: Any,
        hidden_MD: Tensor,
        weight_VD: Tensor,
        target_M: Tensor,
        temperature: float,
        chunk: int,
        dtype: torch.dtype,
    ) -> tuple[Tensor, Tensor]:
        head = weight_VD.to(dtype)
        logp, entropy = [], []
        for h, y in zip(hidden_MD.split(chunk), target_M.split(chunk), strict=True):
            logp_CV = _log_softmax(h, head, temperature)
            logp.append(logp_CV.gather(1, y[:, None])[:, 0])
            entropy.append(torch.linalg.vecdot(logp_CV.exp(), logp_CV).neg_())
        entropy_M = torch.cat(entropy)
        ctx.save_for_backward(hidden_MD, weight_VD, target_M, entropy_M)
        ctx.temperature, ctx.chunk, ctx.dtype = temperature, chunk, dtype
        ctx.set_materialize_grads(False)
        return torch.cat(logp), entropy_M

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grad_outputs: Any) -> tuple[Any, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        hidden_MD, weight_VD, target_M, entropy_M = ctx.saved_tensors
        grad_logp_M, grad_entropy_M = grad_outputs
        if grad_logp_M is None:
            grad_logp_M = torch.zeros_like(entropy_M)
        head = weight_VD.to(ctx.dtype)
        grad_hidden_MD = torch.empty_like(hidden_MD)
        grad_weight_VD = None
        if ctx.needs_input_grad[1]:
            grad_weight_VD = torch.zeros_like(weight_VD, dtype=torch.promote_types(weight_VD.dtype, torch.float32))
        for start in range(0, len(hidden_MD), ctx.chunk):
            chunk = slice(start, start + ctx.chunk)
            h = hidden_MD[chunk].to(ctx.dtype)
            grad_CV = _log_softmax(h, head, ctx.temperature)
            grad_entropy_C = None if grad_entropy_M is None else grad_entropy_M[chunk]
            grad_CV = _grad_logits(grad_CV, target_M[chunk], entropy_M[chunk], grad_logp_M[chunk], grad_entropy_C)
            grad_CV = grad_CV.div_(ctx.temperature).to(ctx.dtype)
            grad_hidden_MD[chunk] = grad_CV @ head
            if grad_weight_VD is not None:
                grad_weight_VD += _product(grad_CV.T, h)
        if grad_weight_VD is not None:
            grad_weight_VD = grad_weight_VD.to(weight_VD.dtype)
        return grad_hidden_MD, grad_weight_VD, None, None, None, None


@contextmanager
def unrounded_logits(head: Any) -> Generator[None]:
    """Have a model's head on a GPU return float32 logits in the context, as they are in `token_scores`.

    A linear layer would round them to bfloat16 under autocast, which changes log-probabilities by a hundredth.

    Args:
        head: The output embeddings. Other layers than linear ones stay as they are.
    """
    if type(head) is not nn.Linear or not head.weight.is_cuda:
        yield
        return
    vars(head)["forward"] = partial(_logits, head)
    try:
        yield
    finally:
        del vars(head)["forward"]


def _dtype(hidden: Tensor) -> torch.dtype:
    """Return the type that the head is applied in."""
    device = hidden.device.type
    return torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else hidden.dtype


def _logits(head: Any, hidden: Tensor) -> Tensor:
    dtype = _dtype(hidden)
    with torch.autocast(hidden.device.type, enabled=False):
        logits = _product(hidden.flatten(0, -2).to(dtype), head.weight.to(dtype).T)
        return (logits if head.bias is None else logits + head.bias).unflatten(0, hidden.shape[:-1])


def _log_softmax(hidden_CD: Tensor, head_VD: Tensor, temperature: float) -> Tensor:
    logits = _product(hidden_CD.to(head_VD.dtype), head_VD.T)
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
    return torch.log_softmax(logits.div_(temperature) if temperature != 1 else logits, -1)


def _product(left: Tensor, right: Tensor) -> Tensor:
    """Return the matrix product. Of half-precision matrices on a GPU it isn't rounded, but float32."""
    if left.is_cuda and left.dtype in (torch.bfloat16, torch.float16):
        return torch.mm(left, right, out_dtype=torch.float32)
    return left @ right


def _grad_logits(
    logp_CV: Tensor, target_C: Tensor, entropy_C: Tensor, grad_logp_C: Tensor, grad_entropy_C: Tensor | None
) -> Tensor:
    """Return the gradient of the loss with respect to the logits; `logp_CV` is overwritten."""
    grad_CV = logp_CV.exp()
    if grad_entropy_C is None:
        grad_CV.mul_(-grad_logp_C[:, None])
    else:
        spread = logp_CV.add_(entropy_C[:, None]).mul_(grad_entropy_C[:, None])
        grad_CV.mul_(spread.add_(grad_logp_C[:, None]).neg_())
    return grad_CV.scatter_add_(1, target_C[:, None], grad_logp_C[:, None])
