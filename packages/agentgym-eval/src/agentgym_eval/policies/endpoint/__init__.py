"""Language models behind any OpenAI-compatible endpoint, as policies: `--policy openai:MODEL`.

Modules: `settings` (flags), `client` (requests, retries, errors), `messages` (parsing of responses), `player` (the
policy).
"""
