"""Embedded web sites: a shop and its admin site, a forum, a code host, a map, an encyclopedia, a home page.

Built for `agentgym/WebArena-v0` with seeded data about one invented region, a frozen clock and no external resources.
`python -m agentgym_envs.worlds.webarena.sites` serves them; each episode has its own copy of the databases. This
package does not depend on browsers or environments.
"""
