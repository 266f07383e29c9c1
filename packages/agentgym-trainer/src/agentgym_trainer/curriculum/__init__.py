"""Horizon schedules, task samplers and the training state."""
