"""Metrics of episodes: success, score, pass@k, confidence intervals, paired comparisons and token usage."""
