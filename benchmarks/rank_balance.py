"""Compare ways to divide the episodes of an optimizer step over processes, by the tokens of the one with the most.

    uv run python benchmarks/rank_balance.py --repeats 20 --out rank_balance.json

Lengths of episodes are log-normal, within a group less than between groups, and at most 8,704 tokens; the episodes of a
group share a prompt, which is computed once per process and 16,384 tokens. Groups are either dealt to processes in turn
or divided when their lengths are known: as whole groups, as single episodes, or as parts of groups with at most as many
tokens as the mean process; each longest first (LPT) and with Karmarkar and Karp's largest differencing (KK).
`agentgym_trainer.learner.balance` divides parts with KK. Numbers are the tokens of the process with the most, relative
to the mean if all prompts that fit are shared.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from agentgym_trainer.learner.balance import largest_differencing
from harness import arguments, show, write_json

MICRO_TOKENS, LONGEST, GROUP = 16_384, 8_704, 8
SETUPS = ((2, 32, 1), (8, 32, 1), (8, 32, 4), (8, 64, 4), (16, 64, 1), (32, 64, 1), (64, 128, 4))
"""Processes, groups of the step, and mini-batches."""
PROMPTS = (300, 1000)
"""Tokens of a group's prompt."""
Part = tuple[int, list[int]]
"""A group and the lengths of some of its episodes."""


def longest_first(sizes: Sequence[int], bins: int) -> list[int]:
    """Assign items to bins: the largest item first, each to the bin with the lowest sum so far (Graham 1969)."""
    sums, assigned = [0] * bins, [0] * len(sizes)
    for item in sorted(range(len(sizes)), key=lambda i: -sizes[i]):
        assigned[item] = min(range(bins), key=sums.__getitem__)
        sums[assigned[item]] += sizes[item]
    return assigned


def divide(part: Part, prompt: int, most: float) -> list[Part]:
    """Divide a part into parts of at most `most` tokens, where one episode may have more."""
    group, parts = part[0], list[Part]()
    for length in part[1]:
        if parts and tokens([*parts[-1][1], length], prompt) <= most and length - prompt <= 0.9 * length:
            parts[-1][1].append(length)
        else:
            parts.append((group, [length]))
    return parts


def tokens(lengths: Sequence[int], prompt: int) -> int:
    """Return the number of tokens of a part, with those of the prompt counted once."""
    return sum(lengths) - prompt * (len(lengths) - 1)


def most_tokens(parts: Sequence[Part], assigned: Sequence[int], processes: int, prompt: int) -> int:
    """Return the tokens of the process with the most, which joins the parts of a group again."""
    held: list[dict[int, list[int]]] = [{} for _ in range(processes)]
    for (group, lengths), target in zip(parts, assigned, strict=True):
        held[target].setdefault(group, []).extend(lengths)
    return max(
        sum(tokens(lengths, prompt) for item in groups.items() for _, lengths in divide(item, prompt, MICRO_TOKENS))
        for groups in held
    )


def measure_step(groups: list[Part], processes: int, prompt: int) -> dict[str, float]:
    """Return the imbalance of one optimizer step for each way to divide it."""
    shared = [part for group in groups for part in divide(group, prompt, MICRO_TOKENS)]
    mean = sum(tokens(lengths, prompt) for _, lengths in shared) / processes
    ways: dict[str, list[Part]] = {
        "groups": groups,
        "episodes": [(group, [length]) for group, lengths in groups for length in lengths],
        "parts": [part for group in groups for part in divide(group, prompt, min(MICRO_TOKENS, mean))],
    }
    found = {"dealt": most_tokens(groups, [group % processes for group, _ in groups], processes, prompt) / mean}
    methods: dict[str, Callable[[Sequence[int], int], list[int]]] = {"LPT": longest_first, "KK": largest_differencing}
    for way, parts in ways.items():
        sizes = [tokens(lengths, prompt) for _, lengths in parts]
        for name, method in methods.items():
            found[f"{way}, {name}"] = most_tokens(parts, method(sizes, processes), processes, prompt) / mean
    return found


def measure(processes: int, groups: int, minibatches: int, prompt: int, repeats: int) -> dict[str, float]:
    """Return the mean imbalance over the optimizer steps of some random batches."""
    rng, found = np.random.default_rng(0), list[dict[str, float]]()
    for _ in range(repeats):
        means = rng.lognormal(np.log(2500), 0.6, (groups, 1))
        lengths = np.clip(means * rng.lognormal(0, 0.4, (groups, GROUP)), prompt + 100, LONGEST).astype(int)
        order = rng.permuted(np.arange(groups * GROUP).reshape(-1, minibatches) % minibatches, axis=1)
        for part in range(minibatches):
            chosen = order.reshape(groups, GROUP) == part
            step = [(g, lengths[g][chosen[g]].tolist()) for g in range(groups) if chosen[g].any()]
            found.append(measure_step(step, processes, prompt))
    return {name: float(np.mean([each[name] for each in found])) for name in found[0]}


def main() -> None:
    """Measure and write JSON."""
    parser = arguments(__doc__, "out", "repeats", "quick", out=Path("runs/rank_balance.json"), repeats=20)
    settings = parser.parse_args()
    record: list[dict[str, Any]] = []
    for prompt in PROMPTS:
        for processes, groups, minibatches in SETUPS[:2] if settings.quick else SETUPS:
            setup = {"processes": processes, "groups": groups, "minibatches": minibatches, "prompt": prompt}
            record.append(setup | measure(processes, groups, minibatches, prompt, settings.repeats))
    write_json(settings.out, record)
    rows = [{name: f"{v:.3f}" if isinstance(v, float) else str(v) for name, v in row.items()} for row in record]
    show("Tokens of the process with the most, relative to the mean", rows)


if __name__ == "__main__":
    main()
