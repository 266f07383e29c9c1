"""AgentGym's conversation files and item-id files (AgentGym, arXiv 2406.04151).

A conversation file is a JSON array of `{"item_id": "babyai_123", "conversations": [{"from": "human" | "gpt", "loss":
null | true | false, "value": "..."}]}`; its first message has the instructions, and the reply to it is no action. An
item-id file has the ids alone. Which tasks its ids are is known to `agentgym_envs.agentgym_ids`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from functools import cache
from typing import Any, Literal

import gymnasium
from agentgym_envs import Episode, Message, Task, TaskSet, agentgym_ids, make, text_env
from agentgym_envs.core.tasks import SPLITS, Split

from agentgym_eval.data.contexts import ContextMessages, context_messages
from agentgym_eval.data.recorded import Recording
from agentgym_eval.util.tool_calls import plain

_ROLES: dict[str, Literal["user", "assistant"]] = {"human": "user", "gpt": "assistant"}
_SPLITS: dict[str, Split] = {split: split for split in SPLITS}
"""By the second part of an id. WebArena's original tasks, whose ids name their set there, are for testing."""
_ID = re.compile(r"[A-Za-z][\w-]*_\d{1,9}", re.ASCII)
"""WORLD_NUMBER, of whatever world."""
_AGREED = "OK."
"""What the agent says to instructions, which have no role of their own there."""


class NoCounterpart(ValueError):
    """A task that AgentGym and we don't share; the message says why."""


def read(record: dict[str, Any]) -> Recording:
    """What was said in a conversation. Replies are learned from unless their `loss` is false.

    Raises:
        ValueError: when it isn't of this format; the message says where.
    """
    messages: list[Message] = []
    silent: set[int] = set()
    conversations = record["conversations"]
    if not isinstance(conversations, list):
        raise ValueError("`conversations` is no list of messages")
    for at, said in enumerate(conversations):
        if not isinstance(said, dict):
            raise ValueError(f"message {at + 1} of `conversations` is no JSON object")
        speaker, value = said.get("from"), said.get("value")
        if not isinstance(speaker, str) or speaker not in _ROLES or not isinstance(value, str):
            raise ValueError(f"message {at + 1} has no `value`, or is neither `from` human nor gpt")
        if speaker == "gpt" and said.get("loss") is False:
            silent.add(at)
        messages.append(Message(_ROLES[speaker], value))
    return Recording(tuple(messages), frozenset(silent))


def task(record: dict[str, Any]) -> Task:
    """Our task that the conversation is about. Category and difficulty stay empty where a world can't tell them
    without fetching or being set up.

    Raises:
        NoCounterpart: when none of ours is the same, or its world isn't installed.
        ValueError: when it names no task at all.
    """
    item = record.get("item_id")
    if not isinstance(item, str):
        raise ValueError("its `item_id` is missing" if item is None else f"its `item_id` is no text, but {item!r}")
    try:
        task_id = agentgym_ids.task_id(item)
    except KeyError as error:
        raise NoCounterpart(error.args[0]) from error
    except gymnasium.error.DependencyNotInstalled as error:
        raise NoCounterpart(str(error)) from error
    world, split = task_id.split("/")[:2]
    env = agentgym_ids.WORLDS[world]
    if task_id in _tasks(env):
        return _tasks(env)[task_id]
    return Task(task_id, env, _SPLITS.get(split, "test"), "", 0)


@cache
def _tasks(env: str) -> TaskSet:
    world = make(env)
    try:
        return text_env(world).tasks
    finally:
        world.close()


def item_id(episode: Episode) -> str:
    """AgentGym's id of the task of an episode; what is of no world has kept its own, if it had one.

    Raises:
        NoCounterpart: when it has no such task, or the world isn't installed.
    """
    if not episode.env:
        if _ID.fullmatch(episode.task_id):
            return episode.task_id
        raise NoCounterpart(
            f"The conversation {episode.task_id!r} is about no task: AgentGym's ids are such as babyai_123."
        )
    try:
        return agentgym_ids.item_id(episode.task_id)
    except KeyError as error:
        raise NoCounterpart(error.args[0]) from error
    except gymnasium.error.DependencyNotInstalled as error:
        raise NoCounterpart(str(error)) from error


def records(episode: Episode) -> Iterator[dict[str, Any]]:
    """The conversations of an episode. What was said in an earlier one has `loss: false`, and so has half a reply.

    Raises:
        NoCounterpart: as `item_id`.
    """
    item = item_id(episode)
    for stretch in context_messages(episode):
        yield {"item_id": item, "conversations": list(_said(stretch, episode.tools))}


def items(episode: Episode) -> Iterator[dict[str, Any]]:
    """The id of an episode's task, as item-id files have it.

    Raises:
        NoCounterpart: as `item_id`.
    """
    yield {"item_id": item_id(episode)}


def _said(stretch: ContextMessages, tools: Sequence[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    messages = plain(stretch.messages, tools)
    for at, message in enumerate(messages, len(stretch.messages) - len(messages)):
        if message["role"] == "assistant":
            turn = stretch.turns.get(at)
            learned = turn is not None and turn.loss and turn.reply.finish == "stop"
            yield {"from": "gpt", "loss": learned, "value": message["content"]}
            continue
        yield {"from": "human", "loss": None, "value": message["content"]}
        if message["role"] == "system":
            yield {"from": "gpt", "loss": False, "value": _AGREED}
