"""Multi-turn reinforcement learning of language agents, from a world to a learning curve."""
