"""Optimizer steps on token batches."""
