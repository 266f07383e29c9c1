"""What a run writes to disk: episodes, replies, provenance, and the lock on its folder."""
