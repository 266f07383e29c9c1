"""Render conversations with a chat template, as text with slots in place of contents. Does not use token ids.

Contents don't pass through the template, which could trim or inspect them, or be confused by control tokens in them;
slots do. Replies are the exception: templates may rewrite them (by dropping earlier thinking, for example).

Functions that an agent can call are shown in the template's own format if it has one. A call is then kept in the
history as it was sampled, and the environment's result is a message with the role `tool`. Otherwise functions are
described in the system message, and calls and results are plain text.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache
from typing import Any

from agentgym_envs import Conversation, Message
from agentgym_envs.agents.call_parsing import find_call
from agentgym_envs.core.action_schema import Call, CallError, described
from jinja2 import TemplateError

# Placeholders while the template is rendered, enclosed in private-use characters: c and the index of a control token
# that a content contains; m and the index of a message, or j if it is written as JSON; f and the index of a call.
_OPEN, _CLOSE = "\ue000", "\ue001"
SLOT = re.compile(f"{_OPEN}([cmj]\\d+){_CLOSE}")
_CACHE_SIZE = 1_024  # keeps the memory of a long run bounded
_REASONING = re.compile(r"<(\w*think\w*|\w*reason\w*)>\s*$")
"""The end of a prompt that begins the model's reasoning, such as Qwen3.5's and DeepSeek-R1's."""
_SAVE = "template with the tokenizer (tokenizer.chat_template = ...)"
_CALL_ID = "call00000"  # Mistral's templates require nine letters and digits
_NEEDS_ESCAPING = 'a "b"\nc'
"""A text that JSON escapes."""
_DATE = datetime(2024, 7, 26)
"""The date in templates that write today's, such as Llama 3.2's, which has this one for renderers without a clock. With
today's, a run that is resumed tomorrow would read other prompts."""
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
    """A template's format of calls and their results."""

    head: str
    """Text before the name of the function."""
    tail: str
    """Text after the name if there are no arguments."""
    answer: str
    """Slot kind of a result: plain, or as JSON."""
    wordy: bool
    """Whether the template renders the text of a message with a call."""


