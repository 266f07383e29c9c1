"""Optimizer steps on batches of tokens."""
