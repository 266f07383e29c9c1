"""Text environments for language-model agents, as Gymnasium environments.

Importing this package registers the environments, so that `gymnasium.make("agentgym/TextCraft-v0")` works. It imports
none of them.
"""

from agentgym_envs.agents.formats import Bare, CodeAct, FunctionCall, ReAct, ReplyWrapper, Tags
from agentgym_envs.core.action_schema import Function
from agentgym_envs.core.registry import WORLDS, RegisteredWorld, make, register_worlds, text_env
from agentgym_envs.core.tasks import Task, Tasks, TaskSet
from agentgym_envs.core.text_env import EnvFault, Feedback, InvalidFeedback, Malformed, TextEnv
from agentgym_envs.core.text_space import TextSpace
from agentgym_envs.episodes.conversation import Conversation, Message
from agentgym_envs.episodes.episode import Episode, Reply, Sample, StopReason, TokenUsage, Turn, read_episodes
from agentgym_envs.episodes.expert_start import ExpertStart
from agentgym_envs.episodes.play import OpenEpisode, play, play_episode, play_many, play_slots
from agentgym_envs.episodes.play_pool import PoolSlot, play_pool
from agentgym_envs.episodes.policy import Policy, TurnContext
from agentgym_envs.episodes.recorder import EpisodeSpec
from agentgym_envs.episodes.slots import EnvSlot, LocalSlot
from agentgym_envs.pool import EnvPool, Result, SlotBusy, WorldSpec

__all__ = [
    "WORLDS",
    "Bare",
    "CodeAct",
    "Conversation",
    "EnvFault",
    "EnvPool",
    "EnvSlot",
    "Episode",
    "EpisodeSpec",
    "ExpertStart",
    "Feedback",
    "Function",
    "FunctionCall",
    "InvalidFeedback",
    "LocalSlot",
    "Malformed",
    "Message",
    "OpenEpisode",
    "Policy",
    "PoolSlot",
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
    "WorldSpec",
    "make",
    "play",
    "play_episode",
    "play_many",
    "play_pool",
    "play_slots",
    "read_episodes",
    "register_worlds",
    "text_env",
]

register_worlds()
