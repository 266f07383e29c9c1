"""Text worlds for language agents, as Gymnasium environments.

Importing this registers the worlds: `gymnasium.make("agentgym/TextCraft-v0")`. It loads none of them.
"""

from agentgym_envs.agents.formats import Bare, CodeAct, FunctionCall, ReAct, ReplyWrapper, Tags
from agentgym_envs.core.action_schema import Function
from agentgym_envs.core.registry import WORLDS, RegisteredWorld, make, register_worlds, text_env
from agentgym_envs.core.tasks import Task, Tasks, TaskSet
from agentgym_envs.core.text_env import EnvFault, Feedback, InvalidFeedback, Malformed, TextEnv
from agentgym_envs.core.text_space import TextSpace
from agentgym_envs.episodes.episode import Episode, StopReason, TokenUsage, Turn, read_episodes
from agentgym_envs.episodes.play import (
    Conversation,
    EpisodeSpec,
    Message,
    Policy,
    Reply,
    Sample,
    TurnContext,
    WorldSeat,
    play,
    play_many,
)
from agentgym_envs.episodes.play_pool import Player, play_pool, play_slot
from agentgym_envs.pool import EnvPool, Result, SlotBusy, WorldSpec

__all__ = [
    "WORLDS",
    "Bare",
    "CodeAct",
    "Conversation",
    "EnvFault",
    "EnvPool",
    "Episode",
    "EpisodeSpec",
    "Feedback",
    "Function",
    "FunctionCall",
    "InvalidFeedback",
    "Malformed",
    "Message",
    "Player",
    "Policy",
    "ReAct",
    "RegisteredWorld",
    "Reply",
    "ReplyWrapper",
    "Result",
    "Sample",
    "SlotBusy",
    "StopReason",
    "Tags",
    "Task",
    "TaskSet",
    "Tasks",
    "TextEnv",
    "TextSpace",
    "TokenUsage",
    "Turn",
    "TurnContext",
    "WorldSeat",
    "WorldSpec",
    "make",
    "play",
    "play_many",
    "play_pool",
    "play_slot",
    "read_episodes",
    "register_worlds",
    "text_env",
]

register_worlds()
