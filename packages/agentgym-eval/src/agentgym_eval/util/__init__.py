"""Errors, progress display, signals and tool-call messages."""
