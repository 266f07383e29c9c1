"""Adapters to other libraries: `tools` (TRL), `skyrl`, `openenv`, `mcp`; see docs/howto/other-libraries.md.

Each module supports one library and imports it, if at all, only on its own import. Environments don't depend on any.
"""
