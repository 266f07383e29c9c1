"""SearchQA: answer questions by searching passages, as in Search-R1 (Jin et al. 2025, arXiv 2503.09516)."""
