"""TextCraft: craft an item of Minecraft 1.16 from gathered materials, in text.

`gymnasium.make("agentgym/TextCraft-v0", depth=(1, 4), distractors=10)`; see `TextCraft` for the options.
"""

from agentgym_envs.worlds.textcraft.agentgym import from_agentgym, to_agentgym
from agentgym_envs.worlds.textcraft.env import TextCraft

__all__ = ["TextCraft", "from_agentgym", "to_agentgym"]
