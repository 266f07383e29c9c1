"""Observations of a page: accessibility tree, geometry and text."""
