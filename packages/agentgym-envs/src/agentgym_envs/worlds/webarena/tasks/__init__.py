"""The task sets of WebArena, and the sites that they are done on."""
