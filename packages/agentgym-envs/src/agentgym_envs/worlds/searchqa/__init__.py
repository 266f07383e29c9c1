"""SearchQA: answer questions by searching in passages, after Search-R1 (Jin et al. 2025, arXiv 2503.09516)."""
