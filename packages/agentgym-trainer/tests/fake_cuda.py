"""The CUDA branches of models on a machine without a GPU: tensors with shapes, dtypes and a device, but without data.

torch's `FakeTensorMode` computes such tensors on the device `cuda`. Two parts of torch refuse to work there without a
GPU: autocast, whose checks `fake_cuda` answers, and the autograd engine, which asks for CUDA's streams. `gradients`
follows the graph of a forward pass instead, and calls each backward function on fake gradients.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

CUDA = torch.device("cuda", 0)


@contextmanager
def fake_cuda() -> Generator[torch.device]:
    """Make new tensors fake, and allow autocast in bfloat16 on the device that is returned."""
    with (
        patch("torch.cuda.amp.common.amp_definitely_not_available", lambda: False),
        patch("torch.cuda.is_bf16_supported", lambda *_: True),
        FakeTensorMode(),
    ):
        yield CUDA


def gradients(outputs: Sequence[Tensor]) -> dict[Tensor, Tensor]:
    """Return the gradients of the sum of all outputs for each leaf that they depend on, by the leaf.

    Raises:
        AssertionError: A backward function returns a gradient on another device than what it is for.
    """
    grads: defaultdict[Any, dict[int, Tensor]] = defaultdict(dict)
    for output in outputs:
        _add(grads[output.grad_fn], output.output_nr, torch.ones_like(output))
    leaves: dict[Tensor, Tensor] = {}
    # Checkpointing recomputes a layer once per backward pass of that number, and outside of one for every tensor.
    with patch("torch._C._current_graph_task_id", lambda: 0):
        for node in _sorted([output.grad_fn for output in outputs]):
            if node.name() == "torch::autograd::AccumulateGrad":
                leaves[node.variable] = grads.pop(node)[0]
                continue
            for (parent, number), grad in zip(node.next_functions, _backward(node, grads.pop(node)), strict=False):
                if parent is not None and grad is not None:
                    _add(grads[parent], number, _reduced(parent, number, grad, node))
    return leaves


def _backward(node: Any, given: dict[int, Tensor]) -> Sequence[Tensor | None]:
    found = (node.apply if hasattr(node, "apply") else node)(*(given.get(n) for n in range(len(node._input_metadata))))
    return found if isinstance(found, tuple) else (found,)


def _reduced(parent: Any, number: int, grad: Tensor, node: Any) -> Tensor:
    """Sum a gradient over the dimensions that the forward pass broadcast, and cast it, as the autograd engine does."""
    if not parent._input_metadata:  # a leaf
        return grad
    expected = parent._input_metadata[number]
    assert grad.device == expected.device, (node.name(), parent.name())
    return grad.sum_to_size(tuple(expected.shape)).to(expected.dtype)


def _add(given: dict[int, Tensor], number: int, grad: Tensor) -> None:
    given[number] = given[number] + grad if number in given else grad


def _sorted(roots: Sequence[Any]) -> list[Any]:
    """Return all backward functions, each before those that it passes gradients to."""
    order: list[Any] = []
    seen: set[Any] = set()
    stack = [(root, False) for root in roots]
    while stack:
        node, done = stack.pop()
        if done:
            order.append(node)
        elif node not in seen:
            seen.add(node)
            stack += [(node, True), *((parent, False) for parent, _ in node.next_functions if parent is not None)]
    return order[::-1]
