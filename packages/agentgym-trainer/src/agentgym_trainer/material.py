"""What a run learns from: episodes of files, or played by the worlds' experts, and of those the ones to keep.

They lie in the run folder from then on, so that a resumed run learns from the very same.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence

from agentgym_envs import Episode
from agentgym_envs.dialogue import replay
from agentgym_eval.data.formats import read_data
from agentgym_eval.errors import UsageError
from agentgym_eval.policies import Oracle

from agentgym_trainer.beginning import play_some
from agentgym_trainer.config import Data, Exploration, Setup
from agentgym_trainer.ranks import Ranks
from agentgym_trainer.run_folder import RunFolder
from agentgym_trainer.tracking import Tracker
from agentgym_trainer.worlds import OpenWorld


def gather_episodes(
    config: Setup, data: Data, worlds: Sequence[OpenWorld], folder: RunFolder, tracker: Tracker
) -> list[Episode]:
    """The episodes that a run learns from. All processes call this, and all have them.

    Args:
        config: Of the run.
        data: Says where they come from, and which are kept.
        worlds: Those of the run, for experts to play in.
        folder: Of the run; they are kept there, and read back.
        tracker: Is told how many there are.

    Raises:
        UsageError: when a file can't be read, no episode is kept, or one can't have been played like that.
    """
    ranks = Ranks()
    with ranks.together():
        if ranks.leads and not folder.data.exists():
            _collect(config, data, worlds, folder, tracker)
    return folder.read_data()


def _collect(config: Setup, data: Data, worlds: Sequence[OpenWorld], folder: RunFolder, tracker: Tracker) -> None:
    if data.files:
        found = list(read_data(data.files, score=data.score, keep=True))
    else:
        played = play_some(Oracle(data.noise), config, worlds, data.episodes)
        found = list(tracker.phase("Watching the expert", played, data.episodes))
    keep_episodes(found, data, ", ".join(data.files) or "the experts", folder, tracker)


def keep_episodes(found: Sequence[Episode], data: Data, where: str, folder: RunFolder, tracker: Tracker) -> None:
    """Leave those that are to be learned from in the folder of the run.

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


def good_enough(episodes: Iterable[Episode], rule: Data | Exploration) -> Iterator[Episode]:
    """Those that are kept. Failed ones never are."""
    for episode in episodes:
        succeeded = rule.keep == "all" or episode.success
        if not episode.failed and succeeded and (episode.score or 0.0) >= rule.min_score:
            yield episode
