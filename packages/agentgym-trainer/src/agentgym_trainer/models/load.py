"""Where models come from, and where they go: by a name or path that Hugging Face knows, or built on the spot; with an
adapter, or merged with it again.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from agentgym_envs import Episode
from agentgym_envs.core.action_schema import described
from agentgym_envs.episodes.conversation import replay
from agentgym_eval.util.errors import UsageError

from agentgym_trainer.config import Lora
from agentgym_trainer.config.scratch import Scratch
from agentgym_trainer.models.scratch import build_model, train_tokenizer
from agentgym_trainer.tokens.chat import Chat


def load_model(name: str, *, dtype: torch.dtype, device: torch.device) -> tuple[Any, Chat]:
    """A causal language model and its chat, by name or path. Of an adapter: its model, merged with it.

    Raises:
        UsageError: when it can't be loaded; the message says what was tried.
    """
    from peft import AutoPeftModelForCausalLM
    from transformers import AutoModelForCausalLM

    chat = load_chat(name)
    how: Any = {"dtype": dtype, "attn_implementation": "sdpa", "device_map": {"": device}}
    with _loading(name) as place:
        model: Any = AutoModelForCausalLM.from_pretrained(place, **how)
        if model._hf_peft_config_loaded:
            # As it is it would be frozen, and could neither train nor get another adapter.
            model = AutoPeftModelForCausalLM.from_pretrained(place, **how).merge_and_unload().requires_grad_(True)
        return model, chat


def load_chat(name: str) -> Chat:
    """The tokenizer and chat template of a model, by name or path.

    Raises:
        UsageError: when they can't be loaded; the message says what was tried.
    """
    from transformers import AutoTokenizer

    with _loading(name) as place:
        return Chat(AutoTokenizer.from_pretrained(place))


def check_model(name: str) -> None:
    """Refuse a model that isn't there before anything is played for it; of its weights nothing is read.

    Raises:
        UsageError: when its tokenizer or, of a folder, its configuration can't be loaded.
    """
    from transformers import AutoConfig

    load_chat(name)
    if Path(name).is_dir() and not is_adapter(name):
        with _loading(name) as place:
            AutoConfig.from_pretrained(place)


@contextmanager
def _loading(name: str) -> Generator[str]:
    """Where to load a model of this name from; what goes wrong there is told in one sentence."""
    try:
        # An adapter notes where its model lies, and may be loaded from another directory than the one we are in.
        yield str(Path(name).resolve()) if Path(name).is_dir() else name
    except (OSError, ValueError) as error:
        reason = str(error).splitlines()[0]
        here = "The folder is there but is no such model" if Path(name).is_dir() else "There is no such folder here"
        raise UsageError(
            f"The model {name} can't be loaded. {here}, and as a name it needs a network: {reason} "
            "Give the path of a Hugging Face causal language model; `train --model scratch` builds one."
        ) from error


def is_adapter(name: str) -> bool:
    """Whether this is the folder of an adapter."""
    from peft.utils import CONFIG_NAME

    return Path(name, CONFIG_NAME).is_file()


def scratch_model(scratch: Scratch, episodes: Sequence[Episode], *, seed: int) -> tuple[Any, Chat]:
    """A model from scratch whose tokenizer is trained on what was seen and said in `episodes`."""
    texts = [text for episode in episodes for text in _texts(episode)]
    chat = Chat(train_tokenizer(texts, scratch.vocab, scratch.merges))
    model = build_model(scratch, vocab=len(chat.tokenizer), end_id=chat.end_id, pad_id=chat.pad_id, seed=seed)
    return model, chat


def with_lora(model: Any, lora: Lora, *, seed: int) -> Any:
    """The model with adapters, which alone train; to begin with they change nothing.

    Raises:
        UsageError: when one of `lora.targets` is no linear layer of the model, or is its head.
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
        # One that is shorter has begun anew.
        added = conversation[before if len(conversation) > before else 0 :]
        texts += [text for message in added if message.role != "system" for text in (message.role, message.content)]
        texts += ["assistant", turn.reply.text]
        before = len(conversation) + 1
    told = [episode.instructions, described(episode.tools)] if episode.tools else [episode.instructions]
    return ["system", *told, *texts, "user", episode.final_observation]
