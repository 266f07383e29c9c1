"""Checks of the environment contract, for environments of any package."""
