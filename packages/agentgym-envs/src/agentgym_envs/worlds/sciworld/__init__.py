"""ScienceWorld (Wang et al. 2022, arXiv 2203.07540): elementary science in a house of ten places, played in text."""
