"""Compaction against none in SciWorld, in a context of a quarter of an episode, by models from scratch.

    uv run python benchmarks/context.py --seeds 0
    uv run python benchmarks/context.py --report docs/results --seeds 0

A model from scratch imitates the expert on tasks with two inclined planes, whose letters are permuted in copies of the
expert's episodes, so that it learns to copy them. A quarter context has a quarter of the tokens that nine in ten whole
episodes of the expert on training tasks stay within. The arms differ in their context and agent alone: the expert's
episodes are played by the arm's agent, and cut to its context. Seeds share the data and the tokenizer, and the arms of
a seed the random weights. A batch has the contexts of about four episodes in all arms. Test tasks are played at a
temperature of 0.5.

The primary outcome, fixed before any test task was played: success on test tasks of compaction minus none, both in the
quarter context, paired by task, over the episodes of all seeds. Secondary: success in the full context, which was meant
as the upper reference, and the share of none's episodes that end because the context is full. Tasks, copies and
temperature were chosen anew after a first version's full context had no success in 84 test episodes, and the full
context that is trained twice was added after the full context of this version had none; by then neither of the two
compared arms had played a test task.

The first command finishes what isn't recorded in --out, the second writes a page and JSON from it.
"""

from __future__ import annotations

from functools import partial

from context_page import report
from context_runs import ARMS, Study, finish, prepare
from harness import run_parallel, study_arguments


def main() -> None:
    """Finish all runs, or report them."""
    settings, command = study_arguments(__doc__)
    study = Study(settings.out, tuple(settings.seeds), settings.quick)
    if settings.report is not None:
        report(study, settings.report, command)
        return
    run_parallel([partial(prepare, study)], 1)
    for again in (False, True):
        arms = [arm for arm in ARMS if arm.again == again]
        run_parallel([partial(finish, study, arm, seed) for seed in study.seeds for arm in arms], settings.processes)


if __name__ == "__main__":
    main()
