"""An OpenAI-compatible server in front of an engine that records what it samples, token by token."""
