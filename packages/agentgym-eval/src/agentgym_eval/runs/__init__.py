"""Evaluation runs: settings, environments, resumable play and comparisons of finished runs."""
