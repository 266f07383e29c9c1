"""Metrics of episodes: success, pass@k, intervals, paired comparisons and token usage."""
