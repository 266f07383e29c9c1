"""ScienceWorld (Wang et al. 2022, arXiv 2203.07540): a text environment of elementary science in ten locations."""
