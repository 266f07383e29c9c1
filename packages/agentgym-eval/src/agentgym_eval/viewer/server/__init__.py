"""The viewer as a live site and as exported files."""
