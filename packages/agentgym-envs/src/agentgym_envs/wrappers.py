"""How a reply becomes an action. Worlds take actions; a language model says more than that.

A `ReplyWrapper` is an ordinary Gymnasium wrapper whose actions are replies. Parsing is total: every text is either an
action or `Malformed`. `format` is the other direction, for experts: `parse(format(a)) == a` for every one-line action.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Any, ClassVar, SupportsFloat

import gymnasium

from agentgym_envs.text_env import Malformed
from agentgym_envs.text_space import TextSpace

MAX_REPLY_CHARS = 65_536


class ReplyWrapper(gymnasium.Wrapper[str, str, str, str], ABC):
    """A world that takes replies. `info["action"]` is the action found in the reply, or None."""

    manner: ClassVar[str]
    """What an agent is told about the form of its replies; appended to the world's instructions."""

    def __init__(self, env: gymnasium.Env[str, str], *, instructions: str | None = None) -> None:
        """Wrap a world.

        Args:
            env: The world.
            instructions: What the agent is told instead of the world's instructions and the form of a reply; the
                empty string tells it nothing, for agents that were trained without.
        """
        super().__init__(env)
        self.action_space = TextSpace(MAX_REPLY_CHARS)
        self._instructions = instructions

    @abstractmethod
    def parse(self, reply: str) -> str | Malformed:
        """The action in `reply`, or `Malformed` with a hint."""

    @abstractmethod
    def format(self, action: str, thought: str = "") -> str:
        """A reply from which `parse` gets `action`."""

    @property
    def instructions(self) -> str:
        """The world's instructions, and the form of a reply."""
        return self.told(self.env.get_wrapper_attr("instructions"))

    def told(self, instructions: str) -> str:
        """What an agent is told when those of the world are `instructions`: the form of a reply with them."""
        return f"{instructions}\n\n{self.manner}" if self._instructions is None else self._instructions

    def step(self, action: str) -> tuple[str, SupportsFloat, bool, bool, dict[str, Any]]:
        """Play the action that the reply holds; a malformed one costs a turn and is answered with what was expected."""
        parsed = self.parse(action)
        observation, reward, terminated, truncated, info = self.env.step(parsed)
        info["action"] = None if isinstance(parsed, Malformed) else parsed
        return observation, reward, terminated, truncated, info


class Bare(ReplyWrapper):
    """The reply is the action: one line, nothing else."""

    manner = "Answer with one action on one line and nothing else."

    def parse(self, reply: str) -> str | Malformed:
        """The stripped reply, if it is one line that isn't empty."""
        action = reply.strip()
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

    manner = "Answer in this form, with exactly one action:\nThought: what you think\nAction: the action"
    _MARK = re.compile(r"^[ \t]*Action:", re.MULTILINE)

    def parse(self, reply: str) -> str | Malformed:
        """The first line that isn't empty after the one `Action:` at the start of a line."""
        marks = list(self._MARK.finditer(reply))
        if not marks:
            return Malformed(reply, "There was no action in your answer. Write a line that begins with 'Action:'.")
        if len(marks) > 1:
            return Malformed(reply, "There were several actions in your answer. Write exactly one 'Action:' line.")
        lines = reply[marks[0].end() :].strip().splitlines()
        if not lines:
            return Malformed(reply, "There was nothing after 'Action:' in your answer. Write the action there.")
        return lines[0].strip()

    def format(self, action: str, thought: str = "") -> str:
        """Thought and action, each on its line."""
        return f"Thought: {' '.join(thought.split())}\nAction: {action}"


class Tags(ReplyWrapper):
    """`<think>...</think>` and then the action, in worlds of this form itself a tag such as `<search>...</search>`.

    The form of Search-R1 (Jin et al. 2025, arXiv 2503.09516).
    """

    manner = "Answer in this form, with exactly one action:\n<think>what you think</think>\nthe action"
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


WRAPPERS: dict[str, type[ReplyWrapper]] = {"react": ReAct, "bare": Bare, "tags": Tags}
"""The wrappers by the name that command lines and recipes use."""
