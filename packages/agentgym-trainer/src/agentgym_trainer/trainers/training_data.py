"""What a run learns from: episodes of files, or played by the worlds' experts, and of those the ones to keep.

They lie in the run folder from then on, so that a resumed run learns from the very same.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence

from agentgym_envs import Episode
from agentgym_envs.episodes.conversation import replay
from agentgym_eval.data.formats import read_data
from agentgym_eval.policies.policies import Oracle
from agentgym_eval.util.errors import UsageError

from agentgym_trainer.config import BaseConfig, DataConfig, Exploration
from agentgym_trainer.distributed import Ranks
from agentgym_trainer.rollout.environments import OpenEnvironment
from agentgym_trainer.run.console import RunConsole
from agentgym_trainer.run.folder import RunFolder, played_splits
from agentgym_trainer.stopping import Stopping
from agentgym_trainer.trainers.evaluation import evaluated_tasks
from agentgym_trainer.trainers.setup import play_tasks


def gather_episodes(
    config: BaseConfig,
    data: DataConfig,
    worlds: Sequence[OpenEnvironment],
    folder: RunFolder,
    tracker: RunConsole,
    stopping: Stopping,
) -> list[Episode]:
    """The episodes that a run learns from. All processes call this, and all have them.

    Args:
        config: Of the run.
        data: Says where they come from, and which are kept.
        worlds: Those of the run, for experts to play in.
        folder: Of the run; they are kept there, and read back.
        tracker: Is told how many there are.
        stopping: Says whether the run is to end at once.

    Raises:
        UsageError: when a file can't be read, no episode is kept, or one can't have been played like that.
        Stopped: when the run is to end at once.
    """
    ranks = Ranks()
    with ranks.errors_together():
        if ranks.is_main and not folder.data.exists():
            _collect(config, data, worlds, folder, tracker, stopping)
    return folder.read_data()


def _collect(
    config: BaseConfig,
    data: DataConfig,
    worlds: Sequence[OpenEnvironment],
    folder: RunFolder,
    tracker: RunConsole,
    stopping: Stopping,
) -> None:
    if not data.files:
        watched = play_tasks(Oracle(data.noise), config, worlds, data.episodes, tasks=data.tasks)
        played = stopping.heeded(watched)
        found = list(tracker.phase("Watching the expert", played, data.episodes))
        keep_episodes(found, data, "the experts", folder, tracker)
        return
    changed = Counter[str]()
    found = list(read_data(data.files, score=data.score, keep=True, told=lambda what: changed.update([what])))
    for what, times in changed.most_common():
        tracker.say(f"In the data, {what} ({times} times).")
    kept = keep_episodes(found, data, ", ".join(data.files), folder, tracker)
    for sentence in (*played_otherwise(config, worlds, kept), *not_held_out(config, worlds, kept)):
        tracker.say(sentence)


def played_otherwise(
    config: BaseConfig, worlds: Sequence[OpenEnvironment], episodes: Iterable[Episode]
) -> Iterator[str]:
    """A sentence on each world whose episodes had another agent than plays in the run, or were told something else of
    its instructions; and the flags that mend it. Episodes that don't say who played are passed over.
    """
    played = {world.name: Counter[tuple[str, bool]]() for world in worlds}
    for episode in episodes:
        if episode.agent and episode.env in played:
            played[episode.env][episode.agent, bool(episode.instructions)] += 1
    for number, (world, asked) in enumerate(zip(worlds, config.worlds, strict=True)):
        own = world.wrapped.agent, asked.instructions
        others = Counter({player: count for player, count in played[world.name].items() if player != own})
        if others:
            place = "world" if number == 0 else f"extra-worlds.{number - 1}"
            (agent, told), _ = others.most_common(1)[0]
            yield (
                f"{others.total()} of {played[world.name].total()} episodes of {world.name} were played by "
                f"{' and '.join(_player(*player) for player, _ in others.most_common())}, but this run plays and is "
                f"evaluated as {_player(*own)}. To play as {'most of them' if len(others) > 1 else 'they'} did: "
                f"--{place}.agent {agent} --{place}.{'' if told else 'no-'}instructions."
            )


def not_held_out(config: BaseConfig, worlds: Sequence[OpenEnvironment], episodes: Iterable[Episode]) -> Iterator[str]:
    """A sentence on each world and split of whose tasks there are episodes among those to be learned from, where the
    run plays that split to be evaluated.
    """
    tasks: Mapping[str, Counter[str]] = {world.name: Counter() for world in worlds}
    for episode in episodes:
        if episode.env in tasks:
            tasks[episode.env][episode.task_id] += 1
    for world in worlds:
        learned = tasks[world.name]
        for split in ("dev", "test"):
            known = sum(learned[task_id] for task_id in world.tasks.split(split).ids if task_id in learned)
            if known and split in played_splits(config):
                evaluated = [task.id for task in evaluated_tasks(config, world, split)]
                seen = sum(task_id in learned for task_id in evaluated)
                yield (
                    f"{known} of {learned.total()} episodes of {world.name} are of its {split} tasks; {seen} of the "
                    f"{len(evaluated)} {split} tasks that this run plays are among them, and no longer held out. Learn "
                    "from training tasks instead: collect --split train."
                )


def _player(agent: str, told: bool) -> str:
    return f"{agent} with{'' if told else 'out'} instructions"


def keep_episodes(
    found: Sequence[Episode], data: DataConfig, where: str, folder: RunFolder, tracker: RunConsole
) -> list[Episode]:
    """Leave those that are to be learned from in the folder of the run.

    Returns:
        Those.

    Raises:
        UsageError: when that is none, or one's agent would not have come to such turns; `where` says where they come
            from.
    """
    kept = list(good_enough(found, data))
    if not kept:
        raise UsageError(
            f"Of the {len(found)} episodes of {where} none is kept: data.keep is {data.keep}, and data.min_score "
            f"{data.min_score:g}. Lower them, or name other files."
        )
    try:
        for episode in kept:
            deque(replay(episode), maxlen=0)
    except ValueError as error:
        raise UsageError(f"The episodes of {where} can't be learned from. {error}") from error
    tracker.say(f"Learning from {len(kept)} of {len(found)} episodes of {where}.")
    folder.save_data(kept)
    return kept


def good_enough(episodes: Iterable[Episode], rule: DataConfig | Exploration) -> Iterator[Episode]:
    """Those that are kept. Failed ones never are."""
    thresholds = rule.threshold_by_env if isinstance(rule, Exploration) else {}
    for episode in episodes:
        score, threshold = episode.score or 0.0, thresholds.get(episode.env)
        if threshold is None:
            good = (rule.keep == "all" or episode.success) and score >= rule.min_score
        else:
            good = score > threshold
        if good and not episode.failed:
            yield episode
