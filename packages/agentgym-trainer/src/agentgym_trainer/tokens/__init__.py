"""Convert text to token ids and back: chat templates, trajectories and batches."""
