"""Training data: episodes from files or played by the environments' experts, filtered by score.

They are saved in the run folder, so that a resumed run trains on the same episodes.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from agentgym_envs import Episode, Turn
from agentgym_envs.core.registration import full_id
from agentgym_envs.episodes.conversation import replay
from agentgym_envs.util.installation import command
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
from agentgym_trainer.trainers.renaming import names_by_world, rename_share
from agentgym_trainer.trainers.setup import play_tasks

_OTHER = "with other instructions"


def gather_episodes(
    config: BaseConfig,
    data: DataConfig,
    worlds: Sequence[OpenEnvironment],
    folder: RunFolder,
    tracker: RunConsole,
    stopping: Stopping,
) -> list[Episode]:
    """Return the episodes that a run trains on, copied and renamed if `data` says so. All processes must call this; all
    get the same episodes.

    Args:
        config: The configuration of the run.
        data: The source of the episodes, and which ones are kept.
        worlds: The environments of the run, in which experts play.
        folder: The folder of the run, in which the episodes are saved.
        tracker: Shows the number of episodes.
        stopping: Whether the run must end immediately.

    Raises:
        UsageError: when a file can't be read, no episode is kept, or one can't have been played by its agent.
        Stopped: when the run must end immediately.
    """
    ranks = Ranks()
    if data.rename:
        names_by_world(worlds)  # what can't be renamed is refused before an expert plays
    with ranks.errors_together():
        if ranks.is_main and not folder.data.exists():
            _collect(config, data, worlds, folder, tracker, stopping)
    return rename_share(folder.read_data() * data.copies, worlds, data.rename, config.seed)


def _collect(
    config: BaseConfig,
    data: DataConfig,
    worlds: Sequence[OpenEnvironment],
    folder: RunFolder,
    tracker: RunConsole,
    stopping: Stopping,
) -> None:
    if not data.files:
        expert = Oracle(data.noise, labels=data.imitate_labels)
        demonstrations = play_tasks(expert, config, worlds, data.episodes, tasks=data.tasks)
        played = stopping.heeded(demonstrations)
        found = list(tracker.phase("Collecting demonstrations", played, data.episodes))
        keep_episodes(found, data, "the experts", folder, tracker)
        return
    changes = Counter[str]()
    found = list(
        read_data(
            data.files,
            score=data.score,
            keep=True,
            half=lambda where: tracker.say(f"{where}, left by a killed process, is left out."),
            on_change=lambda what: changes.update([what]),
        )
    )
    for what, times in changes.most_common():
        tracker.say(f"In the data, {what} ({times} times).")
    kept = keep_episodes(found, data, ", ".join(data.files), folder, tracker)
    about = *played_otherwise(config, worlds, kept), *not_held_out(config, worlds, kept)
    for sentence in (*not_played(worlds, kept), *about):
        tracker.say(sentence)


def not_played(worlds: Sequence[OpenEnvironment], episodes: Sequence[Episode]) -> Iterator[str]:
    """Yield a message if some episodes are of environments that the run doesn't have. Conversations without an
    environment aren't counted.
    """
    others = Counter(episode.env for episode in episodes if episode.env)
    for world in worlds:
        del others[world.name]
    if others:
        yield (
            f"{others.total()} of {len(episodes)} episodes are of environments that this run doesn't play: "
            f"{', '.join(sorted(others))}. The model is trained on them, but not evaluated in these."
        )


def played_otherwise(
    config: BaseConfig, worlds: Sequence[OpenEnvironment], episodes: Iterable[Episode]
) -> Iterator[str]:
    """Yield a message for each environment whose episodes had another agent or other instructions than the run.

    The message contains the flags that make the run match. Episodes without an agent are skipped.
    """
    played = {world.name: Counter[tuple[str, str]]() for world in worlds}
    texts = {world.name: (world.wrapped.agent, world.wrapped.instructions) for world in worlds}
    for episode in episodes:
        if episode.agent and episode.env in played:
            given, (agent, text) = episode.instructions, texts[episode.env]
            other = bool(given and text) and episode.agent == agent and given != text
            played[episode.env][episode.agent, _OTHER if other else _instructed(bool(given))] += 1
    for number, (world, settings) in enumerate(zip(worlds, config.worlds, strict=True)):
        own = world.wrapped.agent, _instructed(settings.instructions)
        others = Counter({agent: count for agent, count in played[world.name].items() if agent != own})
        if others:
            flag = "world" if number == 0 else f"extra-worlds.{number - 1}"
            (name, instructed), _ = others.most_common(1)[0]
            prompt = f", with the --{flag}.prompt that they had" if instructed == _OTHER else ""
            yield (
                f"{others.total()} of {played[world.name].total()} episodes of {world.name} were played by "
                f"{' and '.join(' '.join(agent) for agent, _ in others.most_common())}, but this run plays and is "
                f"evaluated as {' '.join(own)}. To play as {'most of them' if len(others) > 1 else 'they'} did: "
                f"--{flag}.agent {name} --{flag}.{'no-' if instructed == _instructed(False) else ''}instructions"
                f"{prompt}."
            )


def not_held_out(config: BaseConfig, worlds: Sequence[OpenEnvironment], episodes: Iterable[Episode]) -> Iterator[str]:
    """Yield a message for each environment and evaluation split whose tasks occur in the training episodes."""
    tasks: Mapping[str, Counter[str]] = {world.name: Counter() for world in worlds}
    for episode in episodes:
        if episode.env in tasks:
            tasks[episode.env][episode.task_id] += 1
    for world in worlds:
        trained = tasks[world.name]
        for split in ("dev", "test"):
            known = sum(trained[task_id] for task_id in world.tasks.split(split).ids if task_id in trained)
            if known and split in played_splits(config):
                evaluated = [task.id for task in evaluated_tasks(config, world, split)]
                seen = sum(task_id in trained for task_id in evaluated)
                yield (
                    f"{known} of {trained.total()} episodes of {world.name} are of its {split} tasks; {seen} of the "
                    f"{len(evaluated)} {split} tasks that this run is evaluated on are among them, and no longer held "
                    f"out. Use episodes of training tasks instead: {command('collect')} --split train."
                )


def _instructed(given: bool) -> str:
    return f"with{'' if given else 'out'} instructions"


def keep_episodes(
    found: Sequence[Episode], data: DataConfig, where: str, folder: RunFolder, tracker: RunConsole
) -> list[Episode]:
    """Filter episodes by score, check them, and save them in the folder of the run.

    Args:
        found: The episodes.
        data: The filter.
        where: The source of the episodes, for messages.
        folder: The folder of the run.
        tracker: Shows the number of episodes.

    Returns:
        The episodes that are kept.

    Raises:
        UsageError: when none is kept, one was played with pictures, or replaying one with its agent gives other turns.
    """
    kept = list(good_enough(found, data))
    if not kept:
        raise UsageError(
            f"None of the {len(found)} episodes of {where} is kept: data.keep is {data.keep} and data.min_score is "
            f"{data.min_score:g}. Relax them, or use other episodes."
        )
    if any(turn.picture is not None for episode in kept for turn in episode.turns):
        raise UsageError(
            f"Some episodes of {where} were played with pictures, and training on pictures isn't supported: a model "
            "would learn from them without what the policy saw. Collect episodes without --pictures."
        )
    try:
        for episode in kept:
            deque(replay(episode), maxlen=0)
    except ValueError as error:
        raise UsageError(f"The episodes of {where} can't be used for training. {error}") from error
    tracker.say(f"Training on {len(kept)} of {len(found)} episodes of {where}.")
    folder.save_data(kept)
    return kept


def imitated(episodes: Iterable[Episode], *, noise: bool, labels: bool = False) -> list[Episode]:
    """Return demonstrations, with the random actions of noisy experts excluded from the loss unless `noise` is set.

    With `labels`, the labels of turns that are in the loss replace their replies there; otherwise they are removed. Of
    a policy's episodes, which have labels of other turns than random actions, only labels are imitated.

    Raises:
        UsageError: if there are to be labels, and no turn of the episodes has one.
    """

    def turn(before: Turn, *, by_policy: bool) -> Turn:
        reply = before.reply
        label = reply.label if labels and before.loss else None
        is_context = label is not None or by_policy or (reply.noise and not noise)
        return replace(before, reply=replace(reply, label=label), loss=before.loss and not is_context)

    def imitable(episode: Episode) -> Episode:
        by_policy = labels and any(each.reply.label is not None and not each.reply.noise for each in episode.turns)
        return replace(episode, turns=tuple(turn(each, by_policy=by_policy) for each in episode.turns))

    found = list(map(imitable, episodes))
    if labels and found and all(each.reply.label is None for episode in found for each in episode.turns):
        raise UsageError(
            f"None of the {len(found)} episodes has labels for imitate_labels: leave it out, or use the episodes of "
            "noisy experts that this run collects, or rollouts of a run with distillation.expert."
        )
    return found


def exclude_turns(episode: Episode, excluded: Callable[[Turn], bool]) -> Episode:
    """Return the episode with some turns excluded from the loss of imitation learning; they remain context."""
    turns = (replace(turn, loss=turn.loss and not excluded(turn)) for turn in episode.turns)
    return replace(episode, turns=tuple(turns))


def thresholds_by_id(exploration: Exploration) -> dict[str, float]:
    """Return the thresholds by environment id."""
    return {full_id(env): score for env, score in exploration.threshold_by_env.items()}


def good_enough(episodes: Iterable[Episode], rule: DataConfig | Exploration) -> Iterator[Episode]:
    """Yield the episodes that satisfy the rule. Failed ones never do."""
    thresholds = thresholds_by_id(rule) if isinstance(rule, Exploration) else {}
    for episode in episodes:
        score, threshold = episode.score or 0.0, thresholds.get(episode.env)
        if threshold is None:
            good = (rule.keep == "all" or episode.success) and score >= rule.min_score
        else:
            good = score > threshold
        if good and not episode.failed:
            yield episode