class Template:
    """The chat template of a tokenizer."""

    def __init__(self, tokenizer: Any, tools: Sequence[dict[str, Any]] = ()) -> None:
        """Determine the template's format.

        Args:
            tokenizer: A Hugging Face tokenizer with a chat template.
            tools: JSON schemas of the functions that the agent can call.

        Raises:
            ValueError: The template can't render a reply, has no generation prompt where replies need one, or doesn't
                end replies with a control token.
        """
        self._tokenizer = tokenizer
        # `all_special_tokens` is incomplete: Llama 3's <|start_header_id|> is only among the added tokens.
        added = [str(token) for token in tokenizer.added_tokens_decoder.values() if token.special]
        special = _longest_first([*tokenizer.all_special_tokens, *added])
        self._special = _any_of(special)
        self.known = self._known()
        """Tokens in the template that aren't special, such as Qwen3's <think> and DeepSeek's role names."""
        self.control = _any_of(_longest_first([*special, *self.known]))
        """Matches control tokens in a text, including those that aren't special."""
        try:
            self.header, self.lead, self.end, self._opening = self._find_ends()
        except (TemplateError, TypeError) as error:
            raise ValueError(
                f"The chat template can't render a reply: {str(error).rstrip('.')}. Save a working {_SAVE}."
            ) from error
        self._splits_reasoning = "reasoning_content" in tokenizer.get_chat_template()
        self.takes_system = self._takes_system()
        self.style = self._find_style()
        own = self._special.findall(self.style.head + self.style.tail) if self.style and tools else []
        self._quotable = [*special, _OPEN, _CLOSE]
        self._escape_all = _any_of(self._quotable)
        self._escape_reply = _any_of([token for token in self._quotable if token not in own])
        self._tools = list(tools)
        self._escaped_tools = self._escaped(self._tools)
        self._render = lru_cache(maxsize=_CACHE_SIZE)(self._render_uncached)
        self._call = lru_cache(maxsize=_CACHE_SIZE)(self._call_uncached)

    @property
    def calls(self) -> bool:
        """Whether functions are called in the template's own format."""
        return bool(self._tools) and self.style is not None

    def scaffold(self, conversation: Conversation) -> str:
        """Render the conversation up to the next reply, with slots in place of observations."""
        messages = list[tuple[str, str]]()
        for i, message in enumerate(conversation):
            role, text = message.role, ""
            if role == "assistant":
                text = self.in_history(message.content)
                role = "call" if self._is_call(message) else role
            elif role == "user" and i and self._is_call(conversation[i - 1]):
                role = "tool"
            messages.append((role, text))
        return self._render(tuple(messages))

    def with_described_tools(self, conversation: Conversation) -> Conversation:
        """Return the conversation with the functions described in its system message, if it has one and the template
        has no format of its own for them.
        """
        if not self._tools or self.calls or conversation[0].role != "system":
            return conversation
        return Message("system", f"{conversation[0].content}\n\n{described(self._tools)}"), *conversation[1:]

    def in_history(self, reply: str) -> str:
        """Return a reply as it is kept in the history, with slots in place of the control tokens that it contains.

        The reply is unchanged, except for a call in the model-independent format, which is converted to the template's.
        """
        call = self._call(reply) if '"function_name"' in reply else None
        return self._native(call) if call else self._escape_reply.sub(self._slot, reply)

    def after_opening(self, reply: str) -> str:
        """Return a reply without the tag that begins its reasoning, if the prompt ends with it."""
        tag, said = self._opening.rstrip(), reply.lstrip()
        if not tag or not said.startswith(tag):
            return reply
        return said.removeprefix(tag).removeprefix(self._opening.removeprefix(tag))

    def has_special(self, scaffold: str) -> bool:
        """Whether a rendered text has special tokens outside of slots."""
        return bool(self._special.search(SLOT.sub("", scaffold)))

    def content(self, slot: str, conversation: Conversation) -> str:
        """Return the content of a slot."""
        kind, number = slot[0], int(slot[1:])
        if kind == "c":
            return self._quotable[number]
        text = conversation[number].content.strip()
        return json.dumps(text, ensure_ascii=False)[1:-1] if kind == "j" else text

    def _is_call(self, message: Message) -> bool:
        return message.role == "assistant" and self._call(message.content) is not None

    def _call_uncached(self, reply: str) -> Call | None:
        """Parse a reply as a call, if functions are called in the template's own format."""
        try:
            return find_call(reply) if self.calls else None
        except CallError:
            return None

    def _render_uncached(self, messages: tuple[tuple[str, str], ...]) -> str:
        turns = [self._turn(i, role, text) for i, (role, text) in enumerate(messages)]
        if turns[0]["role"] == "system" and not self.takes_system:
            system, user, *rest = turns
            turns = [{"role": "user", "content": f"{system['content']}\n\n{user['content']}"}, *rest]
        rendered = self._apply(turns, tools=self._escaped_tools if self.calls else None)
        for i, (role, text) in enumerate(messages):
            if role == "call" and self.style:
                rendered = rendered.replace(f"{self.style.head}{_name(i)}{self.style.tail}", text)
        return rendered

    def _turn(self, i: int, role: str, text: str) -> dict[str, Any]:
        """Convert a message to the format that templates take."""
        if role == "call":
            return _called(_name(i), {})
        if role == "tool" and self.style:
            return _answered(f"{_OPEN}{self.style.answer}{i}{_CLOSE}")
        if role == "assistant":
            return {"role": role, **self._said(text)}
        return {"role": role, "content": f"{_OPEN}m{i}{_CLOSE}"}

    def _said(self, reply: str) -> dict[str, str]:
        """Return a reply with its reasoning as a message of its own key, which not all templates find in its text, if
        the prompt has begun it.
        """
        closing = f"</{self._opening.strip()[1:]}" if self._opening else ""
        if not self._splits_reasoning or not closing or closing not in reply:
            return {"content": reply}
        reasoning, *_, content = self.after_opening(reply).split(closing)
        return {"reasoning_content": reasoning.strip("\n"), "content": content.lstrip("\n")}

    def _native(self, call: Call) -> str:
        """Return a call in the template's format, with slots in place of the control tokens that it contains."""
        name, arguments, thought = self._escaped([call.name, call.arguments, call.thought])
        rendered = self._rendered_call(_called(name, arguments, thought))
        return f"{thought}\n{rendered}" if thought and self.style and not self.style.wordy else rendered

    def _slot(self, token: re.Match[str]) -> str:
        return f"{_OPEN}c{self._quotable.index(token[0])}{_CLOSE}"

    def _escaped(self, value: Any) -> Any:
        """Return a JSON value with slots in place of the control tokens that it contains."""
        return json.loads(self._escape_all.sub(self._slot, json.dumps(value, ensure_ascii=False)))

    def _rendered_call(self, call: dict[str, Any]) -> str:
        """Render a message with a call, without the lead and the end-of-turn token."""
        turns = [{"role": "user", "content": "x"}, call, _answered("y")]
        prompt = self._apply(turns[:1], tools=[_PROBE])
        return self._apply(turns, tools=[_PROBE]).removeprefix(prompt).removeprefix(self.lead).partition(self.end)[0]

    def _apply(self, turns: Sequence[dict[str, Any]], *, prompt: bool = True, tools: Any = None) -> str:
        options: Any = {"strftime_now": _DATE.strftime} | ({"tools": tools} if tools else {})
        return self._tokenizer.apply_chat_template(list(turns), tokenize=False, add_generation_prompt=prompt, **options)

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

    def _find_ends(self) -> tuple[str, str, str, str]:
        """Return the text before a reply since the last control token; what the template writes between this and a
        reply without reasoning, which is white space and the end of reasoning that the prompt begins; the end-of-turn
        token; and what begins reasoning at the end of the prompt, if anything does.
        """
        turns = [{"role": "user", "content": "x"}, {"role": "assistant", "content": _OPEN}]
        prompt = self._apply(turns[:1])
        head, _, tail = self._apply(turns, prompt=False).partition(_OPEN)
        end = self.control.match(tail)
        if end is None:
            raise ValueError(
                f"The chat template ends a reply with {tail!r}, which does not begin with a control token. Save a "
                f"{_SAVE} that ends replies with a special token, such as the tokenizer's eos_token."
            )
        header, lead = self.control.split(prompt)[-1], head.removeprefix(prompt)
        if self.control.search(lead) and prompt == self._apply(turns[:1], prompt=False):
            raise ValueError(
                f"The chat template ignores add_generation_prompt, and writes {lead!r} before a reply, so that a model "
                f"would not get it before its own. Save a {_SAVE} that ends prompts with it."
            )
        opened = _REASONING.search(prompt)
        if opened:
            closing = f"</{opened[1]}>"
            lead = lead if head.startswith(prompt) and closing in lead else f"\n{closing}\n\n"
        elif not lead.isspace():
            lead = ""
        return header, lead, end[0], opened[0] if opened else ""

    def _find_style(self) -> CallStyle | None:
        """Return the format of calls and results; None if the template has none, drops some of them, or writes calls
        that can't be parsed.
        """
        user, calls = {"role": "user", "content": "x"}, [_called(_name(i), {}) for i in range(3)]
        final = {"role": "assistant", "content": "z"}
        turns = [user, calls[0], _answered(_NEEDS_ESCAPING), calls[1], _answered("y"), final]
        try:
            prompt = self._apply([user], tools=[_PROBE])
            call = self._rendered_call(calls[0])
            probe = self._rendered_call(_called("probe", {"x": "y"}, _NEEDS_ESCAPING))
            parsed = find_call(probe)
            rendered = self._apply([*turns, user, calls[2], _answered("y")], tools=[_PROBE])
        except (TemplateError, TypeError, CallError):  # templates without support for calls raise or produce garbage
            return None
        head, _, tail = call.partition(_name(0))
        answers = {"m": _NEEDS_ESCAPING, "j": json.dumps(_NEEDS_ESCAPING)[1:-1]}
        answer = next((kind for kind, text in answers.items() if text in rendered), None)
        once = all(rendered.count(text) == 1 for i in range(3) for text in (f"{head}{_name(i)}{tail}", _name(i)))
        fits = once and prompt != self._apply([user]) and parsed == Call("probe", {"x": "y"})
        return CallStyle(head, tail, answer, _NEEDS_ESCAPING in probe) if fits and answer else None


def _name(number: int) -> str:
    """Placeholder for the name of a function while the template is rendered."""
    return f"{_OPEN}f{number}{_CLOSE}"


def _called(name: str, arguments: dict[str, Any], thought: str = "") -> dict[str, Any]:
    call = {"id": _CALL_ID, "type": "function", "function": {"name": name, "arguments": arguments}}
    return {"role": "assistant", "content": thought, "tool_calls": [call]}


def _answered(content: str) -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": _CALL_ID, "content": content}


def _longest_first(tokens: Sequence[str]) -> list[str]:
    return sorted(dict.fromkeys(tokens), key=len, reverse=True)


def _any_of(tokens: Sequence[str]) -> re.Pattern[str]:
    """Return a pattern that matches any of these tokens."""
    return re.compile("|".join(map(re.escape, tokens)) or "(?!)")
