"""pass@k and pass^k: the probabilities that at least one of k attempts at a task succeeds, and that all of them do."""

from __future__ import annotations

from math import comb


def pass_at_k(attempts: int, successes: int, k: int) -> float:
    """Return the unbiased estimate of pass@k for one task (Chen et al. 2021, arXiv 2107.03374, equation 1).

    It is the fraction of the k-subsets of the attempts that contain a success, in integers up to the final division.

    Raises:
        ValueError: Unless 0 <= successes <= attempts and 1 <= k <= attempts.
    """
    _check("@", attempts, successes, k)
    return (comb(attempts, k) - comb(attempts - successes, k)) / comb(attempts, k)


def pass_hat_k(attempts: int, successes: int, k: int) -> float:
    """Return the unbiased estimate of pass^k for one task (Yao et al. 2024, tau-bench, arXiv 2406.12045).

    It is the fraction of the k-subsets of the attempts that consist of successes only.

    Raises:
        ValueError: Unless 0 <= successes <= attempts and 1 <= k <= attempts.
    """
    _check("^", attempts, successes, k)
    return comb(successes, k) / comb(attempts, k)


def _check(kind: str, attempts: int, successes: int, k: int) -> None:
    if not (0 <= successes <= attempts and 1 <= k <= attempts):
        raise ValueError(f"pass{kind}{k} is not defined for {successes} successes in {attempts} attempts.")
