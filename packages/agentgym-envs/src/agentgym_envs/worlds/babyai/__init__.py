"""BabyAI (Chevalier-Boisvert et al. 2018, arXiv 1810.08272) as a text world: Minigrid's levels, told in sentences."""
