"""Figures of the study."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from outcomes import picture

from horizon.analysis import Record, by_seed, collapsed_at, final, final_of, kaplan_meier
from horizon.corridor import STRATA
from horizon.design import ARMS, CONTROLS, EVERY, PLAIN, PRIMARY, UPDATES

LENGTHS = tuple(f"{name} turns" for name in STRATA)


def draw_curves(records: Sequence[Record], file: Path) -> None:
    """Draw success on dev tasks over updates: a panel per arm, each seed, and the mean."""
    arms = [arm for arm in (*PRIMARY, *CONTROLS) if by_seed(records, arm, final)]
    columns = min(4, len(arms))
    rows = -(-len(arms) // columns)
    size: Any = (3.2 * columns, 2.4 * rows)
    with picture(file, rows, columns, figsize=size, sharex=True, sharey=True, squeeze=False) as axes:
        for axis, arm in zip(axes.flat, arms, strict=False):
            own = [record for record in records if record["arm"] == arm]
            steps = [point["step"] for point in own[0]["curve"]]
            curves = np.array([[np.mean(point["success"]) for point in record["curve"]] for record in own])
            axis.plot(steps, curves.T, color="tab:blue", alpha=0.35, linewidth=0.8)
            axis.plot(steps, curves.mean(0), color="tab:blue", linewidth=2)
            axis.set_title(f"{arm} ({len(own)} seed{'s' * (len(own) > 1)})", fontsize=9)
        for axis in axes.flat[len(arms) :]:
            axis.set_visible(False)
        axes[0, 0].set_ylim(0, 1)
        axes[-1, 0].set_xlabel("updates")
        axes[0, 0].set_ylabel("success on dev tasks")


def by_arm(records: Sequence[Record], arms: Iterable[str] = ARMS) -> dict[str, list[Record]]:
    """Return the records of each arm that has any."""
    found = {arm: [record for record in records if record["arm"] == arm] for arm in arms}
    return {arm: own for arm, own in found.items() if own}


def draw_final(rows: Mapping[str, Sequence[Record]], file: Path, strata: Sequence[str] = LENGTHS) -> None:
    """Draw success on test tasks after training by stratum: a row for each arm, a dot per seed, and the mean."""
    size: Any = (11, 0.35 * len(rows) + 1.5)
    with picture(file, 1, len(strata), figsize=size, sharey=True) as axes:
        for number, (axis, name) in enumerate(zip(axes, strata, strict=True)):
            for row, records in enumerate(rows.values()):
                values = [final_of(number)(record) for record in records]
                axis.plot(values, [row] * len(values), "o", color="tab:blue", alpha=0.4, markersize=4)
                axis.plot(np.mean(values), row, "|", color="black", markersize=12)
            axis.set_title(f"tasks of {name}")
            axis.set_xlim(-0.02, 1.02)
            axis.set_xlabel("success after training")
        axes[0].set_yticks(range(len(rows)), [*rows])
        axes[0].invert_yaxis()


def draw_mechanism(records: Sequence[Record], file: Path) -> None:
    """Draw the mean token advantage, entropy and `length` stops over updates, each seed and the mean; and of all arms
    the share without a collapse, as one line for those that have none.
    """
    arms = [
        arm
        for arm in (*PLAIN, "fixed 24, length-weighted", "fixed 24, batch-normalised")
        if by_seed(records, arm, final)
    ]
    names = {"advantage": "mean token advantage", "entropy": "entropy in nats", "length": "share of length stops"}
    with picture(file, 1, 4, figsize=(15, 3.6)) as axes:
        for axis, (name, title) in zip(axes, names.items(), strict=False):
            for arm in arms:
                own = [record for record in records if record["arm"] == arm]
                values = np.array([record["updates"][name] for record in own], dtype=np.float64)
                # Means of five updates, over those that have the metric.
                known = np.ma.masked_invalid(values).reshape(len(own), -1, EVERY).mean(2)
                updates = EVERY * np.arange(1, known.shape[1] + 1)
                (line,) = axis.plot(updates, known.mean(0), linewidth=2, label=arm)
                axis.plot(updates, known.T, color=line.get_color(), alpha=0.15, linewidth=0.6)
            axis.set_title(title)
            axis.set_xlabel("updates")
        axes[0].legend(fontsize=7)
        times = {arm: [collapsed_at(record) for record in own] for arm, own in by_arm(records).items()}
        stable = [arm for arm, own in times.items() if not any(own)]
        axes[3].plot([0, UPDATES], [1.0, 1.0], color="black", label=f"{len(stable)} other arms")
        for n, arm in enumerate(arm for arm in times if arm not in stable):
            style: Any = {"color": f"C{len(arms) + n}", "linestyle": ("-", "--", ":")[n % 3], "label": arm}
            at, share = kaplan_meier(times[arm], UPDATES)
            axes[3].step([0, *at, UPDATES], [1.0, *share, share[-1]], where="post", **style)
        axes[3].set_ylim(0, 1.02)
        axes[3].set_title("share of runs not collapsed")
        axes[3].set_xlabel("updates")
        axes[3].legend(fontsize=7)
