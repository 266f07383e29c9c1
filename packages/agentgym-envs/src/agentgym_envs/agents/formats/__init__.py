"""Reply formats: how a language model's reply becomes an action of an environment."""

from agentgym_envs.agents.formats.base import MAX_REPLY_CHARS, ReplyWrapper
from agentgym_envs.agents.formats.function_calls import CodeAct, FunctionCall
from agentgym_envs.agents.formats.text import Bare, ReAct, Tags

__all__ = [
    "MAX_REPLY_CHARS",
    "REPLY_FORMATS",
    "Bare",
    "CodeAct",
    "FunctionCall",
    "ReAct",
    "ReplyWrapper",
    "Tags",
]

REPLY_FORMATS: dict[str, type[ReplyWrapper]] = {
    form.reply_format: form for form in (ReAct, Bare, Tags, FunctionCall, CodeAct)
}
"""The reply formats by name."""
