"""The page and the figures of the study, from its records."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from harness import markdown, show, write_report

from horizon.analysis import Record, Verdicts, final_of, verdicts
from horizon.design import BABYAI_PILOT, BLOCKS, ENVIRONMENTS, IN_TEXTCRAFT, LOOKS, PILOT, PILOTS, Pilot
from horizon.figures import by_arm, draw_curves, draw_final, draw_mechanism
from horizon.page_tables import TEXTCRAFT_LENGTHS, difference, of_blocks, tables

NAME = "horizon"


def report(records: Sequence[Record], folder: Path) -> None:
    """Write the page and its figures to a folder.

    Raises:
        SystemExit: If there is no record but those of pilot runs.
    """
    main = [record for record in records if record["block"] not in PILOTS]
    if not main:
        raise SystemExit("There are no records of other than pilot runs; run the script without --report first.")
    found = verdicts(main)
    paper_like = of_blocks(main, "primary", "controls")
    texts = {name: markdown(rows) for name, rows in tables(main, paper_like).items()}
    if found:
        show("Primary outcomes", _hypotheses(found))
    draw_curves(paper_like, folder / f"{NAME}-curves.png")
    draw_final(by_arm(paper_like), folder / f"{NAME}-final.png")
    others = {
        f"{block}, {arm}": own
        for block in ("stable", "no KL", "same rule", "other algorithms", "BabyAI")
        for arm, own in by_arm(of_blocks(main, block)).items()
    }
    if others:
        draw_final(others, folder / f"{NAME}-others.png")
    if in_textcraft := by_arm(of_blocks(main, "TextCraft"), IN_TEXTCRAFT):
        draw_final(in_textcraft, folder / f"{NAME}-textcraft.png", TEXTCRAFT_LENGTHS)
    draw_mechanism(paper_like, folder / f"{NAME}-mechanism.png")
    page = _PAGE.format(
        status=_status(main, found),
        hypotheses=markdown(_hypotheses(found)) if found else "No seed has all primary arms yet.",
        lrs=_lrs_text(PILOT, records),
        babyai_plateau=difference(of_blocks(records, "BabyAI"), "fixed 6", "step", final_of(1, 2)),
        babyai_lrs=_lrs_text(BABYAI_PILOT, records),
        figure_of_others=_FIGURE_OF_OTHERS if others else "",
        figure_of_textcraft=_FIGURE_OF_TEXTCRAFT if in_textcraft else "",
        commits=", ".join(sorted({record["commit"] for record in main})),
        **texts,
    )
    write_report(folder, NAME, page)


# Text.


def _status(records: Sequence[Record], found: Verdicts | None) -> str:
    """Return a paragraph on which runs there are, and what they can decide."""
    planned = sum(len(block.arms) * len(block.seeds) for block in BLOCKS)
    done = f"{len(records)} of {planned} planned runs are finished."
    mixed = _mixed_starts(records)
    note = f" Seeds with warm starts of several machines, which may differ in rounding: {mixed}." if mixed else ""
    if found is None:
        return f"{done} No seed has all primary arms, so nothing can be compared as registered.{note}"
    seeds = f"{len(found.seeds)} seeds with all primary arms"
    if found.level is None:
        few = f"Seeds with all primary arms: {len(found.seeds)}, fewer than the {len(LOOKS[0])} of the first look"
        return f"{done} {few}. **Nothing is decided**, and the table shows estimates only.{note}"
    return f"{done} The findings are over {seeds}, at the level {found.level:.4f} of this look.{note}"


def _mixed_starts(records: Sequence[Record]) -> str:
    starts = dict[tuple[str, int], set[str]]()
    for record in records:
        environment = record["block"] if record["block"] in ENVIRONMENTS else "corridor"
        starts.setdefault((environment, record["seed"]), set()).add(record["start"])
    return ", ".join(str(seed) for (_, seed), digests in sorted(starts.items()) if len(digests) > 1)


def _hypotheses(found: Verdicts) -> list[dict[str, str]]:
    return [
        {
            "hypothesis": each.name,
            "estimate": each.estimate,
            "p": _p_value(each.p),
            "p (Holm)": _p_value(each.adjusted),
            "finding": found.decision(each),
        }
        for each in found.findings
    ]


def _p_value(p: float) -> str:
    return "–" if np.isnan(p) else "<0.0001" if p < 1e-4 else f"{p:.4f}"


def _lrs_text(pilot: Pilot, records: Sequence[Record]) -> str:
    lrs = pilot.chosen(records)
    return ", ".join(f"{lr:g} for {arm}" for arm, lr in lrs.items()) if lrs else "not in the records"


_FIGURE_OF_OTHERS = "![Success on test tasks after training in other regimes and environments](horizon-others.png)\n\n"
_FIGURE_OF_TEXTCRAFT = "![Success of SmolLM2 on test tasks after training](horizon-textcraft.png)\n\n"
_PAGE = """# What a growing horizon does

