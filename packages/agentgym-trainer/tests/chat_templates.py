"""Chat templates as test data: files written from the public formats of the models they are named after."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from agentgym_trainer.chat import Chat
from agentgym_trainer.scratch import train_tokenizer
from miniature import TEXTS

_FOLDER = Path(__file__).with_suffix("")
_CHATML = ["<|im_start|>", "<|im_end|>"]
_MISTRAL = ["<s>", "[INST]", "[/INST]", "[SYSTEM_PROMPT]", "[/SYSTEM_PROMPT]"]

# Control tokens, end of turn, beginning of text.
FAMILIES = {
    "chatml": (_CHATML, "<|im_end|>", None),
    "qwen2.5": (_CHATML, "<|im_end|>", None),
    "qwen3": (_CHATML, "<|im_end|>", None),
    "llama3": (["<|start_header_id|>", "<|end_header_id|>"], "<|eot_id|>", "<|begin_of_text|>"),
    "mistral": (_MISTRAL, "</s>", "<s>"),
    "mistral-v3": (_MISTRAL, "</s>", "<s>"),
    "gemma": (["<start_of_turn>"], "<end_of_turn>", "<bos>"),
    "silent": (_CHATML, "<|im_end|>", None),
}


@cache
def chat_of(family: str) -> Chat:
    """A small tokenizer with the template and control tokens of this family."""
    control, end, begin = FAMILIES[family]
    tokenizer = train_tokenizer(TEXTS, 320)
    tokenizer.add_special_tokens({"extra_special_tokens": [*control, end, *([begin] if begin else [])]})
    tokenizer.eos_token, tokenizer.bos_token = end, begin
    tokenizer.chat_template = (_FOLDER / f"{family}.jinja").read_text()
    return Chat(tokenizer)
