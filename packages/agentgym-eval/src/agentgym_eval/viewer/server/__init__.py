"""The live site and the static export."""
