"""The viewer's pages, from indexed data to HTML."""
