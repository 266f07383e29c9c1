"""What each training step plays: horizon schedules, task samplers and their state."""
