"""Adapters to other libraries: `tools` (TRL), `skyrl`, `openenv`, `mcp`, `browsergym` (docs/howto/other-libraries.md),
and from them: `from_gymnasium` and the other environments by scheme (docs/howto/use-other-environments.md).

Each module supports one library and imports it, if at all, only on its own import. Environments don't depend on any.
"""
