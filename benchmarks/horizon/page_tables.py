"""The tables of the study's page: rows by arm."""

from __future__ import annotations

from collections.abc import Container, Sequence
from itertools import product

import numpy as np

from horizon.analysis import (
    Outcome,
    Record,
    by_seed,
    collapses,
    difference_text,
    final,
    final_of,
    lost_at,
    paired,
)
from horizon.design import CONTROLS, IN_AND_BEYOND, IN_BABYAI, IN_TEXTCRAFT, OTHERS, PLAIN, PRIMARY, ZERO_SUM
from horizon.figures import LENGTHS, by_arm

AGAINST = ("fixed 12", "step to 12")
"""Arms in TextCraft that the others are compared with."""
TEXTCRAFT_LENGTHS = tuple(f"{name} turns" for name in IN_AND_BEYOND)


def of_blocks(records: Sequence[Record], *names: str) -> list[Record]:
    """Return the records of these blocks."""
    return [record for record in records if record["block"] in names]


def tables(records: Sequence[Record], paper_like: Sequence[Record]) -> dict[str, list[dict[str, str]]]:
    """Return the rows of all tables by their names in the page."""
    in_textcraft = of_blocks(records, "TextCraft")
    return {
        "arms": _arms(paper_like, (*PRIMARY, *CONTROLS)),
        "strata": _strata(paper_like, (*PRIMARY, *CONTROLS)),
        "zero_sum": _zero_sum(paper_like),
        "stable": _arms(of_blocks(records, "stable"), PLAIN),
        "no_kl": _arms(of_blocks(records, "no KL"), PLAIN),
        "same_rule": _arms(of_blocks(records, "same rule"), ("fixed 6", "fixed 24", "step")),
        "babyai": _arms(of_blocks(records, "BabyAI"), IN_BABYAI),
        "babyai_strata": _strata(of_blocks(records, "BabyAI"), IN_BABYAI),
        "others": _arms(of_blocks(records, "other algorithms"), OTHERS),
        "textcraft": _arms(in_textcraft, tuple(IN_TEXTCRAFT), AGAINST, collapse=False),
        "textcraft_strata": _strata(in_textcraft, tuple(IN_TEXTCRAFT), AGAINST, TEXTCRAFT_LENGTHS),
        "textcraft_tasks": _by_task(in_textcraft),
    }


_NONE = [{"": "no finished runs"}]


def _arms(
    records: Sequence[Record],
    arms: Sequence[str],
    against: tuple[str, str] = ("fixed 24", "step"),
    *,
    collapse: bool = True,
) -> list[dict[str, str]]:
    """Return a row per arm, compared with two arms of the same algorithm; how many runs collapsed, if that can be."""
    rows = list[dict[str, str]]()
    for arm in arms:
        own = [record for record in records if record["arm"] == arm]
        if not own:
            continue
        values = [final(record) for record in own]
        spread = f" ± {np.std(values, ddof=1):.3f}" if len(own) > 1 else ""
        algorithm = f"{arm.partition(', ')[0]}, " if arm in OTHERS else ""
        first, second = (f"{algorithm}{name}" for name in against)
        collapsed = {
            "collapsed": f"{sum(collapses(own, arm).values())} of {len(own)}",
            "by lost success": str(sum(lost_at(record) is not None for record in own)),
            "by length": str(sum(record["length_update"] is not None for record in own)),
        }
        rows.append(
            {
                "arm": arm,
                "seeds": str(len(own)),
                "before": f"{np.mean([np.mean(record['before']) for record in own]):.3f}",
                "after, mean ± SD over seeds": f"{np.mean(values):.3f}{spread}",
                f"minus {against[0]}": "–" if arm == first else difference(records, first, arm, final),
                f"minus {against[1]}": "–" if arm == second else difference(records, second, arm, final),
                **(collapsed if collapse else {}),
                "mean token advantage": _mean(own, "advantage"),
                "trained groups per update": _mean(own, "groups_trained", ".1f"),
                "optimizer steps": f"{np.mean([sum(record['updates']['optimizer_steps']) for record in own]):.0f}",
                "turns": f"{np.mean([record['env_steps'] for record in own]):,.0f}",
                "tokens": f"{np.mean([record['tokens'] for record in own]):,.0f}",
                "seconds": f"{np.mean([record['seconds'] for record in own]):.0f}",
            }
        )
    return rows or _NONE


