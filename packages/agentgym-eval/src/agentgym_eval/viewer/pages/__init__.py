"""Rendering of the viewer's pages from indexed data to HTML."""
