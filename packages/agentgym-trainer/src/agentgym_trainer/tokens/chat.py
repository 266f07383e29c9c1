"""The only room where text becomes tokens and tokens become text.

A conversation grows by appending ids: `Context.prompt` gives the ids to put before the next reply, which are the
observation and the template's scaffolding around it, never a re-encoding of what was said. Where a template rewrites
history (one that drops earlier thinking, say) appending can't be exact, and a fresh segment begins.

What a world says is encoded with control tokens switched off, so that `<|im_end|>` in an observation stays text; and
so does `<|im_end|>` in a reply, for instance one that quotes the world, when a fresh segment reads it again. Tokens of
the template's that aren't special, such as `<think>`, are the agent's to say, and never the world's.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, Literal

from agentgym_envs import Conversation
from tokenizers.decoders import DecodeStream

from agentgym_trainer.tokens.chat_template import SLOT, Template

# Bounded, so that a long run's memory stays flat.
_TEXTS, _LONGEST_TEXT, _SEATED = 2_048, 8_192, 32

Speaker = Literal["template", "agent", "world"]
"""Whose text it is: all control tokens are the template's; those that aren't special are also the agent's."""


class Chat:
    """A tokenizer and its chat template."""

    def __init__(self, tokenizer: Any) -> None:
        """Wrap a Hugging Face tokenizer.

        Raises:
            ValueError: when the tokenizer has no chat template, or the template has no end-of-turn token.
        """
        if not tokenizer.chat_template:
            raise ValueError(
                f"The tokenizer of {tokenizer.name_or_path or 'this model'} has no chat template; choose an instruct "
                "model, or save a template with the tokenizer (tokenizer.chat_template = ...)."
            )
        self.tokenizer = tokenizer
        self._template = Template(tokenizer)
        self._worldly = _with_special(tokenizer, self._template.known) if self._template.known else tokenizer
        self.takes_system = self._template.takes_system
        """Whether the template has a system message; else what it would say stands before the first observation."""
        self.takes_tools = self._template.style is not None
        """Whether the template has a way of its own to show functions, calls and their answers."""
        self.end_id: int = tokenizer.convert_tokens_to_ids(self._template.end)
        self.pad_id: int = tokenizer.pad_token_id if tokenizer.pad_token_id is not None else self.end_id
        # A world repeats itself; the template does so even more.
        self._encode_short = lru_cache(maxsize=_TEXTS)(self._encode_uncached)
        self._seated = lru_cache(maxsize=_SEATED)(self._seat)

    def with_tools(self, tools: Sequence[dict[str, Any]]) -> Chat:
        """The same chat for an agent that can call the functions with these JSON schemas."""
        return self._seated(json.dumps(tools)) if tools else self

    def _seat(self, tools: str) -> Chat:
        chat = copy.copy(self)
        chat._template = Template(self.tokenizer, json.loads(tools))
        return chat

    def open(self, conversation: Conversation) -> list[int]:
        """The ids of a whole conversation, ready for the agent's next reply."""
        conversation = self._template.told(conversation)
        return self._fill(self._template.scaffold(conversation), conversation)

    def extend(self, conversation: Conversation) -> list[int] | None:
        """The ids between the agent's last reply and its next one, or None where the template can't be extended.

        The conversation ends with the last reply and an observation. The reply's end-of-turn token counts as said.
        """
        template, conversation = self._template, self._template.told(conversation)
        start = template.scaffold(conversation[:-2]) + template.said(conversation[-2].content)
        whole = template.scaffold(conversation)
        if not whole.startswith(start):
            return None
        ids = self._fill(whole[len(start) :], conversation)
        return ids[1:] if ids[:1] == [self.end_id] else None

    def reply_ids(self, text: str) -> list[int]:
        """A reply as it would have been sampled: its ids and the end-of-turn token."""
        said, lead = self._template.said(text), self._template.lead
        said = said if said.startswith(lead) else lead + said
        if self._template.has_special(said):
            return [*self._fill(said, ()), self.end_id]
        words = SLOT.sub(lambda slot: self._template.content(slot[1], ()), said)
        return [*self._encode(words, "agent"), self.end_id]

    def reply_text(self, ids: Sequence[int]) -> str:
        """The words of sampled ids, without the end-of-turn token."""
        said = ids[:-1] if ids and ids[-1] == self.end_id else ids
        return self.tokenizer.decode(list(said), skip_special_tokens=False, clean_up_tokenization_spaces=False)

    def token_texts(self, ids: Sequence[int]) -> list[str]:
        """The text of each token of a context. Joined they are the whole text: where several tokens make up a character
        the last of them has it and the others have none.
        """
        stream, tokenizer = DecodeStream(skip_special_tokens=False), self.tokenizer.backend_tokenizer
        texts = [stream.step(tokenizer, token) or "" for token in ids]
        unfinished = tokenizer.decode(list(ids), skip_special_tokens=False)[len("".join(texts)) :]
        return [*texts[:-1], texts[-1] + unfinished] if texts else []

    def _fill(self, scaffold: str, conversation: Conversation) -> list[int]:
        pieces = SLOT.split(scaffold)
        texts = [self._template.content(piece, conversation) if i % 2 else piece for i, piece in enumerate(pieces)]
        control = self._template.control
        meant = [token for text in texts[::2] for token in control.findall(text)]
        if control.findall(whole := "".join(texts)) == meant:
            return list(self._encode(whole, "template"))
        # Piece by piece, so that no text becomes a control token; words that meet the template's may split otherwise.
        return [token for i, text in enumerate(texts) for token in self._encode(text, "world" if i % 2 else "template")]

    def _encode(self, text: str, whose: Speaker) -> list[int]:
        encode = self._encode_short if len(text) <= _LONGEST_TEXT else self._encode_uncached
        return encode(text, whose)

    def _encode_uncached(self, text: str, whose: Speaker) -> list[int]:
        tokenizer = self._worldly if whose == "world" else self.tokenizer
        return tokenizer.encode(text, add_special_tokens=False, split_special_tokens=whose != "template")


