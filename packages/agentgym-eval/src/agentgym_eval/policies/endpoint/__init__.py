"""Language models behind any OpenAI-compatible endpoint, as players: `--policy openai:MODEL`.

Rooms: `settings` (what a user may say of one), `client` (requests, patience, errors), `messages` (what an
answer says), `player`.
"""
