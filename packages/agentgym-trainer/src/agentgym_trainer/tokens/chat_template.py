"""A chat template as text: conversations rendered with slots where contents stand. Knows no ids.

No content passes through the template, which could trim it, look into it, or be led astray by a control token that it
spells; slots do. What an agent says is the exception: templates rewrite that (drop earlier thinking, say), and may.

Functions that an agent can call are shown in the template's own way where it has one. A call then stands in the history
as it was said, and the world's answer is a message of the role `tool`. Elsewhere they are described in the system
message, and calls and answers are words like any other.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from agentgym_envs import Conversation, Message
from agentgym_envs.agents.call_parsing import find_call
from agentgym_envs.core.action_schema import Call, CallError, described
from jinja2 import TemplateError

# Private-use characters enclose what stands for a content while the template is rendered: c and the number of a control
# token that is spelled; m and the number of a message, j where that is written as JSON; f and the number of a call.
_OPEN, _CLOSE = "\ue000", "\ue001"
SLOT = re.compile(f"{_OPEN}([cmj]\\d+){_CLOSE}")
_KNOWN = 1_024  # what is kept is bounded, so that a long run's memory stays flat
_CALL_ID = "call00000"  # Mistral's templates take nine letters and digits
_HARD = 'a "b"\nc'
"""What JSON writes in another way."""
_PROBE = {
    "type": "function",
    "function": {
        "name": "probe",
        "description": "Probe.",
        "parameters": {"type": "object", "properties": {"x": {"type": "string"}}, "required": ["x"]},
    },
}


@dataclass(frozen=True, slots=True)
class CallStyle:
    """How a template writes a call and its answer."""

    head: str
    """What it writes before the name of the function."""
    tail: str
    """What it writes behind the name when there are no arguments."""
    answer: str
    """Kind of the slot of an answer: as it is, or as JSON."""
    wordy: bool
    """Whether it writes the words beside a call."""


class Template:
    """The chat template of a tokenizer."""

    def __init__(self, tokenizer: Any, tools: Sequence[dict[str, Any]] = ()) -> None:
        """Find out how it writes things.

        Args:
            tokenizer: A Hugging Face tokenizer with a chat template.
            tools: JSON schemas of the functions that the agent can call.

        Raises:
            ValueError: when it doesn't end replies with a control token.
        """
        self._tokenizer = tokenizer
        # Tokenizers name but a few of their special tokens: Llama 3's has <|start_header_id|> among those added only.
        added = [str(token) for token in tokenizer.added_tokens_decoder.values() if token.special]
        special = _longest_first([*tokenizer.all_special_tokens, *added])
        self._special = _any_of(special)
        self.known = self._known()
        """Tokens that aren't special and that the template spells: <think> in Qwen3's, DeepSeek's names of roles."""
        self.control = _any_of(_longest_first([*special, *self.known]))
        """Finds the control tokens in a text, those that aren't special among them."""
        self.takes_system = self._takes_system()
        self.lead, self.end = self._find_ends()
        self.style = self._find_style()
        own = self._special.findall(self.style.head + self.style.tail) if self.style and tools else []
        self._quotable = [*special, _OPEN, _CLOSE]
        self._nobodys = _any_of(self._quotable)
        self._spelled = _any_of([token for token in self._quotable if token not in own])
        self._tools = list(tools)
        self._shown = self._harmless(self._tools)
        self._render = lru_cache(maxsize=_KNOWN)(self._render_uncached)
        self._call = lru_cache(maxsize=_KNOWN)(self._call_uncached)

    @property
    def calls(self) -> bool:
        """Whether functions are called in the template's own way here."""
        return bool(self._tools) and self.style is not None

    def scaffold(self, conversation: Conversation) -> str:
        """The rendered conversation, ready for the next reply, with slots in place of what the world says."""
        messages = list[tuple[str, str]]()
        for i, message in enumerate(conversation):
            role, text = message.role, ""
            if role == "assistant":
                text = self.said(message.content)
                role = "call" if self._is_call(message) else role
            elif role == "user" and i and self._is_call(conversation[i - 1]):
                role = "tool"
            messages.append((role, text))
        return self._render(tuple(messages))

    def told(self, conversation: Conversation) -> Conversation:
        """The conversation with the functions described in its system message, if it has one and there is no better
        place for them.
        """
        if not self._tools or self.calls or conversation[0].role != "system":
            return conversation
        return Message("system", f"{conversation[0].content}\n\n{described(self._tools)}"), *conversation[1:]

    def said(self, reply: str) -> str:
        """A reply as it stands in the history, with slots in place of the control tokens that it spells: as it was
        said, but for a call that knows no model, which is written in the template's way.
        """
        call = self._call(reply) if '"function_name"' in reply else None
        return self._native(call) if call else self._spelled.sub(self._slot, reply)

    def has_special(self, scaffold: str) -> bool:
        """Whether there are special tokens in it outside of slots."""
        return bool(self._special.search(SLOT.sub("", scaffold)))

    def content(self, slot: str, conversation: Conversation) -> str:
        """What stands in a slot."""
        kind, number = slot[0], int(slot[1:])
        if kind == "c":
            return self._quotable[number]
        text = conversation[number].content.strip()
        return json.dumps(text, ensure_ascii=False)[1:-1] if kind == "j" else text

    def _is_call(self, message: Message) -> bool:
        return message.role == "assistant" and self._call(message.content) is not None

    def _call_uncached(self, reply: str) -> Call | None:
        """The call that a reply is, where functions are called in the template's own way."""
        try:
            return find_call(reply) if self.calls else None
        except CallError:
            return None

    def _render_uncached(self, messages: tuple[tuple[str, str], ...]) -> str:
        turns = [self._turn(i, role, text) for i, (role, text) in enumerate(messages)]
        if turns[0]["role"] == "system" and not self.takes_system:
            system, user, *rest = turns
            turns = [{"role": "user", "content": f"{system['content']}\n\n{user['content']}"}, *rest]
        rendered = self._apply(turns, tools=self._shown if self.calls else None)
        for i, (role, text) in enumerate(messages):
            if role == "call" and self.style:
                rendered = rendered.replace(f"{self.style.head}{_name(i)}{self.style.tail}", text)
        return rendered

    def _turn(self, i: int, role: str, text: str) -> dict[str, Any]:
        """A message as templates take it."""
        if role == "call":
            return _called(_name(i), {})
        if role == "tool" and self.style:
            return _answered(f"{_OPEN}{self.style.answer}{i}{_CLOSE}")
        return {"role": role, "content": text if role == "assistant" else f"{_OPEN}m{i}{_CLOSE}"}

    def _native(self, call: Call) -> str:
        """A call as the template writes it, with slots in place of the control tokens that are spelled in it."""
        name, arguments, thought = self._harmless([call.name, call.arguments, call.thought])
        said = self._between(_called(name, arguments, thought))
        return f"{thought}\n{said}" if thought and self.style and not self.style.wordy else said

    def _slot(self, token: re.Match[str]) -> str:
        return f"{_OPEN}c{self._quotable.index(token[0])}{_CLOSE}"

    def _harmless(self, value: Any) -> Any:
        """A value that JSON can have, with slots in place of the control tokens that it spells."""
        return json.loads(self._nobodys.sub(self._slot, json.dumps(value, ensure_ascii=False)))

    def _between(self, call: dict[str, Any]) -> str:
        """What the template writes for this message, without the lead and the end."""
        turns = [{"role": "user", "content": "x"}, call, _answered("y")]
        asked = self._apply(turns[:1], tools=[_PROBE])
        return self._apply(turns, tools=[_PROBE]).removeprefix(asked).removeprefix(self.lead).partition(self.end)[0]

    def _apply(self, turns: Sequence[dict[str, Any]], *, prompt: bool = True, tools: Any = None) -> str:
        how: Any = {"tools": tools} if tools else {}
        return self._tokenizer.apply_chat_template(list(turns), tokenize=False, add_generation_prompt=prompt, **how)

    def _known(self) -> list[str]:
        template = self._tokenizer.get_chat_template()
        added = [str(token) for token in self._tokenizer.added_tokens_decoder.values() if not token.special]
        return [token for token in added if token.strip() and token in template]

    def _takes_system(self) -> bool:
        messages = [{"role": "system", "content": _OPEN}, {"role": "user", "content": _CLOSE}]
        try:
            return _OPEN in self._apply(messages, prompt=False)
        except TemplateError:
            return False

    def _find_ends(self) -> tuple[str, str]:
        """The white space that the template has before a reply, and the token that it ends one with."""
        turns = [{"role": "user", "content": "x"}, {"role": "assistant", "content": _OPEN}]
        asked = self._apply(turns[:1])
        head, _, tail = self._apply(turns, prompt=False).partition(_OPEN)
        end = self.control.match(tail)
        if end is None:
            raise ValueError(
                f"The chat template ends a reply with {tail!r}, which does not begin with a control token."
            )
        lead = head.removeprefix(asked)
        return lead if lead.isspace() else "", end[0]

    def _find_style(self) -> CallStyle | None:
        """How it writes calls and answers; None when it doesn't, loses any, or writes calls that no agent reads."""
        user, calls = {"role": "user", "content": "x"}, [_called(_name(i), {}) for i in range(3)]
        turns = [user, calls[0], _answered(_HARD), calls[1], _answered("y"), {"role": "assistant", "content": "z"}]
        try:
            asked = self._apply([user], tools=[_PROBE])
            call = self._between(calls[0])
            probe = self._between(_called("probe", {"x": "y"}, _HARD))
            understood = find_call(probe)
            rendered = self._apply([*turns, user, calls[2], _answered("y")], tools=[_PROBE])
        except (TemplateError, TypeError, CallError):  # as templates say that they can't, or don't say it
            return None
        head, _, tail = call.partition(_name(0))
        answers = {"m": _HARD, "j": json.dumps(_HARD)[1:-1]}
        answer = next((kind for kind, text in answers.items() if text in rendered), None)
        once = all(rendered.count(text) == 1 for i in range(3) for text in (f"{head}{_name(i)}{tail}", _name(i)))
        fits = once and asked != self._apply([user]) and understood == Call("probe", {"x": "y"})
        return CallStyle(head, tail, answer, _HARD in probe) if fits and answer else None


def _name(number: int) -> str:
    """What stands for the name of a function while the template is rendered."""
    return f"{_OPEN}f{number}{_CLOSE}"


def _called(name: str, arguments: dict[str, Any], thought: str = "") -> dict[str, Any]:
    call = {"id": _CALL_ID, "type": "function", "function": {"name": name, "arguments": arguments}}
    return {"role": "assistant", "content": thought, "tool_calls": [call]}


def _answered(content: str) -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": _CALL_ID, "content": content}


def _longest_first(tokens: Sequence[str]) -> list[str]:
    return sorted(dict.fromkeys(tokens), key=len, reverse=True)


def _any_of(tokens: Sequence[str]) -> re.Pattern[str]:
    """Finds any of these."""
    return re.compile("|".join(map(re.escape, tokens)) or "(?!)")
