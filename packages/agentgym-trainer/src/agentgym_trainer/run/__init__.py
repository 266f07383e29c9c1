"""The outputs of a run: run folder, checkpoints, metrics, plots, summary, console and trackers."""
