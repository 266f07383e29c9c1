"""Forms of replies that hold the action as text: `ReAct`, `Bare`, `Tags`. They know no world's grammar."""

from __future__ import annotations

import re
from collections.abc import Iterator

from agentgym_envs.agents.formats.base import ReplyWrapper
from agentgym_envs.core.text_env import Malformed


class Bare(ReplyWrapper):
    """The reply is the action: one line, nothing else."""

    reply_format = "bare"
    thinks = False
    format_instructions = "Answer with one action on one line and nothing else."

    def parse(self, reply: str) -> str | Malformed:
        """The stripped reply, if it is one line that isn't empty."""
        action = _answer(reply).strip()
        if not action:
            return Malformed(reply, "Your answer was empty. Answer with one action on one line.")
        if len(action.splitlines()) > 1:
            return Malformed(reply, "Your answer had several lines. Answer with one action on one line.")
        return action

    def format(self, action: str, thought: str = "") -> str:
        """The action; there is no room for a thought."""
        return action


class ReAct(ReplyWrapper):
    """`Thought: ...` and then `Action: ...` (Yao et al. 2022, arXiv 2210.03629); one action per reply."""

    reply_format = "react"
    format_instructions = "Answer in this form, with exactly one action:\nThought: what you think\nAction: the action"
    _MARK = re.compile(r"^[ \t]*Action:", re.MULTILINE)

    def parse(self, reply: str) -> str | Malformed:
        """The first line that isn't empty after the one `Action:` at the start of a line."""
        said = _answer(reply)
        marks = list(self._MARK.finditer(said))
        if not marks:
            return Malformed(reply, "There was no action in your answer. Write a line that begins with 'Action:'.")
        if len(marks) > 1:
            return Malformed(reply, "There were several actions in your answer. Write exactly one 'Action:' line.")
        lines = said[marks[0].end() :].strip().splitlines()
        if not lines:
            return Malformed(reply, "There was nothing after 'Action:' in your answer. Write the action there.")
        return lines[0].strip()

    def format(self, action: str, thought: str = "") -> str:
        """Thought and action, each on its line."""
        return f"Thought: {' '.join(thought.replace('</', '< /').split())}\nAction: {action}"


class Tags(ReplyWrapper):
    """`<think>...</think>` and then the action, in worlds of this form itself a tag such as `<search>...</search>`.

    The form of Search-R1 (Jin et al. 2025, arXiv 2503.09516).
    """

    reply_format = "tags"
    format_instructions = "Answer in this form, with exactly one action:\n<think>what you think</think>\nthe action"
    _OPENING = re.compile(r"<(\w+)>")

    def parse(self, reply: str) -> str | Malformed:
        """What follows the thought, if it is one line; else the one tag in it."""
        thought, closed, rest = reply.partition("</think>")
        said = (rest if closed else thought).strip()
        if len(said.splitlines()) == 1:
            return said
        tags = [" ".join(tag.split()) for tag in self._tags(said)]
        if not tags:
            return Malformed(reply, "There was no action in your answer. Write one after </think>.")
        if len(tags) > 1:
            return Malformed(reply, "There were several actions in your answer. Write exactly one after </think>.")
        return tags[0]

    def _tags(self, text: str) -> Iterator[str]:
        """What stands between an opening tag and the first closing one of its name, tags included; outermost ones."""
        at, unclosed = 0, set[str]()  # a regular expression would search to the end for each tag that isn't closed
        for opening in self._OPENING.finditer(text):
            closing = f"</{opening[1]}>"
            if opening.start() < at or closing in unclosed:
                continue
            end = text.find(closing, opening.end())
            if end < 0:
                unclosed.add(closing)
                continue
            at = end + len(closing)
            yield text[opening.start() : at]

    def format(self, action: str, thought: str = "") -> str:
        """Thought and action, each on its line."""
        return f"<think>{' '.join(thought.replace('</', '< /').split())}</think>\n{action}"


def _answer(reply: str) -> str:
    """The lines below the one in which a model that thinks first ends its thought; an action may hold the mark too."""
    below = reply.rpartition("</think>")[2]
    return below if below.strip() and "\n" in below else reply
