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
import re
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, Literal

from agentgym_envs import Message
from jinja2 import TemplateError

# Private-use characters stand for contents while the template is rendered: the number of a message, or of a control
# token that is spelled in a reply.
_OPEN, _CLOSE = "\ue000", "\ue001"
_SLOT = re.compile(f"{_OPEN}(c?\\d+){_CLOSE}")
# Bounded, so that a long run's memory stays flat.
_TEXTS, _LONGEST_TEXT, _SCAFFOLDS = 2_048, 8_192, 1_024

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
        # Tokenizers name but a few of their special tokens: Llama 3's has <|start_header_id|> among those added only.
        added = [str(token) for token in tokenizer.added_tokens_decoder.values() if token.special]
        self._special = _longest_first([*tokenizer.all_special_tokens, *added])
        self._spelled = _any_of(self._special)
        known = self._known_to_template()
        self._control = _any_of(_longest_first([*self._special, *known]))
        self._worldly = _with_special(tokenizer, known) if known else tokenizer
        self.takes_system = self._takes_system()
        self._lead, self.end_id = self._find_ends()
        self.pad_id: int = tokenizer.pad_token_id if tokenizer.pad_token_id is not None else self.end_id
        # A world repeats itself; the template does so even more, and each turn needs the rendering of the last one.
        self._encode_short = lru_cache(maxsize=_TEXTS)(self._encode_uncached)
        self._render = lru_cache(maxsize=_SCAFFOLDS)(self._render_uncached)

    def open(self, conversation: Sequence[Message]) -> list[int]:
        """The ids of a whole conversation, ready for the agent's next reply."""
        return self._fill(self._scaffold(conversation), conversation)

    def extend(self, conversation: Sequence[Message]) -> list[int] | None:
        """The ids between the agent's last reply and its next one, or None where the template can't be extended.

        The conversation ends with the last reply and an observation. The reply's end-of-turn token counts as said.
        """
        before, reply = conversation[:-2], conversation[-2].content
        start = self._scaffold(before) + self._quoted(reply)
        whole = self._scaffold(conversation)
        if not whole.startswith(start):
            return None
        ids = self._fill(whole[len(start) :], conversation)
        return ids[1:] if ids[:1] == [self.end_id] else None

    def reply_ids(self, text: str) -> list[int]:
        """A reply as it would have been sampled: its ids and the end-of-turn token."""
        return [*self._encode(self._lead + text, "agent"), self.end_id]

    def reply_text(self, ids: Sequence[int]) -> str:
        """The words of sampled ids, without the end-of-turn token."""
        said = ids[:-1] if ids and ids[-1] == self.end_id else ids
        return self.tokenizer.decode(list(said), skip_special_tokens=False, clean_up_tokenization_spaces=False)

    def _scaffold(self, conversation: Sequence[Message]) -> str:
        """The rendered template with slots in place of what the world says."""
        return self._render(
            tuple((m.role, self._quoted(m.content) if m.role == "assistant" else "") for m in conversation)
        )

    def _quoted(self, reply: str) -> str:
        """A reply with slots in place of the control tokens that it spells."""
        text = reply.replace(_OPEN, "").replace(_CLOSE, "")
        return self._spelled.sub(lambda token: f"{_OPEN}c{self._special.index(token[0])}{_CLOSE}", text)

    def _render_uncached(self, messages: tuple[tuple[str, str], ...]) -> str:
        turns = [
            {"role": role, "content": content if role == "assistant" else f"{_OPEN}{i}{_CLOSE}"}
            for i, (role, content) in enumerate(messages)
        ]
        if turns[0]["role"] == "system" and not self.takes_system:
            system, user, *rest = turns
            turns = [{"role": "user", "content": f"{system['content']}\n\n{user['content']}"}, *rest]
        return self.tokenizer.apply_chat_template(turns, tokenize=False, add_generation_prompt=True)

    def _fill(self, scaffold: str, conversation: Sequence[Message]) -> list[int]:
        pieces = _SLOT.split(scaffold)
        texts = [self._content(piece, conversation) if i % 2 else piece for i, piece in enumerate(pieces)]
        meant = [token for text in texts[::2] for token in self._control.findall(text)]
        if self._control.findall(whole := "".join(texts)) == meant:
            return list(self._encode(whole, "template"))
        # Piece by piece, so that no text becomes a control token; words that meet the template's may split otherwise.
        return [token for i, text in enumerate(texts) for token in self._encode(text, "world" if i % 2 else "template")]

    def _content(self, slot: str, conversation: Sequence[Message]) -> str:
        """What stands in a slot: a control token that a reply spells, or what the world says."""
        return self._special[int(slot[1:])] if slot.startswith("c") else conversation[int(slot)].content.strip()

    def _encode(self, text: str, whose: Speaker) -> list[int]:
        encode = self._encode_short if len(text) <= _LONGEST_TEXT else self._encode_uncached
        return encode(text, whose)

    def _encode_uncached(self, text: str, whose: Speaker) -> list[int]:
        tokenizer = self._worldly if whose == "world" else self.tokenizer
        return tokenizer.encode(text, add_special_tokens=False, split_special_tokens=whose != "template")

    def _known_to_template(self) -> list[str]:
        """Tokens that aren't special and that the template spells: <think> in Qwen3's, DeepSeek's names of roles."""
        template = self.tokenizer.get_chat_template()
        added = [str(token) for token in self.tokenizer.added_tokens_decoder.values() if not token.special]
        return [token for token in added if token.strip() and token in template]

    def _takes_system(self) -> bool:
        messages = [{"role": "system", "content": _OPEN}, {"role": "user", "content": _CLOSE}]
        try:
            return _OPEN in self.tokenizer.apply_chat_template(messages, tokenize=False)
        except TemplateError:
            return False

    def _find_ends(self) -> tuple[str, int]:
        """The white space that the template has before a reply, and the token that it ends one with."""
        turns = [{"role": "user", "content": "x"}, {"role": "assistant", "content": _OPEN}]
        asked = self.tokenizer.apply_chat_template(turns[:1], tokenize=False, add_generation_prompt=True)
        head, _, tail = self.tokenizer.apply_chat_template(turns, tokenize=False).partition(_OPEN)
        ids = self._encode_uncached(tail, "template")
        if not ids or not self._control.fullmatch(self.tokenizer.convert_ids_to_tokens(ids[0])):
            raise ValueError(
                f"The chat template ends a reply with {tail!r}, which does not begin with a control token."
            )
        lead = head.removeprefix(asked)
        return lead if lead.isspace() else "", ids[0]


