"""`collect`, as a function; the command of this name plays with the same `collect_episodes`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Literal, Unpack

from agentgym_envs import Episode, Policy, read_episodes

from agentgym_eval.api.options import (
    AnyPolicy,
    EnvFactory,
    PlayOptions,
    check_choice,
    named_env,
    named_policy,
    path_of,
    settings_of,
)
from agentgym_eval.api.playing import Reporter, log_reporter, outside_loop, play, too_many_failed, warn
from agentgym_eval.data.card import Card
from agentgym_eval.data.collection import Collection
from agentgym_eval.metrics.usage import Usage
from agentgym_eval.policies.policies import PolicyFactory
from agentgym_eval.runs.run import open_runs
from agentgym_eval.runs.settings import CollectSettings
from agentgym_eval.util.errors import UsageError


@dataclass(frozen=True, slots=True)
class Collected:
    """Episodes that were written as data."""

    path: Path
    """The file or folder."""
    card: Card
    """The content of the data card: numbers of played, kept and failed episodes, overall (`card.total`) and by
    environment (`card.worlds`)."""

    def episodes(self) -> Iterator[Episode]:
        """Yield the episodes that were kept."""
        for file in [self.path] if self.path.is_file() else sorted(self.path.glob("*/*.jsonl")):
            yield from read_episodes(file)


def collect(
    policy: AnyPolicy,
    env: str | EnvFactory | Sequence[str | EnvFactory],
    *,
    out: str | PathLike[str],
    keep: Literal["all", "success"] = "all",
    min_score: float = 0.0,
    progress: bool = False,
    environment: Mapping[str, str] | None = None,
    **options: Unpack[PlayOptions],
) -> Collected:
    """Run a policy and save its episodes as data with a data card, as the command `collect` does.

    Unfinished work is kept in `out` with the ending `.partial`; the same call again resumes it.

    Args:
        policy: As in `evaluate`.
        env: One environment as in `evaluate`, or several.
        out: FILE.jsonl, or a folder with one file per environment and split. It is written at the end.
        keep: Whether to save all episodes, or only those that reached the goal.
        min_score: Save only episodes with at least this score, from 0 to 1.
        progress: As in `evaluate`.
        environment: As in `evaluate`.
        options: The other settings, with the names and defaults of the command's flags; see `PlayOptions`.

    Raises:
        UsageError: as in `evaluate`; if `out` exists already; or if there is a `harness`, which can't collect.
        RunStopped, KeyboardInterrupt: as in `evaluate`.
    """
    if options.pop("harness", None):
        raise UsageError("collect takes no harness: episodes that a harness plays have no conversation to learn from.")
    check_choice("keep", keep, ("all", "success"))
    name, factory = named_policy(policy, options.get("endpoint"), environment or {})
    settings = settings_of(**options)
    envs = [env] if isinstance(env, str) or callable(env) else list(env)

    def run(check: Callable[[], object]) -> Card:
        with ExitStack() as stack:
            worlds = tuple(stack.enter_context(named_env(one)) for one in envs)
            asked = CollectSettings(
                policy=name, env=worlds, out=path_of(out), keep=keep, min_score=min_score, **settings
            )
            card = collect_episodes(asked, factory, log_reporter(shows_progress=progress, check=check))
        if sentence := problem(asked, card):
            warn(sentence)
        return card

    return Collected(path_of(out), outside_loop(run))


def collect_episodes(asked: CollectSettings, policy: PolicyFactory | Policy, reporter: Reporter) -> Card:
    """Play all episodes of the settings, and write the data and its card, which is returned.

    Raises:
        UsageError: as `Collection.check` and `open_runs`.
        RunStopped: as `play_runs`.
    """
    collection = Collection(asked)
    collection.check()
    with open_runs(asked.worlds(), policy) as runs:
        play(runs, reporter)
        usage = sum((run.usage for run in runs), start=Usage())
        return collection.write([episode for run in runs for episode in run.episodes], usage)


def problem(asked: CollectSettings, card: Card) -> str:
    """Return a sentence if no episode was kept, or too many failed; else an empty string."""
    if not card.total.kept:
        return f"None of the {card.total.played} episodes matches {Collection(asked).rule}."
    worst = max(card.worlds, key=lambda world: world.failed / world.played)
    return too_many_failed(worst.failed, worst.played, asked.max_failed)
