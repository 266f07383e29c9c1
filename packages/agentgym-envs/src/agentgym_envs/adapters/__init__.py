"""Worlds as other libraries want them: `tools` (TRL), `skyrl`, `openenv`, `mcp`; see docs/howto/other-libraries.md.

Each module knows one library, and imports it at most when it is imported itself; no world knows of any.
"""
