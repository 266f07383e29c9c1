"""The expert on the embedded sites."""
