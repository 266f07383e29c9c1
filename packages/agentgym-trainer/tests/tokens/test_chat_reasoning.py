"""Tests of chat templates whose prompts begin the reasoning of a reply."""

from __future__ import annotations

import pytest
from agentgym_envs import Message
from agentgym_trainer.tokens.chat import Context
from chat_templates import trl_chat


def test_a_prompt_that_begins_reasoning_has_it_ended_by_replies_without_any() -> None:
    chat = trl_chat("qwen3", "qwen3_5_think")
    prompt = chat.open((Message("user", "U"),))
    assert chat.tokenizer.decode(prompt).endswith("<|im_start|>assistant\n<think>\n")
    assert chat.tokenizer.decode(chat.reply_ids("go north")) == "\n</think>\n\ngo north<|im_end|>"
    assert chat.reply_text(chat.reply_ids("It is dark.\n</think>\n\nleave")) == "It is dark.\n</think>\n\nleave"
    closed = chat.tokenizer.chat_template
    shown = [{"role": "user", "content": "U"}, {"role": "assistant", "content": "go north"}]
    whole = chat.tokenizer.apply_chat_template(shown, chat_template=closed, tokenize=False)
    assert whole.startswith(chat.tokenizer.decode(prompt + chat.reply_ids("go north")))


@pytest.mark.parametrize("reply", ["<think>\nIt is dark.\n</think>\n\ngo", "\n<think>\nIt is dark.\n</think>\n\ngo"])
@pytest.mark.parametrize("file", ["qwen3_5_think", "qwen3_8"])
def test_reasoning_that_the_prompt_begins_is_begun_once(file: str, reply: str) -> None:
    """Recorded conversations often have whole reasoning in a reply, and templates show it like that."""
    chat = trl_chat("qwen3", file)
    prompt = chat.open((Message("user", "U"),))
    said = chat.tokenizer.decode(chat.reply_ids(reply))
    assert said == "It is dark.\n</think>\n\ngo<|im_end|>"
    shown = [
        {"role": "user", "content": "U"},
        {"role": "assistant", "reasoning_content": "It is dark.", "content": "go"},
    ]
    whole = chat.tokenizer.apply_chat_template(shown, tokenize=False)
    assert whole.startswith(chat.tokenizer.decode(prompt) + said)
    # One that was cut off within its reasoning doesn't end it.
    assert chat.tokenizer.decode(chat.reply_ids("<think>\nIt is")) == "It is<|im_end|>"


@pytest.mark.parametrize("reply", ["It is dark.\n</think>\n\ngo", "<think>\nIt is dark.\n</think>\n\ngo"])
@pytest.mark.parametrize("file", ["qwen3_5_think", "qwen3_6", "qwen3_8", "nemotron_3_nano"])
def test_the_history_shows_reasoning_as_the_template_does(file: str, reply: str) -> None:
    """Some templates find the reasoning in the text of a reply, others need it apart from the text."""
    chat = trl_chat("qwen3", file)
    context, first = Context(chat), (Message("system", "S"), Message("user", "U"))
    context.prompt(first)
    context.append_reply(chat.reply_ids(reply))
    sampled = list(context.ids)
    context.prompt((*first, Message("assistant", reply), Message("user", "V")))
    shown = [
        {"role": "system", "content": "S"},
        {"role": "user", "content": "U"},
        {"role": "assistant", "reasoning_content": "It is dark.", "content": "go"},
        {"role": "user", "content": "V"},
    ]
    whole = chat.tokenizer.apply_chat_template(shown, tokenize=False, add_generation_prompt=True)
    assert chat.tokenizer.decode(context.ids) == whole
    assert context.segments == (1 if file == "qwen3_8" else 2)  # the only one of them that keeps earlier reasoning
    assert (context.ids[: len(sampled)] == sampled) == (file == "qwen3_8")
