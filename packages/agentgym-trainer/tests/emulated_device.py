"""A torch device that isn't the CPU, with values, on machines without a GPU.

Tensors on the device wrap tensors on the CPU, which compute. To torch, accelerate and transformers they are on an
accelerator: autograd runs in the device's thread, and operations on tensors of several devices raise errors by CUDA's
rules, as do NumPy arrays and generators of the CPU. `FakeTensorMode` (`fake_cuda`) covers the branches for CUDA itself,
but has no values, so no update can run in it.

The device belongs to the process and is the default accelerator from then on: use it in processes of their own.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from accelerate import Accelerator
from torch import Tensor
from torch.utils._pytree import tree_iter, tree_map
from torch.utils.backend_registration import _setup_privateuseone_for_python_backend
from toy_learner import train_cli
from two_processes import CASES, train

aten = torch.ops.aten
COPIES = {aten.copy_.default, aten._to_copy.default}
"""Operations between devices."""
INDEXING = {
    aten.index.Tensor, aten._unsafe_index.Tensor, aten.index_put.default, aten.index_put_.default,
    aten._index_put_impl_.default,
}  # fmt: skip
"""Operations that take indices on the CPU for a tensor on the device, but not the other way round."""

_LIBRARIES: list[torch.library.Library] = []
"""Their kernels are unregistered when they are collected."""


class EmulatedTensor(Tensor):
    """A tensor on the emulated device."""

    data_on_cpu: Tensor

    @staticmethod
    def __new__(cls, data: Tensor) -> EmulatedTensor:
        tensor = Tensor._make_wrapper_subclass(
            cls, data.size(), strides=data.stride(), storage_offset=data.storage_offset(), dtype=data.dtype,
            device=torch.device("emulated", 0),
        )  # fmt: skip
        tensor.data_on_cpu = data
        return tensor

    __torch_function__ = torch._C._disabled_torch_function_impl

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _compute(func, args, kwargs or {})

    def __tensor_flatten__(self) -> tuple[list[str], None]:
        return ["data_on_cpu"], None

    @staticmethod
    def __tensor_unflatten__(inner: dict[str, Tensor], *_: Any) -> EmulatedTensor:
        return EmulatedTensor(inner["data_on_cpu"])

    def tolist(self) -> Any:
        return self.data_on_cpu.detach().tolist()

    def numpy(self, *, force: bool = False) -> Any:
        if not force:
            raise TypeError("can't convert emulated:0 device type tensor to numpy; use Tensor.cpu() first")
        return self.data_on_cpu.detach().numpy()

    def untyped_storage(self) -> Any:
        return self.data_on_cpu.untyped_storage()

    def data_ptr(self) -> int:
        return self.data_on_cpu.data_ptr()

    def __repr__(self, **_: Any) -> str:
        return f"EmulatedTensor({self.data_on_cpu})"


def emulate_device() -> torch.device:
    """Make an emulated device this process's accelerator, and return it."""
    backend: Any = ModuleType("torch.emulated")
    vars(backend).update(
        is_available=lambda: True, device_count=lambda: 1, current_device=lambda: 0, is_initialized=lambda: True,
        _is_in_bad_fork=lambda: False, manual_seed_all=lambda _: None, synchronize=lambda *_: None,
        get_rng_state=lambda *_: torch.get_rng_state(), set_rng_state=lambda *_: None,
        get_amp_supported_dtype=lambda: [torch.bfloat16],
    )  # fmt: skip
    _setup_privateuseone_for_python_backend("emulated", backend)
    library = torch.library.Library("aten", "IMPL")
    for func in (aten.empty.memory_format, aten.empty_strided.default, *COPIES):
        library.impl(func, lambda *args, func=func, **kwargs: _compute(func, args, kwargs), "PrivateUse1")
    _LIBRARIES.append(library)
    os.environ["ACCELERATE_TORCH_DEVICE"] = "emulated:0"  # which transformers reads, too
    return torch.device("emulated", 0)


