"""A script that `check_text_env` starts: it plays the first tasks of a world and writes down what the world says.

Run with `python -P elsewhere.py ORDER OUT` and, on stdin, two pickles: `sys.path`, then the class of the world, its
options and how many tasks of each split to play. With ORDER `backward`, directories are listed in the opposite order,
as another file system might list them; so nothing that lists directories is imported before.
"""

from __future__ import annotations

import os
import pickle
import sys
from collections.abc import Iterator
from itertools import islice
from typing import Any

_TURNS = 5
"""After a word of nonsense, so many of the expert's actions are played."""


def main() -> None:
    """Play, and write the transcript to OUT as a pickled list of labels and values."""
    order, out = sys.argv[1:]
    if order == "backward":
        _list_backward()
    sys.path[:] = pickle.load(sys.stdin.buffer)
    world, options, tasks = pickle.load(sys.stdin.buffer)
    env = world(**options)
    transcript = list(_transcript(env, tasks))
    env.close()
    with open(out, "wb") as file:  # noqa: PTH123 - pathlib only where the world imports it, after `_list_backward`
        pickle.dump(transcript, file)


def _transcript(env: Any, tasks: int) -> Iterator[tuple[str, Any]]:
    from agentgym_envs.core.tasks import SPLITS

    for split in SPLITS:
        first = list(islice(env.tasks.split(split), tasks))
        yield f"the first tasks of the {split} split", first
        for task in first:
            yield f"{task.id}, first observation", env.reset(seed=1, options={"task": task.id})
            answer = env.step("xyzzy")
            yield f"{task.id}, answer to 'xyzzy'", answer
            for _ in range(_TURNS):
                if answer[2] or answer[3]:
                    break
                action = env.oracle()
                yield f"{task.id}, the oracle's action", action
                answer = env.step(action)
                yield f"{task.id}, answer to {action!r}", answer


class _Backward:
    """The entries that `os.scandir` gives, the last one first."""

    def __init__(self, entries: Any) -> None:
        with entries:
            self._left = list(entries)

    def __iter__(self) -> _Backward:
        return self

    def __next__(self) -> Any:
        if not self._left:
            raise StopIteration
        return self._left.pop()

    def __enter__(self) -> _Backward:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._left.clear()


def _list_backward() -> None:
    listdir: Any = os.listdir
    scandir: Any = os.scandir
    os.listdir = lambda path=".": listdir(path)[::-1]
    os.scandir = lambda path=".": _Backward(scandir(path))


if __name__ == "__main__":
    main()
