"""A small web for agents: a shop and its administration, a forum, a code host, a map, an encyclopaedia, a home page.

Made for `agentgym/WebArena-v0`, with seeded data about one invented region, a frozen clock, and no resource from
outside. `python -m agentgym_envs.worlds.webarena.sites` serves them; each episode has its own copy of the databases.
Nothing here knows of browsers or environments.
"""
