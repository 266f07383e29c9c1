"""Rollouts: environments and tasks in, groups of episodes out."""
