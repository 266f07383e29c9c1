"""The contract of a text environment: the base class, spaces, tasks, action schema and registry."""
