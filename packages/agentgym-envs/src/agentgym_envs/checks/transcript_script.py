"""A script that `check_text_env` runs in a subprocess: it plays the first tasks and records a transcript.

Usage: `python -P transcript_script.py ORDER OUT` with two pickles on stdin: `sys.path`, then a tuple of the environment
class, its options and the number of tasks to play per split. With ORDER `backward`, directories are listed in reverse
order, as another file system might list them. Modules that list directories must therefore be imported afterwards.
"""

from __future__ import annotations

import os
import pickle
import sys
from collections.abc import Iterator
from itertools import islice
from typing import Any

_TURNS = 5
"""The number of expert actions per task, after one invalid action."""


def main() -> None:
    """Play the tasks and write the transcript to OUT as a pickled list of labels and values."""
    order, out = sys.argv[1:]
    if order == "backward":
        _list_backward()
    sys.path[:] = pickle.load(sys.stdin.buffer)
    world, options, tasks = pickle.load(sys.stdin.buffer)
    env = world(**options)
    transcript = list(_transcript(env, tasks))
    env.close()
    with open(out, "wb") as file:  # noqa: PTH123 - pathlib must not be imported before `_list_backward`
        pickle.dump(transcript, file)


def _transcript(env: Any, tasks: int) -> Iterator[tuple[str, Any]]:
    from agentgym_envs.core.tasks import SPLITS

    for split in SPLITS:
        first = list(islice(env.tasks.split(split), tasks))
        yield f"the first tasks of the {split} split", first
        for task in first:
            yield f"{task.id}, first observation", env.reset(seed=1, options={"task": task.id})
            result = env.step("xyzzy")
            yield f"{task.id}, result of 'xyzzy'", result
            for _ in range(_TURNS):
                if result[2] or result[3]:
                    break
                action = env.oracle()
                yield f"{task.id}, the oracle's action", action
                result = env.step(action)
                yield f"{task.id}, result of {action!r}", result


class _Backward:
    """The entries of `os.scandir` in reverse order."""

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
