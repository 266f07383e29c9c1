"""AgentGym's conversation files and item-id files (AgentGym, arXiv 2406.04151).

A conversation file is a JSON array of `{"item_id": "babyai_123", "conversations": [{"from": "human" | "gpt", "loss":
null | true | false, "value": "..."}]}`; its first message contains the instructions, and the reply to it is not an
action. An item-id file has the ids alone. `agentgym_envs.agentgym_ids` maps the ids to tasks.
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
"""Splits by the second part of a task id. WebArena's original tasks, whose ids name their set there, are test tasks."""
_ID = re.compile(r"[A-Za-z][\w-]*_\d{1,9}", re.ASCII)
"""An item id of any environment: ENVIRONMENT_NUMBER."""
_AGREED = "OK."
"""The agent's reply to the instructions, which have no role of their own in this format."""


class NoCounterpart(ValueError):
    """A task that exists only in AgentGym or only in this package; the message says why."""


def read(record: dict[str, Any]) -> Recording:
    """Read a conversation. Replies contribute to the loss unless their `loss` is false.

    Raises:
        ValueError: If the record isn't of this format; the message says where.
    """
    messages: list[Message] = []
    masked: set[int] = set()
    conversations = record["conversations"]
    if not isinstance(conversations, list):
        raise ValueError("`conversations` is not a list of messages")
    for at, entry in enumerate(conversations):
        if not isinstance(entry, dict):
            raise ValueError(f"message {at + 1} of `conversations` is not a JSON object")
        speaker, value = entry.get("from"), entry.get("value")
        if not isinstance(speaker, str) or speaker not in _ROLES or not isinstance(value, str):
            raise ValueError(f"message {at + 1} has no text as `value`, or its `from` is neither human nor gpt")
        if speaker == "gpt" and entry.get("loss") is False:
            masked.add(at)
        messages.append(Message(_ROLES[speaker], value))
    return Recording(tuple(messages), frozenset(masked))


def task(record: dict[str, Any]) -> Task:
    """Return the task of a conversation. Category and difficulty stay empty if the environment can't provide them
    without downloads or setup.

    Raises:
        NoCounterpart: If this package has no such task, or its environment isn't installed.
        ValueError: If the record names no task.
    """
    item = record.get("item_id")
    if not isinstance(item, str):
        raise ValueError("its `item_id` is missing" if item is None else f"its `item_id` is not a string, but {item!r}")
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
    """Return AgentGym's id of an episode's task. Episodes without an environment keep their own id, if they have one.

    Raises:
        NoCounterpart: If AgentGym has no such task, or the environment isn't installed.
    """
    if not episode.env:
        if _ID.fullmatch(episode.task_id):
            return episode.task_id
        raise NoCounterpart(f"The conversation {episode.task_id!r} has no task id of AgentGym, such as babyai_123.")
    try:
        return agentgym_ids.item_id(episode.task_id)
    except KeyError as error:
        raise NoCounterpart(error.args[0]) from error
    except gymnasium.error.DependencyNotInstalled as error:
        raise NoCounterpart(str(error)) from error


def records(episode: Episode) -> Iterator[dict[str, Any]]:
    """Yield the conversations of an episode. `loss` is false for replies of earlier conversations, truncated replies,
    and random actions of a noisy expert.

    Raises:
        NoCounterpart: See `item_id`.
    """
    item = item_id(episode)
    for context in context_messages(episode):
        yield {"item_id": item, "conversations": list(_entries(context, episode.tools))}


def items(episode: Episode) -> Iterator[dict[str, Any]]:
    """Yield the record of an episode's task for an item-id file.

    Raises:
        NoCounterpart: See `item_id`.
    """
    yield {"item_id": item_id(episode)}


def _entries(context: ContextMessages, tools: Sequence[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    messages = plain(context.messages, tools)
    for at, message in enumerate(messages, len(context.messages) - len(messages)):
        if message["role"] == "assistant":
            turn = context.turns.get(at)
            learned = turn is not None and turn.loss and turn.reply.finish == "stop" and not turn.reply.noise
            yield {"from": "gpt", "loss": learned, "value": message["content"]}
            continue
        yield {"from": "human", "loss": None, "value": message["content"]}
        if message["role"] == "system":
            yield {"from": "gpt", "loss": False, "value": _AGREED}
