"""The worlds, one folder each. No world imports another, and nothing here imports any of them."""
