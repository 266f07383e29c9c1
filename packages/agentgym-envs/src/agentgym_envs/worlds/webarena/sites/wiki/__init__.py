"""Gazetteer, an encyclopaedia of the region: its towns, rivers, people, firms, buildings and customs."""