```sh
uv run python benchmarks/horizon/run.py --processes 1
uv run python benchmarks/horizon/run.py --report docs/results
```

{status}

## Question and design

Does a growing horizon prevent collapse or improve the result, compared with fixed horizons, and is the length bias of
the token mean the cause of what long horizons do? Hypotheses, arms, tests and their levels were [registered before the
runs](horizon-plan.md). In short: a model of about 60,000 parameters walks along corridors of 2 to 24 rooms, from the
same warm start for all arms of a seed. All arms have the same number of updates, of about 768 turns each, and of
optimizer steps per pass; an update without a group to learn from has none. What that comes to is in
the tables. Commits of the runs: {commits}; a plus says that the checkout had changes, such as the records of earlier
runs. Learning rates chosen by the pilot runs: {lrs}.

## Primary outcomes

{hypotheses}

Differences are in success, the mean over three strata of task length, and paired by seed, with 95% t-intervals and,
beside them, BCa bootstrap intervals over seeds.

### What the first look says (seeds 1 to 12)

- **Too short a horizon costs what lies beyond it.** At 6 turns success on tasks of 7 to 12 turns rises by 0.12, at 12
  turns by 0.31; on tasks of 13 to 24 turns it rises by 0.03, at 24 turns by 0.11. More groups to train on don't make up
  for that. No difference between fixed 12 and fixed 24 is detected; on tasks of 13 to 24 turns, where fixed 24 gains
  0.11, it is -0.018 (-0.043 to +0.008). Their learning rates differ. The rate isn't why step is ahead of fixed 6: at
  the rate of fixed 6, which is that of fixed 24, step is ahead by 0.152 (0.117 to 0.186).
- **Beyond that, no difference is detected.** Fixed 12, fixed 24 and the growing horizon end within 0.012 of each other,
  with the longest tasks near the floor (0.12 to 0.15), and the growing one is equivalent to fixed 24 within 0.05, with
  an interval of ±0.02. It got there with a learning rate four times as high, and was behind until its last stage.
  Whether it saves time is uncertain. Its seconds are 0.79 of fixed 24's (the mean over seeds of the ratio, which is
  0.66 to 0.85) with 2% fewer tokens; but those of three other arms that do the work of fixed 24 are 0.93 to 0.97 of it
  (single seeds: 0.45 to 1.53), and the machine was shared.
- **No run of these arms collapsed**, so that this regime says nothing for or against H2.
- **The length bias is there, and no cost of it shows.** Plain advantages have a weighted mean of -0.06 at 6 and 12
  turns and -0.12 at 24, and zero-sum ones about 0. At 24 turns, length-weighted baselines gain 0.004 (-0.008 to +0.017)
  and batch normalisation 0.010 (-0.003 to +0.023), with the same entropy. In BabyAI, batch normalisation was
  [ahead](length-bias.md).
- **Other orders of the same stages end lower at the learning rate of step** (this and the next three points are
  secondary results, without a registered test). From long to short, success ends 0.080 (0.030 to 0.130) below step, and
  in random order 0.058 (0.026 to 0.089); by Holm's method over the seven controls, p is 0.027 and 0.015, and 0.023 and
  0.076 in comparison with fixed 24. Step does as well at a quarter of that rate; whether they would, too, wasn't
  measured. The last 20 updates of *reverse* are at 6 turns, and it ends near fixed 6 (0.604 and 0.585), so the order
  can't be told from the last horizon. Intervals of the seven controls are for one comparison each.
- **No difference of the adaptive horizon is detected**: -0.023 (-0.074 to +0.028) to fixed 24, with the largest spread
  of all arms. Seed 8 ends below its warm start (0.414, from 0.552; 0.234, from 0.641, on tasks of 7 to 12 turns), which
  isn't a collapse by the plan's definition. Seed 9 never reaches 24 turns.
- **Whether backward episodes help is open.** They end 0.057 (0.008 to 0.105) above fixed 24 on tasks of 13 to 24 turns
  (p 0.025 unadjusted, 0.40 by Holm's method over seven controls and three lengths), and over all tasks 0.015 (-0.019 to
  +0.048), with 1.7 times as many tokens and four times the learning rate. Four of the twelve runs have collapsed by the
  plan's definition, all by an update in which more than half of the episodes ended at the token budget, and none by
  lost success.
