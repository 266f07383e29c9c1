"""The command `agentgym new world NAME`: writes a package with a working environment to replace by your own.

Exit codes: 0 done, 2 wrong usage.
"""

from __future__ import annotations

import argparse
import importlib.util
import keyword
import re
import shlex
import sys
from collections.abc import Sequence
from importlib import resources
from pathlib import Path
from string import Template

from agentgym_envs.cli.arguments import command_parser
from agentgym_envs.cli.output import write_lines
from agentgym_envs.core.registration import full_id
from agentgym_envs.util.installation import command

_USAGE = 2
_TEMPLATES = resources.files("agentgym_envs.cli").joinpath("world_template")
_FILES = {
    "pyproject.toml": "pyproject.toml",
    "README.md": "README.md",
    "{name}/__init__.py": "init.py",
    "{name}/env.py": "env.py",
    "{name}/tasks.py": "tasks.py",
    "{name}/instructions.md": "instructions.md",
    "{name}/actions.json": "actions.json",
    "tests/test_{name}.py": "test.py",
}
"""The files to write, each with its template."""
_NEEDED = ("Feedback", "None", "True", "False")
"""What the class of the environment uses, so that it can't have that name itself."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command and return the exit code."""
    asked = parser().parse_args(argv)
    folder = asked.out or Path(asked.name)
    try:
        world = write_world(asked.name, folder)
    except (ValueError, OSError) as error:
        sys.stderr.write(f"agentgym new: {error}\n")
        return _USAGE
    run, test = (command(name, ours=False, folder=folder) for name in ("agentgym", "pytest"))
    write_lines(
        [
            f"Wrote {folder} with the environment {world}. Try it in that folder:",
            f"  cd {shlex.quote(str(folder))}",
            f"  {run} check {world}",
            f"  {test}",
            f"  {run} evaluate --env {world} --policy oracle random",
            "README.md says what to change.",
        ]
    )
    return 0


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    result = command_parser(
        "new",
        "Write a package of your own, with a small environment that works: tasks, instructions, an expert and tests, "
        "to replace by yours.",
        ("world lamps", "world tic_tac_toe --out packages/tic_tac_toe"),
    )
    result.add_argument("what", choices=["world"])
    result.add_argument("name", metavar="NAME", help="the package's name, such as lamps or tic_tac_toe")
    result.add_argument("--out", type=Path, metavar="FOLDER", help="the folder to create; default: NAME")
    return result


def write_world(name: str, folder: Path) -> str:
    """Write a package called `name` to a new folder, and return its environment as MODULE:ID.

    Raises:
        ValueError: if the name can't be used.
        OSError: if the folder exists or can't be written.
    """
    class_name = "".join(part.capitalize() for part in name.split("_"))
    _check_name(name, class_name)
    if folder.exists() or folder.is_symlink():
        raise FileExistsError(f"{folder} exists; choose another name, or another folder with --out.")
    env_id = f"{name}/{class_name}-v0"
    values = {"name": name, "class_name": class_name, "env_id": env_id, "distribution": name.replace("_", "-")}
    for path, template in _FILES.items():
        text = _TEMPLATES.joinpath(f"{template}.template").read_text(encoding="utf-8")
        file = folder / path.format(name=name)
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(Template(text).substitute(values), encoding="utf-8")
    return f"{name}:{env_id}"


def _check_name(name: str, class_name: str) -> None:
    if not re.fullmatch(r"[a-z][a-z0-9]*(_[a-z0-9]+)*", name) or keyword.iskeyword(name):
        raise ValueError(f"{name!r} can't be the name of a package: use lower-case words such as lamps or tic_tac_toe.")
    if class_name in _NEEDED:
        raise ValueError(f"The class {class_name} would hide what its own code uses; choose another name.")
    if full_id(name) != name:
        raise ValueError(f"There is an environment {name} already; choose another name.")
    if name in sys.stdlib_module_names or importlib.util.find_spec(name) is not None:
        raise ValueError(f"There is a Python module {name} already, which the package would hide; choose another name.")
