"""AgentGym's ids of the published questions: the test questions of seven sets, then two training sets."""

from __future__ import annotations

from agentgym_envs.worlds.searchqa.published import PUBLISHED


def from_agentgym(item: str | int) -> str:
    """Convert an AgentGym id, such as `searchqa_3610` or its `data_idx` 3610, to our task id.

    AgentGym numbers the test questions of the seven sets consecutively in the order of `PUBLISHED`, then the training
    questions of Natural Questions and HotpotQA.

    Raises:
        KeyError: if AgentGym has no such id.
    """
    number = str(item).removeprefix("searchqa_")
    left = int(number) if number.isdecimal() else -1
    for split in ("test", "train"):
        for name, published in PUBLISHED.items():
            size = published.test if split == "test" else published.train
            if 0 <= left < size:
                return f"searchqa/{split}/{name}/{left}"
            left -= size
    most = sum(published.test + published.train for published in PUBLISHED.values()) - 1
    raise KeyError(f"AgentGym has no question {item!r}; its ids go from searchqa_0 to searchqa_{most}.")


def to_agentgym(task_id: str) -> str:
    """Convert one of our task ids to AgentGym's, such as `searchqa/test/triviaqa/0` to `searchqa_3610`.

    Raises:
        KeyError: if AgentGym doesn't have that question.
    """
    first = 0
    for split in ("test", "train"):
        for name, published in PUBLISHED.items():
            size = published.test if split == "test" else published.train
            position = task_id.removeprefix(f"searchqa/{split}/{name}/")
            if position.isdecimal() and int(position) < size:
                return f"searchqa_{first + int(position)}"
            first += size
    raise KeyError(
        f"AgentGym has no question {task_id}; it has the test questions of {', '.join(PUBLISHED)}, "
        "and training questions of nq and hotpotqa."
    )
