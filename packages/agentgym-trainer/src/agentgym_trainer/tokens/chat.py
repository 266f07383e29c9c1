"""Conversion between text and tokens; no other module tokenizes or detokenizes, except `vision_chat` for pictures.

A conversation grows by appending ids: `Context.prompt` returns the ids between two replies, which are the observation
and the template's markup around it; completion tokens are never re-encoded. If a template rewrites the history (by
dropping earlier thinking, for example), appending can't be exact, and a new segment begins.

Observations are encoded with control tokens disabled, so that `<|im_end|>` in an observation stays text. The same holds
for `<|im_end|>` in a reply, such as one that quotes an observation, when a new segment re-encodes it. Tokens of the
template that aren't special, such as `<think>`, are available to the agent, but never to the environment.
"""

from __future__ import annotations

import copy
import json
import threading
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, Literal

from agentgym_envs import Conversation
from tokenizers.decoders import DecodeStream

from agentgym_trainer.tokens.chat_template import SLOT, Template

# Sizes of caches, which keep the memory of a long run bounded.
_TEXTS, _LONGEST_TEXT, _TOOL_SETS = 2_048, 8_192, 32

Source = Literal["template", "agent", "environment"]
"""Origin of a text: the template may use all control tokens, the agent those that aren't special, the environment
none."""


class Chat:
    """A tokenizer and its chat template."""

    def __init__(self, tokenizer: Any) -> None:
        """Wrap a Hugging Face tokenizer.

        Raises:
            ValueError: The tokenizer has no chat template, or the template is unusable; the message says why.
        """
        if not tokenizer.chat_template:
            raise ValueError(
                f"The tokenizer of {tokenizer.name_or_path or 'this model'} has no chat template; choose an instruct "
                "model, or save a template with the tokenizer (tokenizer.chat_template = ...)."
            )
        self.tokenizer = tokenizer
        self._template = Template(tokenizer)
        self._untrusted = _with_special(tokenizer, self._template.known) if self._template.known else tokenizer
        self.takes_system = self._template.takes_system
        """Whether the template supports a system message; otherwise its content precedes the first observation."""
        self.takes_tools = self._template.style is not None
        """Whether the template has its own format for functions, calls and their results."""
        self.end_id: int = tokenizer.convert_tokens_to_ids(self._template.end)
        self.pad_id: int = tokenizer.pad_token_id if tokenizer.pad_token_id is not None else self.end_id
        self._encoding = threading.Lock()
        # Observations repeat often, and template markup even more.
        self._encode_short = lru_cache(maxsize=_TEXTS)(self._encode_uncached)
        self._with_tools = lru_cache(maxsize=_TOOL_SETS)(self._with_tools_uncached)

    def padding_tokenizer(self) -> Any:
        """Return the tokenizer for TRL's trainers, with a padding token if it has neither one nor an end token."""
        tokenizer = self.tokenizer
        if tokenizer.pad_token is None and tokenizer.eos_token is None:
            tokenizer = copy.deepcopy(tokenizer)
            tokenizer.pad_token = self._template.end
        return tokenizer

    def with_tools(self, tools: Sequence[dict[str, Any]]) -> Chat:
        """Return the same chat for an agent that can call the functions with these JSON schemas."""
        return self._with_tools(json.dumps(tools)) if tools else self

    def _with_tools_uncached(self, tools: str) -> Chat:
        chat = copy.copy(self)
        chat._template = Template(self.tokenizer, json.loads(tools))
        return chat

    def open(self, conversation: Conversation) -> list[int]:
        """Return the ids of a whole conversation, ready for the agent's next reply."""
        conversation = self._template.with_described_tools(conversation)
        return self._fill(self._template.scaffold(conversation), conversation)

    def extend(self, conversation: Conversation) -> list[int] | None:
        """Return the ids between the agent's last reply and its next one, or None if the template can't be extended.

        The conversation ends with the last reply and an observation. The reply's end-of-turn token is a completion
        token, and not included.
        """
        template, conversation = self._template, self._template.with_described_tools(conversation)
        start = template.scaffold(conversation[:-2]) + template.in_history(conversation[-2].content)
        whole = template.scaffold(conversation)
        if not whole.startswith(start):
            return None
        ids = self._fill(whole[len(start) :], conversation)
        return ids[1:] if ids[:1] == [self.end_id] else None

    def reply_ids(self, text: str) -> list[int]:
        """Return the ids of a reply as the model would have sampled it, including the end-of-turn token.

        A tag that begins reasoning is left out where the prompt ends with it.
        """
        own = self._template.after_opening(text)
        reply, lead = self._template.in_history(own), self._template.lead
        # A reply with the begin or end of reasoning, which the prompt may begin, has reasoning of its own.
        has_lead = own != text or reply.startswith(lead) or (lead.strip() and lead.strip() in reply)
        reply = reply if has_lead else lead + reply
        if self._template.has_special(reply):
            return [*self._fill(reply, ()), self.end_id]
        plain = SLOT.sub(lambda slot: self._template.content(slot[1], ()), reply)
        # A text alone begins with a blank in some tokenizers (SentencePiece), but not after the prompt's last text.
        header = self._encode(self._template.header, "agent")
        whole = self._encode(self._template.header + plain, "agent")
        follows = whole[: len(header)] == header
        return [*(whole[len(header) :] if follows else self._encode(plain, "agent")), self.end_id]

    def reply_text(self, ids: Sequence[int]) -> str:
        """Return the text of sampled ids, without the end-of-turn token."""
        content = ids[:-1] if ids and ids[-1] == self.end_id else ids
        return self.tokenizer.decode(list(content), skip_special_tokens=False, clean_up_tokenization_spaces=False)

    def token_texts(self, ids: Sequence[int]) -> list[str]:
        """Return the text of each token of a context. Joined they give the whole text: of several tokens that form one
        character, the last one has its text and the others are empty.
        """
        stream, tokenizer = DecodeStream(skip_special_tokens=False), self.tokenizer.backend_tokenizer
        texts = [stream.step(tokenizer, token) or "" for token in ids]
        unfinished = tokenizer.decode(list(ids), skip_special_tokens=False)[len("".join(texts)) :]
        return [*texts[:-1], texts[-1] + unfinished] if texts else []

    def tokenizer_json(self) -> dict[str, Any] | None:
        """Return the content of the tokenizer's `tokenizer.json`; None if it isn't one of the tokenizers library."""
        backend = getattr(self.tokenizer, "backend_tokenizer", None)
        return None if backend is None else json.loads(backend.to_str())

    def _fill(self, scaffold: str, conversation: Conversation) -> list[int]:
        pieces = SLOT.split(scaffold)
        texts = [self._template.content(piece, conversation) if i % 2 else piece for i, piece in enumerate(pieces)]
        control = self._template.control
        intended = [token for text in texts[::2] for token in control.findall(text)]
        if control.findall(whole := "".join(texts)) == intended:
            return list(self._encode(whole, "template"))
        # Encode pieces separately, so that no content becomes a control token. Tokens at the boundaries may differ.
        return [
            token
            for i, text in enumerate(texts)
            for token in self._encode(text, "environment" if i % 2 else "template")
        ]

    def _encode(self, text: str, source: Source) -> list[int]:
        encode = self._encode_short if len(text) <= _LONGEST_TEXT else self._encode_uncached
        return encode(text, source)

    def _encode_uncached(self, text: str, source: Source) -> list[int]:
        tokenizer = self._untrusted if source == "environment" else self.tokenizer
        # What is split is a state of the tokenizer, which another thread could change before the text is encoded.
        with self._encoding:
            return tokenizer.encode(text, add_special_tokens=False, split_special_tokens=source != "template")


