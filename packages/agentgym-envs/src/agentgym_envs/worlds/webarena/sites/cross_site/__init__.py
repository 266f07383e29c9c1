"""Tasks that need two or more sites."""
