"""Models from scratch: a small Qwen-style network with its own byte-level BPE tokenizer and a ChatML template.

They are ordinary Hugging Face models, for machines without network access or GPU and for tests.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from agentgym_trainer.config.scratch import Merges, Scratch

CHATML = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


_INITIAL_STD = 0.06
"""Standard deviation of the initial weights. At this size, training takes several times as long with Qwen's 0.02."""


def train_tokenizer(texts: Iterable[str], vocab: int, merges: Merges = "phrases") -> Any:
    """Train a byte-level BPE tokenizer on `texts`, with ChatML as its chat template.

    With `phrases`, merges cross word boundaries (SuperBPE, Liu et al. 2025, arXiv 2503.13423), but not digits:
    observations are mostly fixed phrases, and take a third of the tokens. See `Scratch.merges` for the others.
    """
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    special = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    tokenizer = Tokenizer(models.BPE())
    split: Any = pre_tokenizers.Digits(individual_digits=True)
    if merges == "labels":
        split = pre_tokenizers.Split(Regex(r"\p{L}+|\p{N}{1,2}|[^\p{L}\p{N}]+"), "isolated")
    words = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=merges == "words")
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([split, words])
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab,
        special_tokens=special,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    wrapped = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token="<|im_end|>", pad_token="<|endoftext|>", extra_special_tokens=special
    )
    wrapped.chat_template = CHATML
    return wrapped


def scratch_config(scratch: Scratch, *, vocab: int, end_id: int | None = None, pad_id: int | None = None) -> Any:
    """Return the transformers configuration of a Qwen3 of this size, with tied embeddings.

    Not Qwen2: `AutoTokenizer` applies Qwen2's splitting rules to every Qwen2 checkpoint, regardless of its tokenizer.
    """
    from transformers import Qwen3Config

    return Qwen3Config(
        vocab_size=vocab,
        hidden_size=scratch.hidden,
        intermediate_size=2 * scratch.hidden,
        num_hidden_layers=scratch.layers,
        num_attention_heads=scratch.heads,
        num_key_value_heads=scratch.heads,
        head_dim=scratch.hidden // scratch.heads,
        max_position_embeddings=scratch.context,
        tie_word_embeddings=True,
        eos_token_id=end_id,
        pad_token_id=pad_id,
        bos_token_id=None,
        initializer_range=_INITIAL_STD,
    )


def build_model(scratch: Scratch, *, vocab: int, end_id: int, pad_id: int, seed: int) -> Any:
    """Return a randomly initialized model of this size (`scratch_config`), in float32."""
    import torch
    from transformers import Qwen3ForCausalLM

    config = scratch_config(scratch, vocab=vocab, end_id=end_id, pad_id=pad_id)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return Qwen3ForCausalLM(config)
