"""Tests of `scripts/check_vllm_calls.py`, on the sources of vLLM's CPU build, which are those of the CUDA build."""

from __future__ import annotations

import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

SCRIPTS = Path(__file__).parents[1] / "scripts"


@pytest.fixture(scope="module")
def script() -> Any:
    sys.path.insert(0, str(SCRIPTS))
    try:
        import check_vllm_calls

        return check_vllm_calls
    finally:
        sys.path.remove(str(SCRIPTS))


@pytest.fixture(scope="module")
def vllm(script: Any) -> Any:
    spec = find_spec("vllm")
    if spec is None or spec.origin is None:
        pytest.skip("vLLM isn't installed")
    return script.Sources(Path(spec.origin).parents[1])


def _faults(script: Any, vllm: Any, **changes: tuple[str, str]) -> list[str]:
    """Check our sources with replacements by file, and return what is wrong."""
    ours = script.our_sources()
    for file, (old, new) in changes.items():
        assert old in ours[f"{file}.py"]
        ours[f"{file}.py"] = ours[f"{file}.py"].replace(old, new)
    return [f"{finding.use}: {finding.fault}" for finding in script.Checker(vllm, ours).findings() if finding.fault]


@pytest.mark.long
def test_all_uses_of_vllm_fit_the_installed_version(script: Any, vllm: Any) -> None:
    found = script.check(vllm.root)
    assert [finding for finding in found if finding.fault] == []
    uses = {finding.use for finding in found}
    assert {"POST /inference/v1/generate", "EngineArgs(enable_sleep_mode=…)", "--max-lora-rank"} <= uses
    assert {f"{runner}.reload_weights(weights_iterator)" for runner in script.RUNNERS} <= uses


@pytest.mark.parametrize(
    ("file", "old", "new", "fault"),
    [
        ("in_process", "import EngineArgs", "import EngineArgsV2 as EngineArgs", "there is no such name"),
        ("in_process", "skip_tokenizer_init=True", "skip_tokenizer=True", "unexpected keyword argument"),
        ("in_process", '"enable_sleep_mode"', '"sleep_mode"', "EngineArgs has no such field"),
        ("in_process", "sleep(level=", "sleep(depth=", "unexpected keyword argument 'depth'"),
        ("in_process", "wake_up(freed)", 'wake_up(tags=["caches"])', "kv_cache, runtime, weights"),
        ("in_process", '"synchronize_device"', '"synchronise_device"', "has no synchronise_device"),
        ("in_process", '{"weights_iterator": tensors}', '{"weights": tensors}', "unexpected keyword argument"),
        ("in_process", "reply.token_ids", "reply.tokens", "CompletionOutput has no tokens"),
        ("worker", '"model_vocab_size":', '"vocab_size":', "unexpected keyword argument 'vocab_size'"),
        ("worker", "from_lora_tensors(ADAPTER, own, helper,", "from_lora_tensors(ADAPTER, own,", "missing a required"),
        ("client", '"/pause", params={"mode":', '"/pause", params={"how":', "it takes no how"),
        ("client", '{"new_version": label}', '{"version": label}', "it takes no version"),
        ("client", '"token_ids": list(ids)', '"ids": list(ids)', "it takes no ids"),
        ("client", '"/weight_info"', '"/weights"', "the server has no such route"),
        ("server", '"agentgym_hello"', '"agentgym_hallo"', "the extension has no such method"),
    ],
)
def test_a_call_that_does_not_fit_is_reported(
    script: Any, vllm: Any, file: str, old: str, new: str, fault: str
) -> None:
    (found,) = {found.partition(": ")[2] for found in _faults(script, vllm, **{file: (old, new)})}
    assert fault in found


def test_unknown_flags_and_variables_are_reported(script: Any, vllm: Any) -> None:
    checker = script.Checker(vllm, {})
    found = checker.flags(
        "here", "VLLM_SERVER_DEV_MODES=1 vllm serve --port 1 --no-enable-prefix-caching --max-lenght 2"
    )
    assert [finding.use for finding in found if finding.fault] == ["--max-lenght", "VLLM_SERVER_DEV_MODES"]


def test_an_expression_that_no_longer_occurs_is_reported(script: Any, vllm: Any) -> None:
    faults = _faults(script, vllm, worker=("slots", "others"))
    assert any(fault.startswith("slots: it doesn't occur any more") for fault in faults)


def test_the_pinned_version_is_read_from_the_extra(script: Any) -> None:
    assert script.pinned().startswith("vllm==")
