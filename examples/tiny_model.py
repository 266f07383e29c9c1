"""A language model of a few hundred thousand parameters, made on the spot, for the examples that train with TRL.

It stands in for a real one, `AutoModelForCausalLM.from_pretrained(...)`, where there is neither a GPU nor a network.
Needs: pip install agentgym-trainer
"""

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from agentgym_trainer.config.scratch import Scratch
from agentgym_trainer.models.scratch import build_model, train_tokenizer
from trl.chat_template_utils import qwen2_5_chat_template

torch.set_num_threads(1)


def tiny_tokenizer(texts: Iterable[str]) -> Any:
    """A tokenizer for these texts with the chat template of Qwen2.5, which has a place for functions."""
    tokenizer = train_tokenizer(texts, vocab=1000)
    tokenizer.chat_template = qwen2_5_chat_template
    return tokenizer


def tiny_model(tokenizer: Any) -> Any:
    """A random model for it."""
    size = Scratch(hidden=64, layers=2, heads=2, context=4096)
    ends = {"end_id": tokenizer.eos_token_id, "pad_id": tokenizer.pad_token_id}
    return build_model(size, vocab=len(tokenizer), seed=0, **ends)


def teach(model: Any, rows: Sequence[tuple[list[int], int]], steps: int) -> None:
    """Have it imitate token ids from a place on: random replies give reinforcement learning nothing to begin with."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    model.train()
    for step in range(steps):
        ids, start = rows[step % len(rows)]
        labels = torch.tensor([[-100] * start + ids[start:]])
        model(input_ids=torch.tensor([ids]), labels=labels).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
