"""WebArena (Zhou et al. 2023, arXiv 2307.13854): tasks on web sites in a real browser."""