def _with_special(tokenizer: Any, tokens: Sequence[str]) -> Any:
    """A copy to which these tokens are special, so that they can be switched off like the others."""
    tokenizer = copy.deepcopy(tokenizer)
    tokenizer.add_tokens(list(tokens), special_tokens=True)
    return tokenizer


class Context:
    """The tokens of one conversation as it grows."""

    def __init__(self, chat: Chat) -> None:
        self._chat = chat
        self._conversation: Conversation = ()
        self.ids: list[int] = []
        """Those of the current segment: the whole context."""
        self.segments = 0
        """How many segments have begun."""
        self.completion_tokens = 0
        """How many ids the agent has said, in all segments."""

    def prompt(self, conversation: Conversation) -> tuple[list[int], bool]:
        """The ids to append before the next reply, and whether they begin a fresh segment (then: the whole context).

        One begins where the conversation is not the last one with a reply and an observation at its end, but begins
        anew; and where the template can't be extended.
        """
        ids, fresh = self._next(conversation)
        self._conversation = conversation
        self.segments += fresh
        self.ids = ids if fresh else self.ids + ids
        return ids, fresh

    def resume(self, conversation: Conversation, ids: Sequence[int]) -> None:
        """Be where a reply to `conversation` has just been said; with it, the current segment has these `ids`."""
        self._conversation, self.ids = conversation, list(ids)

    def _next(self, conversation: Conversation) -> tuple[list[int], bool]:
        grown = bool(self._conversation) and conversation[:-2] == self._conversation
        more = self._chat.extend(conversation) if grown else None
        if more is not None:
            return more, False
        whole, length = self._chat.open(conversation), len(self.ids)
        # Words that the template trims or moves may still be the very ids that were sampled.
        exact = grown and whole[:length] == self.ids
        return (whole[length:], False) if exact else (whole, True)

    def append_reply(self, ids: Sequence[int]) -> None:
        """Note the ids that the agent said."""
        self.ids = [*self.ids, *ids]
        self.completion_tokens += len(ids)
