"""Where models come from: a name or path that Hugging Face knows, or built on the spot."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from agentgym_envs import Episode
from agentgym_eval.errors import UsageError

from agentgym_trainer.chat import Chat
from agentgym_trainer.scratch import Scratch, build_model, train_tokenizer


def load_model(name: str, *, dtype: torch.dtype, device: torch.device) -> tuple[Any, Chat]:
    """A causal language model and its chat, by name or path.

    Raises:
        UsageError: when it can't be loaded; the message says what was tried.
    """
    from transformers import AutoModelForCausalLM, AutoTokenizer

    try:
        tokenizer = AutoTokenizer.from_pretrained(name)
        model = AutoModelForCausalLM.from_pretrained(
            name, dtype=dtype, attn_implementation="sdpa", device_map={"": device}
        )
        return model, Chat(tokenizer)
    except (OSError, ValueError) as error:
        reason = str(error).splitlines()[0]
        here = "The folder is there but is no such model" if Path(name).is_dir() else "There is no such folder here"
        raise UsageError(
            f"The model {name} can't be loaded. {here}, and as a name it needs a network: {reason} "
            'Give the path of a Hugging Face causal language model, or "scratch" to build one.'
        ) from error


def scratch_model(scratch: Scratch, episodes: Sequence[Episode], *, seed: int) -> tuple[Any, Chat]:
    """A model from scratch whose tokenizer is trained on what was seen and said in `episodes`."""
    texts = [text for episode in episodes for text in _texts(episode)]
    chat = Chat(train_tokenizer(texts, scratch.vocab))
    model = build_model(scratch, vocab=len(chat.tokenizer), end_id=chat.end_id, pad_id=chat.pad_id, seed=seed)
    return model, chat


def _texts(episode: Episode) -> list[str]:
    turns = [text for turn in episode.turns for text in ("user", turn.observation, "assistant", turn.reply.text)]
    return ["system", episode.instructions, *turns, "user", episode.final_observation]
