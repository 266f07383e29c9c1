"""What the viewer knows of runs and episodes on disk, and queries over it."""
