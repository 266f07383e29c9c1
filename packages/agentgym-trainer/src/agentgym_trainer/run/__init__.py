"""What a run leaves on disk and shows: run folder, checkpoints, metrics, plots and summary."""
