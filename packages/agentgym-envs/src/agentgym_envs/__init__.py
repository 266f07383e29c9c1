"""Text environments for language-model agents, as Gymnasium environments.

Importing this package registers the environments, so that `gymnasium.make("agentgym/TextCraft-v0")` works. It imports
none of them, and Gymnasium only when one of its names is used, so that the commands start fast.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from agentgym_envs.core.registration import WORLDS, RegisteredWorld, register_with_gymnasium, register_worlds

if TYPE_CHECKING:
    from agentgym_envs.agents.agent import Agent
    from agentgym_envs.agents.formats import Bare, CodeAct, FunctionCall, ReAct, ReplyWrapper, Tags
    from agentgym_envs.checks.contract import ContractError, check_text_env
    from agentgym_envs.core.action_schema import Function
    from agentgym_envs.core.registry import make, text_env
    from agentgym_envs.core.tasks import Split, Task, Tasks, TaskSet
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

_MODULES = {
    "agentgym_envs.agents.agent": "Agent",
    "agentgym_envs.agents.formats": "Bare CodeAct FunctionCall ReAct ReplyWrapper Tags",
    "agentgym_envs.checks.contract": "ContractError check_text_env",
    "agentgym_envs.core.action_schema": "Function",
    "agentgym_envs.core.registry": "make text_env",
    "agentgym_envs.core.tasks": "Split Task Tasks TaskSet",
    "agentgym_envs.core.text_env": "EnvFault Feedback InvalidFeedback Malformed TextEnv",
    "agentgym_envs.core.text_space": "TextSpace",
    "agentgym_envs.episodes.conversation": "Conversation Message",
    "agentgym_envs.episodes.episode": "Episode Reply Sample StopReason TokenUsage Turn read_episodes",
    "agentgym_envs.episodes.expert_start": "ExpertStart",
    "agentgym_envs.episodes.play": "OpenEpisode play play_episode play_many play_slots",
    "agentgym_envs.episodes.play_pool": "PoolSlot play_pool",
    "agentgym_envs.episodes.policy": "Policy TurnContext",
    "agentgym_envs.episodes.recorder": "EpisodeSpec",
    "agentgym_envs.episodes.slots": "EnvSlot LocalSlot",
    "agentgym_envs.pool": "EnvPool Result SlotBusy WorldSpec",
}
"""The modules of the names below, which are imported on first use."""
_LAZY = {name: module for module, names in _MODULES.items() for name in names.split()}

__all__ = [
    "WORLDS",
    "Agent",
    "Bare",
    "CodeAct",
    "ContractError",
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
    "Split",
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
    "check_text_env",
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

register_with_gymnasium()


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_LAZY[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
