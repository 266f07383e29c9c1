"""A page as an observation: accessibility tree, geometry and text."""
