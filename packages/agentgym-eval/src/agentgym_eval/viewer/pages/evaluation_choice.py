"""The choice of the evaluation by which training runs are compared."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from itertools import groupby

from agentgym_envs.core.tasks import SPLITS

from agentgym_eval.util.errors import UsageError
from agentgym_eval.viewer.index.metrics import last_of
from agentgym_eval.viewer.index.runs import EpisodeFile, Run
from agentgym_eval.viewer.pages.site import Site

STEPS = ("last", "first", "best")
"""The steps that aren't numbers."""
DECODINGS = ("sampled", "greedy")
_LISTED = 6
"""The most steps of a run that a sentence lists."""


@dataclass(frozen=True, slots=True)
class EvaluationChoice:
    """Which evaluation of each training run is compared, as in the URL."""

    split: str = ""
    """Empty prefers test tasks; for the best evaluation others, because the best one isn't selected by test results."""
    decoding: str = ""
    """Empty prefers sampled replies."""
    step: str = "last"
    """One of `STEPS`, or a number of training steps."""

    @classmethod
    def parse(cls, query: Mapping[str, str]) -> EvaluationChoice:
        """Parse a URL query. Raises `UsageError` for invalid values."""
        values = {name: query[name] for name in EVALUATION_FIELDS if query.get(name)}
        for name, allowed in (("split", SPLITS), ("decoding", DECODINGS)):
            if name in values and values[name] not in allowed:
                raise UsageError(f"{name} must be one of {', '.join(allowed)}, not {values[name][:50]}.")
        step = values.get("step", "last")
        if step not in STEPS and not (step.isascii() and step.isdecimal() and len(step) < 10):
            raise UsageError(f"step must be a number of training steps or one of {', '.join(STEPS)}, not {step[:50]}.")
        return cls(**values | ({"step": step if step in STEPS else str(int(step))}))

    @classmethod
    def shared(cls, files: Iterable[EpisodeFile]) -> EvaluationChoice:
        """Return the choice of what evaluations have in common; ignores other files."""
        found = [file for file in files if file.part == "evaluation"]
        splits, decodings = {file.split for file in found}, {file.decoding for file in found}
        steps = {str(file.step) for file in found}
        return cls(
            splits.pop() if len(splits) == 1 and splits <= {*SPLITS} else "",
            decodings.pop() if len(decodings) == 1 and decodings <= {*DECODINGS} else "",
            steps.pop() if len(steps) == 1 and steps != {"None"} else "last",
        )

    def values(self) -> dict[str, str]:
        """Return the values that differ from the default, for a link."""
        default = EvaluationChoice()
        values = {name: getattr(self, name) for name in EVALUATION_FIELDS}
        return {name: value for name, value in values.items() if value != getattr(default, name)}

    @property
    def description(self) -> str:
        """What is chosen, such as `first greedy evaluation on dev tasks`."""
        return f"{self.step} {self.kind}" if self.step in STEPS else self.kind

    @property
    def kind(self) -> str:
        """The evaluations of which the last, first or best one is chosen; otherwise as `description`."""
        parts = [self.decoding, "evaluation", self.split and f"on {self.split} tasks"]
        return " ".join(filter(None, [*parts, "" if self.step in STEPS else f"at step {self.step}"]))

    def find(self, site: Site, run: Run) -> EpisodeFile | None:
        """Return the chosen evaluation of a training run; None if it doesn't have it (yet)."""
        metrics = [each for each in site.index.file_metrics() if each.run == run.slug and each.episodes]
        success = {each.file: each.selection_success or 0.0 for each in metrics}
        files = [file for file in evaluations(run) if file.slug in success and self._matches(file)]
        if self.step == "best":
            return min(files, key=lambda file: (*_preferred(file), -success[file.slug], file.step or 0), default=None)
        if self.step == "first":
            return min(files, key=_earliness, default=None)
        return last_of(files)

    def _matches(self, file: EpisodeFile) -> bool:
        at_step = self.step in STEPS or str(file.step) == self.step
        return at_step and self.split in ("", file.split) and self.decoding in ("", file.decoding)


EVALUATION_FIELDS = tuple(field.name for field in fields(EvaluationChoice))


@dataclass(frozen=True, slots=True)
class Offer:
    """The evaluations to choose from."""

    splits: Sequence[str]
    decodings: Sequence[str]
    steps: Sequence[str]

    @classmethod
    def of(cls, runs: Iterable[Run], chosen: EvaluationChoice) -> Offer | None:
        """Return what the training runs among `runs` have, and what is chosen; None if there is nothing to choose."""
        files = [file for run in runs for file in evaluations(run)]
        if not files and chosen == EvaluationChoice():
            return None
        found_splits, found_decodings = {file.split for file in files}, {file.decoding for file in files}
        steps = {file.step for file in files if file.step is not None}
        steps |= set() if chosen.step in STEPS else {int(chosen.step)}
        return cls(
            [split for split in SPLITS if split in found_splits | {chosen.split}],
            [decoding for decoding in DECODINGS if decoding in found_decodings | {chosen.decoding}],
            [*STEPS, *map(str, sorted(steps))],
        )


def evaluations(run: Run) -> list[EpisodeFile]:
    """Return the evaluations of a training run; of other runs none."""
    return [file for file in run.files if file.part == "evaluation"] if run.kind == "train" else []


def available(run: Run) -> str:
    """Return the evaluations that a training run has, such as `dev tasks, sampled (steps 0, 4)`; empty if none."""
    named = sorted((f"{file.split} tasks, {file.decoding}", file.step or 0) for file in evaluations(run))
    groups = {name: [str(step) for _, step in group] for name, group in groupby(named, key=lambda each: each[0])}
    return "; ".join(f"{name} (step{'s' if len(steps) > 1 else ''} {_listed(steps)})" for name, steps in groups.items())


def _listed(steps: list[str]) -> str:
    return ", ".join(steps if len(steps) <= _LISTED else [*steps[: _LISTED - 2], "…", steps[-1]])


def _preferred(file: EpisodeFile) -> tuple[bool, bool]:
    """A sort key by which the evaluations come first among which the best one is selected."""
    return file.split == "test", file.decoding != "sampled"


def _earliness(file: EpisodeFile) -> tuple[bool, int, bool]:
    """A sort key of evaluations: test before other splits, then by step, then sampled before greedy."""
    return file.split != "test", file.step or 0, file.decoding != "sampled"
