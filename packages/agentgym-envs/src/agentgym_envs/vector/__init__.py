"""Text environments as a Gymnasium `VectorEnv`."""
