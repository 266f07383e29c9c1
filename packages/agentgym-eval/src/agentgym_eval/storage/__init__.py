"""Run folders on disk: episodes, replies, provenance and the folder lock."""
