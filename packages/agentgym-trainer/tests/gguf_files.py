"""GGUF files of tiny models, written as llama.cpp's conversion script does, and skipping of tests that need them."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Generator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
from agentgym_eval.util.errors import UsageError
from agentgym_trainer.models import resolve
from agentgym_trainer.models.load import check_model
from agentgym_trainer.models.resolve import how_to_install, resolve_model
from agentgym_trainer.models.scratch import train_tokenizer
from agentgym_trainer.tokens.chat import Chat
from torch import Tensor
from toy_learner import TEXTS, VOCAB
from transformers import LlamaConfig, LlamaForCausalLM

_NORMAL, _CONTROL = 1, 3


def require_gguf(module: str = "gguf") -> None:
    """Skip the test, or the file if called at module level, if the extra `smollm2` is missing; in CI, fail."""
    if find_spec(module) is None:
        if os.environ.get("CI"):
            pytest.fail(how_to_install())
        pytest.skip(how_to_install(), allow_module_level=True)


def gguf_chat() -> Chat:
    """Return the chat of the tiny models. Its tokenizer splits text as SmolLM's does."""
    return Chat(train_tokenizer(TEXTS, VOCAB, merges="words"))


def tiny_llama(seed: int = 0) -> Any:
    """Return a random Llama that can be written to a GGUF file."""
    config = LlamaConfig(
        vocab_size=VOCAB, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=512, rms_norm_eps=2**-17, initializer_range=0.3,
    )  # fmt: skip
    with torch.random.fork_rng([]):
        torch.manual_seed(seed)
        return LlamaForCausalLM(config).eval()


def write_gguf(
    path: Path,
    model: Any,
    chat: Chat,
    *,
    architecture: str = "llama",
    template: bool = True,
    parts: int = 0,
    keep: Callable[[str], bool] = lambda name: True,
) -> Path:
    """Write a Llama and its tokenizer to a GGUF file in float32.

    Args:
        path: The file.
        model: The model.
        chat: Its chat.
        architecture: The architecture that the file claims.
        template: Whether to include the chat template.
        parts: If not 0, the number of files of which this one claims to be a part.
        keep: Selects weights by their names in the file.
    """
    from gguf import MODEL_ARCH, GGUFWriter, get_tensor_name_map

    config, writer = model.config, GGUFWriter(path, architecture)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_rope_dimension_count(config.head_dim)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    writer.add_vocab_size(config.vocab_size)
    if parts:
        writer.add_uint16("split.count", parts)
    _add_tokenizer(writer, chat, template=template)
    names = get_tensor_name_map(MODEL_ARCH.LLAMA, config.num_hidden_layers)
    for name, tensor in model.state_dict().items():
        stored = names.get_name(name, try_suffixes=(".weight",))
        assert stored is not None
        if keep(stored):
            writer.add_tensor(stored, _permuted(name, tensor, config).contiguous().numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _permuted(name: str, weight: Tensor, config: Any) -> Tensor:
    """Reorder the rows of queries and keys for llama.cpp, which rotates neighboring dimensions."""
    heads = {"q_proj": config.num_attention_heads, "k_proj": config.num_key_value_heads}.get(name.split(".")[-2])
    return weight.unflatten(0, (heads, 2, -1)).transpose(1, 2).flatten(0, 2) if heads else weight


def _add_tokenizer(writer: Any, chat: Chat, *, template: bool) -> None:
    tokenizer = chat.tokenizer
    state = json.loads(tokenizer.backend_tokenizer.to_str())
    tokens = sorted(tokenizer.get_vocab(), key=tokenizer.get_vocab().__getitem__)
    special = {token["content"] for token in state["added_tokens"]}
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(tokens)
    writer.add_token_types([_CONTROL if token in special else _NORMAL for token in tokens])
    writer.add_token_merges([" ".join(merge) for merge in state["model"]["merges"]])
    writer.add_eos_token_id(tokenizer.eos_token_id)
    writer.add_pad_token_id(tokenizer.pad_token_id)
    if template:
        writer.add_chat_template(tokenizer.chat_template)


def resolve_logged(path: Path, log: Path, caches: Path) -> None:
    """Resolve a model in a process of its own, with its cache in `caches`, and append the folder to a log."""
    os.environ["XDG_CACHE_HOME"] = str(caches)  # a fork server has the environment of its start
    folder = resolve_model(str(path))
    with log.open("a") as file:
        file.write(f"{folder}\n")


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


def error_of(name: str | Path) -> str:
    with pytest.raises(UsageError) as error:
        check_model(str(name))
    assert "\n" not in str(error.value)
    return str(error.value)