def _with_special(tokenizer: Any, tokens: Sequence[str]) -> Any:
    """Return a copy of the tokenizer with these tokens marked as special, so that they can be disabled."""
    tokenizer = copy.deepcopy(tokenizer)
    tokenizer.add_tokens(list(tokens), special_tokens=True)
    return tokenizer


class Context:
    """The tokens of one conversation as it grows."""

    def __init__(self, chat: Chat) -> None:
        self._chat = chat
        self._conversation: Conversation = ()
        self._unended = False  # whether the last reply lacks its end-of-turn token
        self.ids: list[int] = []
        """Token ids of the current segment, that is the whole context."""
        self.segments = 0
        """Number of segments so far."""
        self.completion_tokens = 0
        """Number of completion tokens in all segments."""

    def prompt(self, conversation: Conversation) -> tuple[list[int], bool]:
        """Return the ids to append before the next reply, and whether they begin a new segment (the whole context).

        A new segment begins if the conversation is not the previous one extended by a reply and an observation, or if
        the template can't be extended. The end-of-turn token of a reply that was cut off is part of the ids.
        """
        ids, fresh = self._next(conversation)
        self._conversation = conversation
        self.segments += fresh
        self.ids = ids if fresh else self.ids + ids
        return ids, fresh

    def length(self, conversation: Conversation) -> int:
        """Return how many tokens the context would have before a reply to this conversation."""
        ids, fresh = self._next(conversation)
        return len(ids) if fresh else len(self.ids) + len(ids)

    def resume(self, conversation: Conversation, ids: Sequence[int]) -> None:
        """Set the state after a reply to `conversation`; the current segment, including the reply, has these `ids`."""
        self._conversation, self.ids = conversation, list(ids)
        self._unended = self.ids[-1:] != [self._chat.end_id]

    def _next(self, conversation: Conversation) -> tuple[list[int], bool]:
        extends = bool(self._conversation) and conversation[:-2] == self._conversation
        more = self._chat.extend(conversation) if extends else None
        if more is not None:
            return ([self._chat.end_id, *more] if self._unended else more), False
        whole, length = self._chat.open(conversation), len(self.ids)
        # Even if the template trims or moves text, the ids may be the same as the sampled ones.
        exact = extends and whole[:length] == self.ids
        return (whole[length:], False) if exact else (whole, True)

    def append_reply(self, ids: Sequence[int]) -> None:
        """Append the sampled ids of a reply."""
        self.ids = [*self.ids, *ids]
        self._unended = self.ids[-1:] != [self._chat.end_id]
        self.completion_tokens += len(ids)
