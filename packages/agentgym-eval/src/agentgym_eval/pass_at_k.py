"""pass@k: the chance that at least one of k attempts at a task succeeds. Plain arithmetic on two counts."""

from __future__ import annotations

from math import comb


def pass_at_k(attempts: int, successes: int, k: int) -> float:
    """The unbiased estimate of pass@k for one task (Chen et al. 2021, arXiv 2107.03374, equation 1).

    It is the share of the k-subsets of the attempts that hold a success, exactly: integers until the one division.

    Raises:
        ValueError: unless 0 <= successes <= attempts and 1 <= k <= attempts.
    """
    if not (0 <= successes <= attempts and 1 <= k <= attempts):
        raise ValueError(f"pass@{k} is not defined for {successes} successes in {attempts} attempts.")
    return 1.0 - comb(attempts - successes, k) / comb(attempts, k)
