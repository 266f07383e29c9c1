"""TextCraft: craft an item of Minecraft 1.16 from gathered materials, in text.

`gymnasium.make("agentgym/TextCraft-v0", depth=(1, 4), distractors=10)`; see `TextCraft` for the options.
"""
