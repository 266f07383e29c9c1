"""AgentGym's task numbers of BabyAI: number = 40 * seed + level index.

AgentGym's fourth level is `BabyAI-GoToObjS6-v0`, for which Minigrid up to 2.3.1 built the rooms of GoToObjS4 by
mistake. Later versions have `GoToObjS6-v1` and no level of that name, so the fourth level is GoToObjS4 here.
Minigrid before 3.2 words the mission of some seeds of SynthS5R2, SynthLoc and SynthSeq differently: 24 of 300.
"""

from __future__ import annotations

from agentgym_envs.worlds.babyai.tasks import all_levels

LEVELS = (
    "GoToRedBallGrey",
    "GoToRedBall",
    "GoToRedBallNoDists",
    "GoToObjS4",
    "GoToLocalS8N7",
    "GoToObjMazeS7",
    "GoToImpUnlock",
    "GoToSeqS5R2",
    "GoToRedBlueBall",
    "GoToDoor",
    "GoToObjDoor",
    "Open",
    "OpenRedDoor",
    "OpenDoorLoc",
    "OpenRedBlueDoorsDebug",
    "OpenDoorsOrderN4Debug",
    "Pickup",
    "UnblockPickup",
    "PickupLoc",
    "PickupDistDebug",
    "PickupAbove",
    "PutNextLocalS6N4",
    "PutNextS7N4Carrying",
    "Unlock",
    "UnlockLocalDist",
    "KeyInBox",
    "UnlockPickupDist",
    "BlockedUnlockPickup",
    "UnlockToUnlock",
    "ActionObjDoor",
    "FindObjS7",
    "KeyCorridorS6R3",
    "OneRoomS20",
    "MoveTwoAcrossS8N9",
    "SynthS5R2",
    "SynthLoc",
    "SynthSeq",
    "MiniBossLevel",
    "BossLevel",
    "BossLevelNoUnlock",
)
"""AgentGym's levels in its order, by our short names."""


def from_agentgym(item: str | int) -> str:
    """Convert an AgentGym id, such as `babyai_123` or its `data_idx` 123, to our task id.

    AgentGym's seeds start at 0 as in our training split, which therefore contains all of its tasks, also its test set.

    Raises:
        KeyError: if the id is not a number, or our task set has no such task.
    """
    number = str(item).removeprefix("babyai_")
    if not number.isdecimal():
        raise KeyError(f"AgentGym has no task {item!r}; its ids are babyai_0, babyai_1 and so on.")
    seed, place = divmod(int(number), len(LEVELS))
    name = LEVELS[place]
    turns = all_levels()[name].train if name in all_levels() else ()
    if seed >= len(turns) or turns[seed] is None:
        raise KeyError(
            f"AgentGym's task {item!r} is seed {seed} of {name}, which isn't in our task set: the set has all of its "
            "levels except OpenDoorsOrderN4Debug, with those seeds from 0 to 511 that the expert solves."
        )
    return f"babyai/train/{name}/{seed}"


def to_agentgym(task_id: str) -> str:
    """Convert one of our task ids to AgentGym's, such as `babyai_123`.

    Raises:
        KeyError: if AgentGym has no such task: a seed of our test split, or a level that isn't one of its 40.
    """
    _, split, name, seed = task_id.split("/")
    if split != "train":
        raise KeyError(f"AgentGym has no task {task_id}: all of its tasks are in our training split.")
    if name not in LEVELS:
        raise KeyError(f"AgentGym has no task {task_id}: {name} is not one of its {len(LEVELS)} levels.")
    return f"babyai_{len(LEVELS) * int(seed) + LEVELS.index(name)}"
