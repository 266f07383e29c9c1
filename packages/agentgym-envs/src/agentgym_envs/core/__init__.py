"""The contract of a text environment: base class, spaces, tasks, action schema and the registry."""
