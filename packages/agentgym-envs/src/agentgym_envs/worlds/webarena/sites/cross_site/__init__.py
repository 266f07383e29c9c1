"""Tasks that need two or more of the sites."""
