"""How a reply becomes an action: worlds take actions, and a language model says more than that. And worlds as numbers,
for agents that are no language models.
"""

from agentgym_envs.wrappers.base import MAX_REPLY_CHARS, ReplyWrapper
from agentgym_envs.wrappers.calling import CodeAct, FunctionCall
from agentgym_envs.wrappers.numeric import BagOfWords, DiscreteActions, Survey, survey
from agentgym_envs.wrappers.plain import Bare, ReAct, Tags

__all__ = [
    "FORMS",
    "MAX_REPLY_CHARS",
    "BagOfWords",
    "Bare",
    "CodeAct",
    "DiscreteActions",
    "FunctionCall",
    "ReAct",
    "ReplyWrapper",
    "Survey",
    "Tags",
    "survey",
]

FORMS: dict[str, type[ReplyWrapper]] = {form.form: form for form in (ReAct, Bare, Tags, FunctionCall, CodeAct)}
"""The forms of replies by name."""
