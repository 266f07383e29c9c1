"""The command-line interface of this package."""
