"""The page of the study of compaction."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
from agentgym_envs import Episode, read_episodes
from agentgym_eval.metrics.comparison import Comparison, Difference, compare
from agentgym_eval.metrics.failure_causes import LABELS, failure_cause
from agentgym_eval.metrics.intervals import Interval, share
from agentgym_eval.metrics.summary import by_task, success_of
from context_runs import ARMS, COPIES, SAMPLES, TASKS, TEMPERATURE, TURNS, Arm, Measured, Study
from harness import markdown, show, write_report
from outcomes import commits
from training_runs import PLAYED


def parameters(study: Study) -> int:
    """Return the number of weights of the models."""
    from safetensors.torch import load_file

    return sum(weight.numel() for weight in load_file(study.start(study.seeds[0]) / "model.safetensors").values())


@dataclass(frozen=True, slots=True)
class Played:
    """The test episodes of an arm over all seeds."""

    arm: Arm
    seeds: tuple[tuple[Episode, ...], ...]

    @property
    def episodes(self) -> tuple[Episode, ...]:
        """The episodes of all seeds."""
        return tuple(chain.from_iterable(self.seeds))

    @property
    def success(self) -> Interval:
        """Success over tasks, each with its episodes of all seeds."""
        return share([success_of(attempts) for attempts in by_task(self.episodes).values()])

    @property
    def score(self) -> float:
        """Mean score."""
        return float(np.mean([episode.score or 0.0 for episode in self.episodes if not episode.failed]))

    @property
    def full_contexts(self) -> float:
        """Share of the episodes that ended because the context was full, or a reply too long."""
        return float(np.mean([episode.stop == "length" for episode in self.episodes]))

    @property
    def ended_by_feedback(self) -> float:
        """Share of the episodes that a full context ended, in which the last observation says what would be valid."""
        last = [episode.turns[-1].observation for episode in self.episodes if episode.stop == "length"]
        return float(np.mean([text.startswith(("No known action", "Ambiguous")) for text in last or [""]]))

    @property
    def causes(self) -> dict[str, float]:
        """Share of the episodes that failed for each cause."""
        causes = [failure_cause(episode) for episode in self.episodes]
        found = [cause.kind for cause in causes if cause is not None]
        return {kind: found.count(kind) / len(causes) for kind in sorted(set(found), key=found.count, reverse=True)}

    @property
    def turns(self) -> float:
        """Mean number of actions."""
        return float(np.mean([sum(turn.kind == "act" for turn in episode.turns) for episode in self.episodes]))

    @property
    def summaries(self) -> float:
        """Mean number of summaries."""
        return float(np.mean([sum(turn.kind == "summary" for turn in episode.turns) for episode in self.episodes]))


def read_played(study: Study, arm: Arm) -> Played:
    """Read the test episodes of an arm.

    Raises:
        SystemExit: If a run isn't finished.
    """
    files = [study.run(arm, seed) / PLAYED for seed in study.seeds]
    if missing := [str(file.parent) for file in files if not file.exists()]:
        raise SystemExit(f"The runs {', '.join(missing)} aren't finished; run the script without --report first.")
    return Played(arm, tuple(tuple(read_episodes(file)) for file in files))


def compare_arms(first: Played, second: Played) -> Comparison:
    """Compare two arms over the episodes of all seeds, paired by task."""
    return compare(first.episodes, second.episodes, names=(first.arm.name, second.arm.name))


def report(study: Study, folder: Path, command: str) -> None:
    """Write the page and JSON."""
    from scipy import stats

    whole, none, compact, _ = found = [read_played(study, arm) for arm in ARMS]
    measured = study.measured
    primary, reference = compare_arms(none, compact), compare_arms(whole, compact)
    by_seed = [
        compare(a, b, names=(none.arm.name, compact.arm.name)).success
        for a, b in zip(none.seeds, compact.seeds, strict=True)
    ]
    decided = sum(episode.stop == "terminated" for episode in compact.episodes)
    right = sum(bool(episode.success) for episode in compact.episodes)
    rows = [_row(arm, measured) for arm in found]
    show("Success on test tasks", rows)
    causes = [_cause_row(arm) for arm in found]
    show("Causes of failure", causes)
    example = next((e for e in compact.episodes if e.success and any(t.kind == "summary" for t in e.turns)), None)
    summaries = [turn.reply.text for turn in example.turns if turn.kind == "summary"] if example else ["(none)"]
    page = _PAGE.format(
        command=command,
        commit=commits([study.run(arm, seed) for arm in ARMS for seed in study.seeds]),
        table=markdown(rows),
        causes=markdown(causes),
        primary=_difference(primary.success),
        by_seed="; ".join(f"seed {n}: {_difference(at)}" for n, at in zip(study.seeds, by_seed, strict=True)),
        reference=_difference(reference.success),
        score=_difference(primary.score),
        full=f"{none.full_contexts:.0%}",
        compact_full=f"{compact.full_contexts:.0%}",
        feedback=f"{compact.ended_by_feedback:.0%}",
        decided=decided,
        right=right,
        guessing=f"{stats.binomtest(right, max(1, decided)).pvalue:.2f}",
        none_actions=f"{none.turns:.1f}",
        compact_summaries=f"{compact.summaries:.1f}",
        tasks=primary.tasks,
        samples=SAMPLES,
        names=" and ".join(f"`{name}`" for name in TASKS),
        episodes=measured.episodes,
        actions=f"{measured.actions:.0f}",
        whole=f"{measured.whole:.0f}",
        quarter=measured.quarter,
        limit=measured.limit,
        first=f"{measured.first:.0f}",
        expert_summary=f"{measured.summary:.0f}",
        expert_summaries=f"{measured.summaries:.1f}",
        longest=f"{measured.longest:.0f}",
        fit=f"{measured.fit:.1%}",
        failed=sum(episode.failed for arm in found for episode in arm.episodes),
        copies=COPIES,
        temperature=TEMPERATURE,
        turns=TURNS,
        parameters=parameters(study),
        summary=summaries[-1],
    )
    record = {
        "command": command,
        "commit": commits([study.run(arm, seed) for arm in ARMS for seed in study.seeds]),
        "seeds": study.seeds,
        "measured": measured,
        "quarter": measured.quarter,
        "limit": measured.limit,
        "arms": [_record(arm, measured) for arm in found],
        "compaction minus none": primary.to_dict(),
        "compaction minus none, by seed": [at.to_dict() for at in by_seed],
        "compaction minus full context": reference.to_dict(),
    }
    write_report(folder, "context", page, record)


def _difference(at: Difference) -> str:
    return f"{100 * at.difference.mean:+.1f} points ({100 * at.difference.low:+.1f} to {100 * at.difference.high:+.1f})"


def _row(played: Played, measured: Measured) -> dict[str, str]:
    success = played.success
    return {
        "arm": played.arm.name,
        "agent": f"`{played.arm.agent(measured)}`",
        "context": str(played.arm.context(measured)),
        "success, %": f"{100 * success.mean:.1f} ({100 * success.low:.1f} to {100 * success.high:.1f})",
        "each seed": ", ".join(f"{100 * replace(played, seeds=(seed,)).success.mean:.1f}" for seed in played.seeds),
        "score, %": f"{100 * played.score:.1f}",
        "ended by a full context": f"{played.full_contexts:.0%}",
        "actions": f"{played.turns:.1f}",
        "summaries": f"{played.summaries:.1f}",
    }


def _cause_row(played: Played) -> dict[str, str]:
    kinds = ("wrong_final_action", "loop", "invalid_actions", "format", "token_budget", "turn_budget")
    causes = played.causes
    return {"arm": played.arm.name, **{LABELS[kind]: f"{causes.get(kind, 0.0):.0%}" for kind in kinds}}


def _record(played: Played, measured: Measured) -> dict[str, Any]:
    return {
        "arm": played.arm.name,
        "agent": played.arm.agent(measured),
        "context": played.arm.context(measured),
        "success": played.success.to_dict(),
        "by_seed": [replace(played, seeds=(seed,)).success.to_dict() for seed in played.seeds],
        "score": played.score,
        "ended_by_a_full_context": played.full_contexts,
        "causes": played.causes,
        "actions": played.turns,
        "summaries": played.summaries,
        "episodes": len(played.episodes),
        "failed": sum(episode.failed for episode in played.episodes),
    }


_PAGE = """# Compaction in a quarter of an episode's context

