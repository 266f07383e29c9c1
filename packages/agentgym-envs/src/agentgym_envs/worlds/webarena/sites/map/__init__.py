"""Wayfinder, a map of the region: places with their details, search, directions by car, bicycle and on foot."""
