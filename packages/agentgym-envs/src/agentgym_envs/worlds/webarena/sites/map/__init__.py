"""Wayfinder, a map of the region: places with details, search, directions by car, by bicycle and on foot."""
