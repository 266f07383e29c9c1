"""A language model of a few hundred thousand parameters, built from scratch for the examples that train.

It replaces `AutoModelForCausalLM.from_pretrained(...)` on machines without GPU and network.
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
    """Train a tokenizer on these texts; its chat template is that of Qwen2.5, which supports tools."""
    tokenizer = train_tokenizer(texts, vocab=1000)
    tokenizer.chat_template = qwen2_5_chat_template
    return tokenizer


def tiny_model(tokenizer: Any) -> Any:
    """Build a randomly initialized model for the tokenizer."""
    size = Scratch(hidden=64, layers=2, heads=2, context=4096)
    ends = {"end_id": tokenizer.eos_token_id, "pad_id": tokenizer.pad_token_id}
    return build_model(size, vocab=len(tokenizer), seed=0, **ends)


def teach(model: Any, rows: Sequence[tuple[list[int], int]], steps: int) -> None:
    """Fine-tune on `(ids, start)` rows, with the loss on `ids[start:]`: RL can't start from a random policy."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    model.train()
    for step in range(steps):
        ids, start = rows[step % len(rows)]
        labels = torch.tensor([[-100] * start + ids[start:]])
        model(input_ids=torch.tensor([ids]), labels=labels).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
