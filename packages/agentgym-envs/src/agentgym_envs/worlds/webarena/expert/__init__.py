"""The expert policy on the embedded sites."""
