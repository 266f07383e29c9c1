"""Gazetteer, an encyclopedia of the region: its towns, rivers, people, firms, buildings and customs."""
