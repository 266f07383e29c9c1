"""pass@k and pass^k: the chance that one of k attempts at a task succeeds, or that all do. Arithmetic on counts."""

from __future__ import annotations

from math import comb


def pass_at_k(attempts: int, successes: int, k: int) -> float:
    """The unbiased estimate of pass@k for one task (Chen et al. 2021, arXiv 2107.03374, equation 1).

    It is the share of the k-subsets of the attempts that hold a success, exactly: integers until the one division.

    Raises:
        ValueError: unless 0 <= successes <= attempts and 1 <= k <= attempts.
    """
    _check("@", attempts, successes, k)
    return (comb(attempts, k) - comb(attempts - successes, k)) / comb(attempts, k)


def pass_hat_k(attempts: int, successes: int, k: int) -> float:
    """The unbiased estimate of pass^k for one task (Yao et al. 2024, tau-bench, arXiv 2406.12045).

    It is the share of the k-subsets of the attempts that are successes throughout.

    Raises:
        ValueError: unless 0 <= successes <= attempts and 1 <= k <= attempts.
    """
    _check("^", attempts, successes, k)
    return comb(successes, k) / comb(attempts, k)


def _check(kind: str, attempts: int, successes: int, k: int) -> None:
    if not (0 <= successes <= attempts and 1 <= k <= attempts):
        raise ValueError(f"pass{kind}{k} is not defined for {successes} successes in {attempts} attempts.")
