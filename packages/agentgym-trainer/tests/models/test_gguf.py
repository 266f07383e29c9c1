"""Tests of GGUF files as models: conversion, its cache, and errors."""

from __future__ import annotations

import errno
import json
import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from agentgym_envs import Message
from agentgym_trainer.models import gguf, resolve
from agentgym_trainer.models.load import check_model, is_adapter, load_chat, load_model
from agentgym_trainer.models.resolve import how_to_install, resolve_model
from agentgym_trainer.tokens.chat import Chat
from forked_processes import run_two_processes
from gguf_files import (
    converted,
    error_of,
    offline,
    require_gguf,
    resolve_logged,
    tiny_llama,
    without_package,
)
from toy_learner import VOCAB, limit_file_size

require_gguf()

IDS = torch.randint(3, VOCAB, (1, 30), generator=torch.Generator().manual_seed(0))
OPTIONS: dict[str, Any] = {"temperature": 0.0, "seed": 0, "max_tokens": 8}
CPU: dict[str, Any] = {"dtype": torch.float32, "device": torch.device("cpu")}
ROOT = Path(__file__).parents[4]
pytestmark = pytest.mark.usefixtures("cache")


# Conversion.


def test_converted_model_is_the_model_of_the_file(write: Callable[..., Path], llama: Any, words_chat: Chat) -> None:
    folder = resolve_model(str(write()))
    with offline():
        loaded, its_chat = load_model(folder, **CPU)
    weights = llama.state_dict()
    assert loaded.state_dict().keys() == weights.keys()
    assert all(torch.equal(tensor, weights[name]) for name, tensor in loaded.state_dict().items())
    with torch.no_grad():
        torch.testing.assert_close(loaded.eval()(IDS).logits, llama(IDS).logits)
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


@pytest.mark.long
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
