"""BabyAI (Chevalier-Boisvert et al. 2018, arXiv 1810.08272) as a text environment over Minigrid's levels."""
