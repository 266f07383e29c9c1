"""Agents: reply formats, scaffolds, and the names that combine them."""
