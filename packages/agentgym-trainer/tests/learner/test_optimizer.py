from __future__ import annotations

from collections.abc import Callable
from typing import Any
from unittest.mock import Mock

import pytest
import torch
from agentgym_trainer.algorithms import GRPO
from agentgym_trainer.learner import optimizer as optimizer_module
from agentgym_trainer.learner.optimizer import OffloadedMoments
from torch._subclasses.fake_tensor import FakeTensorMode
from toy_learner import make_learner, make_trajectories, update_on


def _devices(optimizer: torch.optim.Optimizer) -> set[str]:
    """Return the devices of the moments."""
    (state,) = optimizer.state.values()
    return {state[name].device.type for name in ("exp_avg", "exp_avg_sq")}


@pytest.mark.parametrize("fused", [True, False])
def test_offloaded_moments_are_on_the_device_only_in_the_context(fused: bool) -> None:
    with FakeTensorMode():
        weight = torch.nn.Parameter(torch.zeros(3, 2, device="cuda"))
        optimizer = torch.optim.AdamW([weight], fused=fused)
        moments = OffloadedMoments(optimizer)
        places: list[set[str]] = []
        for _ in range(2):
            with moments.on_device():
                weight.grad = torch.ones_like(weight)
                optimizer.step()
                places.append(_devices(optimizer))
            places.append(_devices(optimizer))
    assert places == [{"cuda"}, {"cpu"}] * 2


def test_loaded_moments_stay_in_host_memory_until_they_are_needed() -> None:
    """When a run resumes, its engine has taken the device's memory already."""
    weights = [torch.nn.Parameter(torch.ones(size)) for size in (3, 5)]
    optimizer = torch.optim.AdamW(weights)
    for weight in weights:
        weight.grad = torch.ones_like(weight)
    optimizer.step()
    stored = optimizer.state_dict()
    with FakeTensorMode():
        on_device = [torch.nn.Parameter(torch.zeros(size, device="cuda")) for size in (3, 5)]
        resumed = torch.optim.AdamW(on_device)
        moments = OffloadedMoments(resumed)
    resumed.load_state_dict(stored)
    for weight, own in zip(on_device, weights, strict=True):
        for name in ("exp_avg", "exp_avg_sq"):
            assert resumed.state[weight][name] is optimizer.state[own][name]
        assert resumed.state[weight]["step"] == 1
    assert stored["state"][0].keys() == {"step", "exp_avg", "exp_avg_sq"}
    assert not moments._loading


def test_large_moments_are_pinned_without_rounding_them_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """The plan counts 8 bytes of host memory per weight; torch's pinned memory would take a power of two each."""
    pinned: list[tuple[int, int]] = []
    monkeypatch.setattr(
        optimizer_module, "pin_in_place", lambda host: pinned.append((host.nbytes, host.untyped_storage().nbytes()))
    )
    rounded = Mock(wraps=torch.empty_like)
    monkeypatch.setattr(torch, "empty_like", rounded)
    with FakeTensorMode():
        weights = [torch.nn.Parameter(torch.zeros(size, device="cuda")) for size in (300_000, 100)]
        optimizer = torch.optim.AdamW(weights)
        moments = OffloadedMoments(optimizer)
        for _ in range(2):
            with moments.on_device():
                for weight in weights:
                    weight.grad = torch.ones_like(weight)
                optimizer.step()
    assert pinned == [(1_200_000, 1_200_000)] * 2
    assert not any(call.kwargs.get("pin_memory") for call in rounded.call_args_list)


def test_offloading_keeps_the_updates(new_model: Callable[..., Any]) -> None:
    students = [make_learner(new_model(init=1.0), offload=offload, reference=True) for offload in (False, True)]
    trajectories = make_trajectories(1)
    for student in students:
        for _ in range(2):
            update_on(student, trajectories, GRPO, minibatches=2)
    for one, other in zip(*(student.policy.parameters() for student in students), strict=True):
        assert torch.equal(one, other)
