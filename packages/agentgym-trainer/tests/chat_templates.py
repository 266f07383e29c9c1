"""Chat templates as test data: files written from the public formats of the models they are named after."""

from __future__ import annotations

from functools import cache
from importlib.util import find_spec
from pathlib import Path

from agentgym_trainer.models.scratch import train_tokenizer
from agentgym_trainer.tokens.chat import Chat
from toy_learner import TEXTS

_FOLDER = Path(__file__).with_suffix("")
_CHATML = ["<|im_start|>", "<|im_end|>"]
_MISTRAL = ["<s>", "[INST]", "[/INST]", "[SYSTEM_PROMPT]", "[/SYSTEM_PROMPT]"]
_MISTRAL_TOOLS = ["[AVAILABLE_TOOLS]", "[/AVAILABLE_TOOLS]", "[TOOL_CALLS]", "[TOOL_RESULTS]", "[/TOOL_RESULTS]"]

# Control tokens, end of turn, beginning of text.
FAMILIES = {
    "chatml": (_CHATML, "<|im_end|>", None),
    "qwen2.5": (_CHATML, "<|im_end|>", None),
    "qwen3": (_CHATML, "<|im_end|>", None),
    "llama3": (["<|start_header_id|>", "<|end_header_id|>"], "<|eot_id|>", "<|begin_of_text|>"),
    "mistral": ([*_MISTRAL, *_MISTRAL_TOOLS], "</s>", "<s>"),
    "mistral-v3": (_MISTRAL, "</s>", "<s>"),
    "gemma": (["<start_of_turn>"], "<end_of_turn>", "<bos>"),
    "silent": (_CHATML, "<|im_end|>", None),
}


# Published templates, read from TRL's files without importing TRL.
PUBLISHED = {
    "qwen2.5 published": ("qwen2.5", "qwen2_5"),
    "qwen3 published": ("qwen3", "qwen3"),
    "llama3.1 published": ("llama3", "llama3_1"),
}


@cache
def make_chat(family: str) -> Chat:
    """Return a small tokenizer with the template and control tokens of a family."""
    return _chat(family, _FOLDER / f"{family}.jinja")


@cache
def published_chat(name: str) -> Chat:
    """Return a small tokenizer with a published template."""
    return trl_chat(*PUBLISHED[name])


def trl_chat(family: str, file: str) -> Chat:
    """Return a small tokenizer with the control tokens of a family and a template among TRL's files."""
    trl = find_spec("trl")
    assert trl
    assert trl.origin
    return _chat(family, Path(trl.origin).parent / "chat_templates" / f"{file}.jinja")


def _chat(family: str, template: Path) -> Chat:
    control, end, begin = FAMILIES[family]
    tokenizer = train_tokenizer(TEXTS, 320)
    tokenizer.add_special_tokens({"extra_special_tokens": [*control, end, *([begin] if begin else [])]})
    tokenizer.eos_token, tokenizer.bos_token = end, begin
    tokenizer.chat_template = template.read_text()
    return Chat(tokenizer)
