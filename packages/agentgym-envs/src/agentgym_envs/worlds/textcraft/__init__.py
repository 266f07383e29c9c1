"""TextCraft: a text environment in which the agent crafts a Minecraft 1.16 item from gathered materials.

`gymnasium.make("agentgym/TextCraft-v0", depth=(1, 4), distractors=10)`; see `TextCraft` for the options.
"""
