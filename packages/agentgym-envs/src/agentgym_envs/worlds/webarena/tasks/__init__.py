"""WebArena's task sets and the sites that the tasks use."""