def _compute(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """Compute an operation on the CPU; its result is on the device if its arguments are, or if it's to be there."""
    tensors = [tensor for tensor in tree_iter((args, kwargs)) if isinstance(tensor, Tensor)]
    on_device = [tensor for tensor in tensors if isinstance(tensor, EmulatedTensor)]
    _check_devices(func, tensors, on_device, kwargs)
    raw_args, raw_kwargs = tree_map(_on_cpu, (args, kwargs))
    target = kwargs.get("device")
    if target is not None:
        raw_kwargs["device"] = torch.device("cpu")
    result = func(*raw_args, **raw_kwargs)
    if func is aten._local_scalar_dense.default:
        return result
    wrapped = bool(on_device) if target is None else torch.device(target).type == "emulated"
    # Operations in place return the tensor that they were given.
    given = {id(_on_cpu(tensor)): tensor for tensor in tensors} if func._schema.is_mutable else {}

    def place(value: Any) -> Any:
        if not isinstance(value, Tensor):
            return value
        return given.get(id(value)) if id(value) in given else EmulatedTensor(value) if wrapped else value

    return tree_map(place, result)


def _on_cpu(value: Any) -> Any:
    return value.data_on_cpu if isinstance(value, EmulatedTensor) else value


def _check_devices(func: Any, tensors: Sequence[Tensor], on_device: Sequence[Tensor], kwargs: dict[str, Any]) -> None:
    """Raise the error that the operation would have raised on CUDA."""
    generator = kwargs.get("generator")
    if on_device and generator is not None and generator.device.type == "cpu":
        raise RuntimeError(f"{func}: expected a generator on emulated:0, but found one on cpu")
    if not on_device or func in COPIES:
        return
    others = [tensor for tensor in tensors if not isinstance(tensor, EmulatedTensor)]
    if not others:
        return
    if func in INDEXING:
        others = [] if isinstance(tensors[0], EmulatedTensor) else others
    elif torch.Tag.pointwise in func.tags and not (func._schema.is_mutable and tensors[0] is others[0]):
        others = [tensor for tensor in others if tensor.ndim]  # scalars on the CPU are allowed
    if others:
        found = ", ".join(f"{tuple(tensor.shape)} on {tensor.device}" for tensor in tensors)
        raise RuntimeError(f"{func}: expected all tensors to be on the same device, but found {found}")


def check_rules() -> None:
    """Check which operations an emulated device refuses, and gradients of those that it computes."""
    device = emulate_device()
    layer, rows = torch.nn.Linear(3, 2).to(device), torch.ones(4, 3)
    refused: dict[str, Any] = {
        "a layer there, rows on the CPU": lambda: layer(rows),
        "an index there, rows on the CPU": lambda: rows[torch.tensor([1], device=device)],
        "a scalar on the CPU in a stack": lambda: torch.stack([torch.zeros(()), torch.zeros((), device=device)]),
        "a sum on the CPU": lambda: torch.zeros(()).add_(torch.ones((), device=device)),
        "NumPy": lambda: rows.to(device).numpy(),
        "a generator of the CPU": lambda: torch.randn(2, device=device, generator=torch.Generator()),
    }
    for case, operation in refused.items():
        try:
            operation()
        except (RuntimeError, TypeError) as error:
            assert "emulated:0" in str(error), (case, error)
        else:
            raise AssertionError(f"{case} was not refused")
    loss = (layer(rows.to(device)) * torch.tensor(2.0))[torch.tensor([0, 1])].sum()
    loss.backward()
    gradient = layer.weight.grad
    assert isinstance(gradient, EmulatedTensor)
    assert gradient.tolist() == [[4.0] * 3] * 2


def update_cases(out: Path) -> None:
    """Update in each case of `two_processes` on an emulated device; write metrics and weights, on the CPU, to `out`."""
    device, results = emulate_device(), dict[str, Any]()
    for case in CASES:
        accelerator = Accelerator()
        assert accelerator.device == device
        metrics, weights = train(case, accelerator)
        assert {weight.device for weight in weights.values()} == {device}
        results[case] = metrics, {name: weight.cpu() for name, weight in weights.items()}
    torch.save(results, out)


def train_on_device(arguments: Sequence[str], log: Path) -> None:
    """Run `train` on an emulated device as the main function of a process; stderr goes to `log`."""
    emulate_device()
    raise SystemExit(train_cli([*arguments, "--device", "auto", "--precision", "no"], log))
