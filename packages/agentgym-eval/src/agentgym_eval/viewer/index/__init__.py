"""The index of runs and episodes on disk, and the queries over it."""
