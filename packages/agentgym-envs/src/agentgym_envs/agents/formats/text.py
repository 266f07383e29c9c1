"""Reply formats that contain the action as text: `ReAct`, `Bare`, `Tags`. They work with any action grammar."""

from __future__ import annotations

import re
from collections.abc import Iterator

from agentgym_envs.agents.formats.base import ReplyWrapper
from agentgym_envs.core.text_env import Malformed


class Bare(ReplyWrapper):
    """Replies that consist of the action on one line."""

    reply_format = "bare"
    thinks = False
    format_instructions = "Answer with one action on one line and nothing else."

    def parse(self, reply: str) -> str | Malformed:
        """Return the stripped reply if it is one non-empty line."""
        action = reply.strip()
        if len(action.splitlines()) > 1:  # in a single line, `</think>` may be part of the action
            action = action.rpartition("</think>")[2].strip()
        if not action:
            return Malformed(reply, "Your answer was empty. Answer with one action on one line.")
        if len(action.splitlines()) > 1:
            return Malformed(reply, "Your answer had several lines. Answer with one action on one line.")
        return action

    def format(self, action: str, thought: str = "") -> str:
        """Return the action. This format has no thoughts."""
        return action


class ReAct(ReplyWrapper):
    """`Thought: ...` followed by one `Action: ...` (Yao et al. 2022, arXiv 2210.03629)."""

    reply_format = "react"
    format_instructions = "Answer in this form, with exactly one action:\nThought: what you think\nAction: the action"
    _MARK = re.compile(r"^[ \t]*Action:", re.MULTILINE)

    def parse(self, reply: str) -> str | Malformed:
        """Return the first non-empty line after the only `Action:` at the start of a line."""
        answer = self._answer(reply)
        marks = list(self._MARK.finditer(answer))
        if not marks:
            return Malformed(reply, "There was no action in your answer. Write a line that begins with 'Action:'.")
        if len(marks) > 1:
            return Malformed(reply, "There were several actions in your answer. Write exactly one 'Action:' line.")
        lines = answer[marks[0].end() :].strip().splitlines()
        if not lines:
            return Malformed(reply, "There was nothing after 'Action:' in your answer. Write the action there.")
        return lines[0].strip()

    def _answer(self, reply: str) -> str:
        """Return the text after the reasoning, which ends with `</think>`, or all of `reply` without reasoning.

        In a reply that doesn't begin with `<think>`, a `</think>` in a line with an action is part of the action,
        unless further lines follow.
        """
        before, _, below = reply.rpartition("</think>")
        in_action = self._MARK.match(before.rpartition("\n")[2]) and "\n" not in below.rstrip()
        return reply if in_action and not reply.lstrip().startswith("<think>") else below

    def format(self, action: str, thought: str = "") -> str:
        """Return thought and action on a line each."""
        return f"Thought: {' '.join(thought.replace('</', '< /').split())}\nAction: {action}"


class Tags(ReplyWrapper):
    """`<think>...</think>` followed by the action, often itself a tag such as `<search>...</search>`.

    This is the format of Search-R1 (Jin et al. 2025, arXiv 2503.09516).
    """

    reply_format = "tags"
    format_instructions = "Answer in this form, with exactly one action:\n<think>what you think</think>\nthe action"
    _OPENING = re.compile(r"<(\w+)>")

    def parse(self, reply: str) -> str | Malformed:
        """Return the text after the thought if it is one line, or else the only tag in it."""
        thought, closed, rest = reply.partition("</think>")
        answer = (rest if closed else thought).strip()
        if len(answer.splitlines()) == 1:
            return answer
        tags = [" ".join(tag.split()) for tag in self._tags(answer)]
        if not tags:
            return Malformed(reply, "There was no action in your answer. Write one after </think>.")
        if len(tags) > 1:
            return Malformed(reply, "There were several actions in your answer. Write exactly one after </think>.")
        return tags[0]

    def _tags(self, text: str) -> Iterator[str]:
        """Yield the outermost tags with their content, each up to its first closing tag."""
        consumed, unclosed = 0, set[str]()  # a regular expression would search to the end for each unclosed tag
        for opening in self._OPENING.finditer(text):
            closing = f"</{opening[1]}>"
            if opening.start() < consumed or closing in unclosed:
                continue
            end = text.find(closing, opening.end())
            if end < 0:
                unclosed.add(closing)
                continue
            consumed = end + len(closing)
            yield text[opening.start() : consumed]

    def format(self, action: str, thought: str = "") -> str:
        """Return thought and action on a line each."""
        return f"<think>{' '.join(thought.replace('</', '< /').split())}</think>\n{action}"
