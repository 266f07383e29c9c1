"""Checks of the environment contract, for environments from any package."""
