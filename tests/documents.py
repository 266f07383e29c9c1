"""Parsing of the documentation: code blocks, prose, and the commands in both."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from textwrap import dedent

ROOT = Path(__file__).parent.parent
REFERENCE = ROOT / "docs/reference"  # generated from docstrings
DOCUMENTS = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("packages/*/README.md")])
DOCUMENTS = [path for path in DOCUMENTS if REFERENCE not in path.parents]
COMMANDS_PAGE = ROOT / "docs/commands.md"


@dataclass(frozen=True)
class Block:
    """A fenced code block. `file` is the path given on a separate line before it: "`lamps/world.py`:"."""

    file: str | None
    language: str
    body: str
    line: int

    @property
    def commands(self) -> list[str]:
        """The lines of a shell block; in a `console` block, those after `$`. Loops and continued lines are joined."""
        if self.language not in ("sh", "console"):
            return []
        text = self.body.replace("\\\n", " ")
        if self.language == "console":
            return [line[2:] for line in text.splitlines() if line.startswith("$ ")]
        loops = re.sub(r"^for .*?^done$", lambda loop: loop[0].replace("\n", " "), text, flags=re.M | re.S)
        return [line.strip() for line in loops.splitlines() if line.strip() and not line.startswith("#")]


_BLOCK = re.compile(
    r"^(?:`(?P<file>[\w./-]+)`:\n\n)?(?P<indent> *)```(?P<language>\w*)\n(?P<body>.*?)^(?P=indent)```$",
    re.MULTILINE | re.DOTALL,
)


def blocks(document: Path) -> Iterator[Block]:
    text = document.read_text(encoding="utf-8")
    for match in _BLOCK.finditer(text):
        yield Block(match["file"], match["language"], dedent(match["body"]), text[: match.start("body")].count("\n"))


def prose(document: Path) -> str:
    """Return the document without code blocks and comments."""
    return re.sub(r"<!--.*?-->", "", _BLOCK.sub("", document.read_text(encoding="utf-8")), flags=re.DOTALL)


def inline_commands(document: Path) -> list[str]:
    """Return the commands within sentences."""
    return [code for code in re.findall(r"`([^`\n]+)`", prose(document)) if code.startswith("uv run ")]


def command_lines(document: Path) -> list[str]:
    """Return all commands of a document, those in blocks first."""
    return [line for block in blocks(document) for line in block.commands] + inline_commands(document)


def name_of(document: Path) -> str:
    return str(document.relative_to(ROOT))


def write_files(document: Path, folder: Path) -> None:
    """Write the files that a document tells its reader to create."""
    for block in blocks(document):
        if block.file:
            (folder / block.file).parent.mkdir(parents=True, exist_ok=True)
            (folder / block.file).write_text(block.body, encoding="utf-8")


def register(folder: Path) -> None:
    """Write the metadata that makes the entry points of the package in a folder discoverable without installing it."""
    if not (folder / "pyproject.toml").is_file():
        return
    project = tomllib.loads((folder / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    name, version = project["name"], project["version"]
    points = [
        line
        for group, entries in project.get("entry-points", {}).items()
        for line in (f"[{group}]", *(f"{entry} = {value}" for entry, value in entries.items()))
    ]
    info = folder / f"{name.replace('-', '_')}-{version}.dist-info"
    info.mkdir(exist_ok=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n", encoding="utf-8")
    (info / "entry_points.txt").write_text("\n".join(points), encoding="utf-8")