def _longest_first(tokens: Sequence[str]) -> list[str]:
    return sorted(dict.fromkeys(tokens), key=len, reverse=True)


def _any_of(tokens: Sequence[str]) -> re.Pattern[str]:
    return re.compile("|".join(map(re.escape, tokens)) or "(?!)")


def _with_special(tokenizer: Any, tokens: Sequence[str]) -> Any:
    """A copy to which these tokens are special, so that they can be switched off like the others."""
    tokenizer = copy.deepcopy(tokenizer)
    tokenizer.add_tokens(list(tokens), special_tokens=True)
    return tokenizer


class Context:
    """The tokens of one conversation as it grows."""

    def __init__(self, chat: Chat) -> None:
        self._chat = chat
        self._messages = 0
        self.ids: list[int] = []
        """Those of the current segment: the whole context."""
        self.segments = 0
        """How many segments have begun."""
        self.spoken = 0
        """How many ids the agent has said, in all segments."""

    def prompt(self, conversation: Sequence[Message]) -> tuple[list[int], bool]:
        """The ids to append before the next reply, and whether they begin a fresh segment (then: the whole context).

        Raises:
            ValueError: when the conversation did not grow by one reply and one observation since the last call.
        """
        if self._messages and len(conversation) != self._messages + 2:
            raise ValueError(f"A context of {self._messages} messages can't be continued with {len(conversation)}.")
        ids, fresh = self._next(conversation)
        self._messages = len(conversation)
        self.segments += fresh
        self.ids = ids if fresh else self.ids + ids
        return ids, fresh

    def _next(self, conversation: Sequence[Message]) -> tuple[list[int], bool]:
        more = self._chat.extend(conversation) if self._messages else None
        if more is not None:
            return more, False
        whole, length = self._chat.open(conversation), len(self.ids)
        # Words that the template trims or moves may still be the very ids that were sampled.
        exact = self._messages > 0 and whole[:length] == self.ids
        return (whole[length:], False) if exact else (whole, True)

    def said(self, ids: Sequence[int]) -> None:
        """Note the ids that the agent said."""
        self.ids = [*self.ids, *ids]
        self.spoken += len(ids)