- **A discount makes more groups train.** With returns discounted by 0.95 per turn, successes of different lengths have
  different returns: 5.0 groups per update train instead of 1.5, with 22% more optimizer steps. That success is 0.013
  (0.003 to 0.023) higher is a hint, and no finding: p is 0.019 unadjusted, and 0.093 by Holm's method over the seven
  controls. On tasks of 13 to 24 turns it is 0.027 (0.011 to 0.044) higher, and on those of up to 6 turns 0.004 (0.001
  to 0.007) lower. Leaving out truncated episodes changes nothing that is detected: +0.000 (-0.013 to +0.014).

## All arms in the regime paper-like

{arms}

![Success on dev tasks over updates, all seeds](horizon-curves.png)

Thin lines are seeds, thick lines their means. Evaluations have at most 24 turns whatever the horizon in training.
Seconds are those of a shared machine, without the test at the end; some runs of the controls were paused for minutes,
which they include. An episode of a corridor is without success only if
it was cut, so that *fixed 24, masked* learns from successes alone.

### By length of the task

{strata}

![Success on test tasks after training, all seeds](horizon-final.png)

### Zero-sum advantages

{zero_sum}

![Mean token advantage, entropy, length stops and collapse](horizon-mechanism.png)

The mean token advantage is weighted as in the loss: below 0, an update makes the sampled tokens less likely on average.
It is a mean over the optimizer steps of an update, so that zero-sum advantages, whose sum over the whole update is 0,
are close to it.
A run has collapsed if its success on dev tasks is below 60% of its running maximum in three evaluations in a row, or if
more than half of the episodes of an update end at the token budget; the right panel is the Kaplan-Meier estimate for
all arms of the table.

## Other regimes and worlds

Stable: KL weight 0.05 and one pass over each batch.

{stable}

As in the regime paper-like, fixed 6 ends lowest, 0.058 (0.038 to 0.079) below step, and no difference of step to fixed
24 is detected. Fixed 12 ends 0.026 (0.007 to 0.046) above fixed 24, in one of the six comparisons of these four arms,
and was 0.010 below it in the regime paper-like. No run collapsed. Fixed 24 and step end 0.029 (0.008 to 0.050) and
0.021 (0.006 to 0.036) lower than there, with half as many optimizer steps; but the warm starts of all seeds were made
once more on another machine, so that these two differences are also those of starts.

No KL: no KL penalty, and twice the learning rate.

{no_kl}

Paper-like, with signs that mean the same in all rooms:

{same_rule}

Paper-like, with PPO and REINFORCE++, each compared with its own fixed 24 and step:

{others}

## BabyAI

Levels that take the expert 1 to 23 turns, and a model of 0.33 million parameters, in the regime paper-like. Learning
rates chosen by pilot runs: {babyai_lrs}.

{babyai}

{babyai_strata}

Step minus fixed 6 on tasks of more than 6 turns: {babyai_plateau}.

{figure_of_others}## SmolLM2 in TextCraft

A pretrained model, SmolLM2-135M-Instruct, and goals of crafting depth 2 and 3, which take the expert 3 to 11 turns. It
imitates 320 episodes of the expert and has a round of DAgger; then all arms have 36 updates of about 384 turns each,
by the settings of the recipe `smollm2-textcraft`: LoRA, batch-normalised advantages, no KL penalty and one pass. The
learning rate is that of the recipe, 6e-4, which was chosen with a growing horizon and more episodes per update than
fixed 12 has; so fixed 12 has runs at half of it, too.

{textcraft}

{textcraft_strata}

Over the test tasks, of the means over seeds: these intervals are narrower, but take the trained models as given. 4
episodes of each task and seed:

{textcraft_tasks}

{figure_of_textcraft}The comparisons of the last three sections, and all outside of the table of primary outcomes, are
not adjusted for their number and decide nothing.

## Limits

Simple environments and small models: a difference here shows that an effect can exist, and its absence doesn't show
that there is none in others. No arm solves many tasks of 13 to 24 turns, where a difference has little room. Only
rewards at the end of an episode, and actions of two tokens. Groups with equal rewards are dropped, and an update
without any other teaches nothing. Collapse by lost success can hardly happen: the short tasks alone, which all arms
solve, are a third of success. H2 can only be decided if nearly all seeds differ. Each arm has its own learning rate,
chosen by few pilot episodes, and some rates are the lowest that were tried: *step, rate of fixed 24* tells what the
rate does. The best fixed horizon of H3 is chosen among the same models that are compared, which favors it a little. The
warm start knows the format of replies. A few test tasks of 2 and 3 turns have the same signs as tasks of the training
split. Of the defects of earlier implementations (H4), none is tested; the plan says why.
"""