def _mean(records: Sequence[Record], name: str, form: str = "+.3f") -> str:
    values = [value for record in records for value in record["updates"][name] if value is not None]
    return f"{np.mean(values):{form}}" if values else "–"


def difference(records: Sequence[Record], first: str, second: str, outcome: Outcome) -> str:
    """Return in words how an outcome of the second arm differs from that of the first, paired by seed."""
    return difference_text(paired(by_seed(records, first, outcome), by_seed(records, second, outcome)))


def _strata(
    records: Sequence[Record],
    arms: Sequence[str],
    against: Sequence[str] = ("fixed 24",),
    strata: Sequence[str] = LENGTHS,
) -> list[dict[str, str]]:
    """Return a row per arm with success by stratum, before and after training, and minus other arms."""
    rows = list[dict[str, str]]()
    for arm in arms:
        if own := [record for record in records if record["arm"] == arm]:
            row = {"arm": arm, "seeds": str(len(own))}
            for number, name in enumerate(strata):
                before, after = (np.mean([record[at][number] for record in own]) for at in ("before", "test"))
                row[name] = f"{before:.3f} → {after:.3f}"
                for other in against:
                    less = "–" if arm == other else difference(records, other, arm, final_of(number))
                    row[f"{name.removesuffix(' turns')}, minus {other}"] = less
            rows.append(row)
    return rows or _NONE


def _by_task(records: Sequence[Record]) -> list[dict[str, str]]:
    """Return a row per arm: success less that of two others, paired by task, means over the seeds that have both."""
    rows = list[dict[str, str]]()
    for arm, own in by_arm(records, IN_TEXTCRAFT).items():
        row = {"arm": arm}
        for (name, turns), other in product(IN_AND_BEYOND.items(), AGAINST):
            seeds = {record["seed"] for record in records if record["arm"] == other} & {r["seed"] for r in own}
            means = [_task_means(records, each, seeds, turns) for each in (other, arm)]
            row[f"{name}, minus {other}"] = "–" if arm == other else difference_text(paired(*means))
        rows.append(row)
    return rows or _NONE


def _task_means(records: Sequence[Record], arm: str, seeds: Container[int], turns: Container[int]) -> dict[str, float]:
    """Return success by task, the mean over seeds, of the tasks that take the expert so many turns."""
    found: dict[str, list[float]] = {}
    for record in records:
        if record["arm"] == arm and record["seed"] in seeds:
            for task, (expected, success) in record["test_tasks"].items():
                if expected in turns:
                    found.setdefault(task, []).append(success)
    return {task: float(np.mean(values)) for task, values in found.items()}


def _zero_sum(records: Sequence[Record]) -> list[dict[str, str]]:
    """Return a row per horizon and treatment: each zero-sum treatment minus the plain advantages."""
    rows = list[dict[str, str]]()
    for name, turns in product(ZERO_SUM, (6, 12, 24)):
        plain, treated = f"fixed {turns}", f"fixed {turns}, {name}"
        if found := paired(by_seed(records, plain, final), by_seed(records, treated, final)):
            events = [collapses(records, arm) for arm in (plain, treated)]
            rows.append(
                {
                    "advantages": name,
                    "horizon": str(turns),
                    "seeds": str(len(found.gains)),
                    "success minus plain": difference_text(found),
                    "p": "–" if np.isnan(found.t.p) else f"{found.t.p:.4f}",
                    "collapsed, plain and treated": " and ".join(f"{sum(e.values())} of {len(e)}" for e in events),
                }
            )
    return rows or _NONE