```sh
{command}
```

At commit {commit}.

An agent with `compact:N` writes a summary when its context has more than N tokens, and goes on from the first
observation, the summary and the current observation ([habits](../agents.md#habits)). This study measures what
that is worth where the context is a quarter of what an episode needs.

**Tasks.** SciWorld's {names}: go to the workshop, let a block slide down two inclined planes, measure both times with
the stopwatch, and focus on the plane that the task asks for. Whole episodes of the expert on {episodes} training tasks
have {actions} actions on average, and nine in ten of them at most {whole} tokens of the models: a quarter is {quarter}.
The first observation has up to {first}.

**Models.** A model of {parameters:,} parameters from scratch, with `bare` replies and without instructions, imitates
the expert. The expert's episodes are played by the arm's agent and cut to the arm's context, and the tokens of
summaries are trained like those of actions. Each episode is trained on once in each of {copies} copies, in which the
letters of the planes are permuted: without that, a model learns the episodes by heart. Under compaction at {limit}
tokens the expert writes {expert_summaries} summaries of {expert_summary} tokens in an episode; {fit} of its completion
tokens fit into the quarter context. It sums up its last eight actions with what it saw after them, and what remains to
be done.

**Outcome.** {tasks} test tasks, {samples} episodes of each and seed at a temperature of {temperature}, at most {turns}
actions. The primary outcome was fixed before any test task was played: success of compaction minus none, both in the
quarter context. Settings of an earlier version (two task types, no copies, temperature 1) were changed after its full
context had no success in 84 test episodes; its other arms were never played.

{table}

Success with 95% intervals over tasks. **Primary outcome: compaction minus none {primary}**, paired by task over the
episodes of all seeds ({by_seed}). These intervals treat the trained models as fixed. Secondary: compaction minus full
context {reference}. Not declared beforehand: the score of compaction minus that of none, {score}; it is ScienceWorld's,
with partial credit for steps of the experiment. The second full context continues from the first, on the same data,
since the first had no success: it shows what the model still learns.

**Does none fail because the context is full?** {full} of its episodes end there, after {none_actions} actions on
average. Shares of all episodes that failed, by [cause](../evaluation.md#why-episodes-fail):

{causes}

A loop, invalid actions or missing actions in the last turns count as the cause also of an episode that a full context
then ends. Failed episodes, which would be faults of the environment: {failed}.

**Under compaction** {compact_full} of the episodes still end because the context is full, {feedback} of them after an
action that ScienceWorld doesn't know or asks about, mostly one that names another plane than the task's two. The answer
takes more than half of the quarter context, and occurs in no episode of the expert. {decided} episodes reach the
decision, and {right} of them decide right; guessing would be right in half (binomial test: p {guessing}).

The last summary in a successful episode under compaction ({compact_summaries} summaries per episode on average):

```text
{summary}
```

**The full context is no upper reference here.** These models hardly learn to copy the letter of a plane over a long
context, and then repeat themselves until the horizon. Compaction makes that easier beside keeping the episode going:
contexts are short, every summary repeats the letters, and summaries are more tokens to learn from. Compared with none,
whose episodes end before the experiment is over, all of that is in the difference; it isn't the value of the memory
alone.

What this study can't tell: the variation from one training run to the next, if there is one seed; whether a pretrained
model would gain as much; and what reinforcement learning adds, since nothing here is trained on rewards. The tokenizer
merges whole phrases, so a token is longer than a language model's.
"""
