"""Evaluation runs: settings, environments, resumable runs and comparisons of finished runs."""
