"""Write the manifest of the embedded WebArena tasks, and their numbers in the documentation.

uv run python scripts/make_webarena_manifest.py

The tasks come from the code in `worlds/webarena/sites`; run this after every change of a template or of the data.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from pathlib import Path

from agentgym_envs.worlds.webarena.env import WebArena
from agentgym_envs.worlds.webarena.sites.tasks import UNACHIEVABLE, templates

ROOT = Path(__file__).parents[1]
MANIFEST = ROOT / "packages/agentgym-envs/src/agentgym_envs/worlds/webarena/manifest.json"
TEST = ROOT / "packages/agentgym-envs/tests/worlds/webarena/tasks/test_task_sets.py"


def put(path: Path, *changes: tuple[str, str]) -> None:
    """Replace the numbers of texts, which patterns with one group per number describe.

    Raises:
        ValueError: if a text isn't there once.
    """
    text = path.read_text(encoding="utf-8")
    for pattern, new in changes:
        text, count = re.subn(pattern, new, text)
        if count != 1:
            raise ValueError(f"{path} has {pattern!r} {count} times; it must be there once.")
    path.write_text(text, encoding="utf-8")


def main() -> None:
    """Write everything."""
    tasks = WebArena().tasks
    MANIFEST.write_text(json.dumps(tasks.manifest(), indent=2) + "\n", encoding="utf-8")
    train, dev, test = (len(part) for part in (tasks.train, tasks.dev, tasks.test))
    every = list(tasks)
    categories = Counter((task.category, task.split) for task in every)
    difficulties = [task.difficulty for task in every]
    made = templates()
    held_out = sum(template.held_out for template in made)
    clusters = sum(template.name.endswith(UNACHIEVABLE) for template in made)
    unachievable = sum(task.cluster.endswith(UNACHIEVABLE) for task in every)
    share = 100 * unachievable / len(every)
    put(
        ROOT / "docs/webarena.md",
        (r"\(\d+ in `train`, \d+ in `dev`, \d+ in `test`\)", f"({train} in `train`, {dev} in `dev`, {test} in `test`)"),
        (r"by \d+ templates\. An entity", f"by {len(made)} templates. An entity"),
        (r"\d+ templates have tasks in the test split only", f"{held_out} templates have tasks in the test split only"),
        (
            r"\d+ tasks of \d+ templates \([\d.]+%\)",
            f"{unachievable} tasks of {clusters} templates ({share:.1f}%)",
        ),
    )
    put(
        ROOT / "docs/worlds.md",
        (r"(?<=`agentgym/WebArena-v0` \| )\d+ \| \d+ \| \d+", f"{train} | {dev} | {test}"),
        (
            r"There are also \d+ `dev` tasks\. (.* plan), \d+ to \d+\.",
            rf"There are also {dev} `dev` tasks. \1, {min(difficulties)} to {max(difficulties)}.",
        ),
        *(
            (rf"(?<=\| `{category}` \| )\d+ \| \d+", f"{number} | {categories[category, 'test']}")
            for (category, split), number in categories.items()
            if split == "train"
        ),
    )
    put(
        ROOT / "docs/howto/other-libraries.md",
        (r"registers the [\d,]+ tasks on WebArena", f"registers the {len(every):,} tasks on WebArena"),
    )
    put(TEST, (r"among the \d+ ", f"among the {len(made)} "))


if __name__ == "__main__":
    main()
