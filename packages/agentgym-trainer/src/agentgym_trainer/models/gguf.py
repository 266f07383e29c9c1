"""Conversion of a GGUF file, the format of llama.cpp, to a folder in Hugging Face's format.

The folder contains float32 weights in safetensors, the tokenizer and the chat template. transformers reads the file; it
can't save what it has read, since it regards the model as quantized.
"""

from __future__ import annotations

import errno
import math
import re
from collections.abc import Generator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import torch
from agentgym_eval.util.errors import UsageError

_SECONDS, _SECONDS_PER_GB = 20.0, 8.0
"""Time of a conversion on one core: reading the vocabulary several times, and converting a GB of float32 weights."""
_LONGEST_REASON = 300


class GGUFFile:
    """A GGUF file and its metadata."""

    def __init__(self, path: Path) -> None:
        """Read the metadata.

        Raises:
            UsageError: The file can't be read, is a part of a model, or its model has no chat template.
        """
        self.path = path
        with _reading(path):
            self._read()
        if self._parts > 1:
            raise UsageError(
                f"{path} is one of {self._parts} parts of a model. Merge them with llama.cpp: llama-gguf-split --merge."
            )
        if not self._has_chat_template:
            raise UsageError(f"The model {path} has no chat template; choose an instruct model.")

    def _read(self) -> None:
        from gguf import GGUFReader

        reader: Any = GGUFReader(self.path)

        def value(name: str) -> Any:
            return reader.fields[name].contents() if name in reader.fields else None

        self.converted_bytes = 4 * sum(int(tensor.n_elements) for tensor in reader.tensors)
        """Size of the converted weights."""
        self._architecture = value("general.architecture")
        self._parts = int(value("split.count") or 1)
        self._pre_tokenizer = value("tokenizer.ggml.pre")
        self._has_chat_template = bool(value("tokenizer.chat_template"))

    @property
    def seconds(self) -> int:
        """The estimated time of the conversion, rounded up to tens."""
        return 10 * math.ceil((_SECONDS + _SECONDS_PER_GB * self.converted_bytes / 1e9) / 10)

    def convert(self, folder: Path) -> None:
        """Write the model to an existing folder.

        Raises:
            UsageError: transformers doesn't support the model, or the file is damaged or lacks weights.
            OSError: The folder can't be written to.
        """
        # Whether a model was converted in this process must not affect what is sampled later.
        with _quiet_transformers(), torch.random.fork_rng([]):
            with _reading(self.path):
                tokenizer, model = self._load_tokenizer(), _without_mark(self._load_model())
            _save(tokenizer, model, folder)

    def _load_tokenizer(self) -> Any:
        from tokenizers import pre_tokenizers
        from transformers import AutoTokenizer

        tokenizer: Any = AutoTokenizer.from_pretrained(self.path.parent, gguf_file=self.path.name)
        if self._pre_tokenizer == "smollm":
            # transformers applies GPT-2's rules, by which a digit also changes how the whitespace before it is split.
            rules = [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
            tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence(rules)
        return tokenizer

    def _load_model(self) -> Any:
        import transformers

        options: dict[str, Any] = {"dtype": torch.float32, "output_loading_info": True}
        if hasattr(transformers, "GgufConfig"):  # transformers 5.16 doesn't have it and always dequantizes
            options["quantization_config"] = transformers.GgufConfig(dequantize=True)
        loader: Any = transformers.AutoModelForCausalLM
        model, report = loader.from_pretrained(self.path.parent, gguf_file=self.path.name, **options)
        if lacking := sorted({*report["missing_keys"], *(entry[0] for entry in report["mismatched_keys"])}):
            raise UsageError(
                f"The model {self.path} lacks {len(lacking)} weights of its architecture, {self._architecture}, such "
                f"as {lacking[0]}. Choose another file."
            )
        return model


def _without_mark(model: Any) -> Any:
    """Move the weights to a new model, which isn't marked as quantized."""
    if hasattr(model.config, "quantization_config"):
        del model.config.quantization_config
    with torch.device("meta"):
        plain = type(model)(model.config)
    plain.load_state_dict(model.state_dict(), assign=True)
    plain.tie_weights()
    plain.generation_config = model.generation_config
    return plain


def _save(tokenizer: Any, model: Any, folder: Path) -> None:
    """Save the model and its tokenizer.

    Raises:
        OSError: The folder can't be written to.
    """
    from safetensors import SafetensorError

    try:
        model.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
    except Exception as error:
        # safetensors and tokenizers don't raise OSError; tokenizers raises a bare Exception.
        if not isinstance(error, SafetensorError) and type(error) is not Exception:
            raise
        code = re.search(r"os error (\d+)", str(error))
        raise OSError(int(code[1]) if code else errno.EIO, str(error)) from error


@contextmanager
def _reading(file: Path) -> Generator[None]:
    """Turn errors of the libraries that read a GGUF file into a `UsageError`."""
    try:
        yield
    except UsageError:
        raise
    except Exception as error:  # unsupported and damaged files cause exceptions of any kind
        reason = " ".join(str(error).split())[:_LONGEST_REASON].rstrip(".")
        raise UsageError(
            f"The model {file} can't be converted ({type(error).__name__}: {reason}). Choose a GGUF file that is "
            "complete and has an architecture that transformers can read, such as llama, qwen2 or qwen3."
        ) from error


@contextmanager
def _quiet_transformers() -> Generator[None]:
    """Hide the progress bars of transformers, which would break those of a run, and its report of missing weights."""
    from transformers import modeling_gguf_pytorch_utils
    from transformers.utils import logging

    def without_bar(items: Any, **_: Any) -> Any:
        return items

    loader: Any = modeling_gguf_pytorch_utils
    with ExitStack() as stack:
        stack.callback(logging.set_verbosity, logging.get_verbosity())
        logging.set_verbosity_error()
        if logging.is_progress_bar_enabled():
            logging.disable_progress_bar()
            stack.callback(logging.enable_progress_bar)
        stack.callback(setattr, loader, "tqdm", loader.tqdm)  # this bar has no setting
        loader.tqdm = without_bar
        yield
