"""The files of the code host's projects: programs assembled from patterns, and the files that accompany them."""

from __future__ import annotations

import sqlite3
from random import Random
from typing import TYPE_CHECKING

from agentgym_envs.worlds.webarena.sites.code.prose import sections

if TYPE_CHECKING:
    from agentgym_envs.worlds.webarena.sites.code.data_projects import Project

SUFFIXES = {"Python": "py", "TypeScript": "ts", "Go": "go", "Rust": "rs", "Ruby": "rb", "C": "c"}
"""File extension of each language."""
MISSPELT = (
    ("easier", "eaiser"),
    ("stable", "stabel"),
    ("version", "verison"),
    ("First", "Frist"),
    ("set up", "set up"),
)
"""Words of the change logs, and how some projects misspell them; the last pair is none."""
_HEADS = {
    "Python": '"""The {c}."""\n\nfrom __future__ import annotations\n\nfrom dataclasses import dataclass\n\n\n',
    "TypeScript": "// The {c}.\n\n",
    "Go": "package {s}\n\n",
    "Rust": "//! The {c}.\n\nuse std::fmt;\n\n",
    "Ruby": "# frozen_string_literal: true\n\n",
    "C": '#include "{s}.h"\n\n',
}
_TESTS = {
    "Python": "from {s} import {C}\n\n\ndef test_{s}_has_a_limit():\n    assert {C}('first').limit == {k}\n",
    "TypeScript": 'test("{c} is clamped", () => {\n  expect(clamp{C}({k} + 1)).toBe({k});\n});\n',
    "Go": 'func TestNew{C}(t *testing.T) {\n\tif New{C}("a").Limit != {k} {\n\t\tt.Fail()\n\t}\n}\n',
    "Rust": '#[test]\nfn {s}_takes_a_value() {\n    assert!({C}::new("a").push({k}).is_ok());\n}\n',
    "Ruby": "class {C}Test < Minitest::Test\n  def test_limit\n    assert_equal {k}, {C}::LIMIT\n  end\nend\n",
    "C": "void test_{s}(void)\n{\n    {s}_tick({k});\n    assert({s}_mean() == {k} / {S}_SIZE);\n}\n",
}
_INSTALL = {
    "Python": "pip install {p}",
    "TypeScript": "npm install\nnpm run build",
    "Go": "go build ./...",
    "Rust": "cargo build --release",
    "Ruby": "bundle install\nbundle exec rake",
    "C": "make\nmake install",
}
_SHARED = {
    ".gitignore": "build/\ndist/\n*.log\n.env\n.cache/\n",
    "CONTRIBUTING.md": "# Contributing\n\nOpen an issue before large changes. Every change comes with a test.\n\n"
    "1. Fork the project.\n2. Make a branch with a telling name.\n3. Open a merge request.\n",
    ".gitlab-ci.yml": "stages:\n  - check\n  - test\n\ncheck:\n  stage: check\n  script: make check\n\n"
    "test:\n  stage: test\n  script: make test\n  retry: 1\n",
    "Makefile": "check:\n\t./scripts/check.sh\n\ntest:\n\t./scripts/test.sh\n\nclean:\n\trm -rf build dist\n",
    "scripts/check.sh": "#!/bin/sh\nset -eu\n\ngit diff --check\n./scripts/spelling.sh docs README.md\n",
    "scripts/test.sh": '#!/bin/sh\nset -eu\n\necho "running all tests"\nexec "${RUNNER:-./build/tests}" "$@"\n',
}


def write_files(
    db: sqlite3.Connection, random: Random, project: Project, name: str, text: str, licence: str
) -> dict[str, str]:
    """Write the files of a project and return their contents by path."""
    shapes = {language: body.split("\n%%\n") for language, body in sections("shapes.txt").items()}[project.language]
    suffix = SUFFIXES[project.language]
    files = {path: content for path, content in _SHARED.items() if path == ".gitignore" or random.random() < 0.85}
    files["README.md"] = _readme(project, name, text, licence)
    files["LICENSE"] = f"{licence}\n\nThe full text of this licence comes with every release.\n"
    files["CHANGELOG.md"] = _changes(random, project)
    for component in project.components:
        slug = component.replace(" ", "_").replace("-", "_").lower()
        number = str(random.randrange(8, 500))
        chosen = random.sample(shapes, min(len(shapes), random.randrange(2, 4)))
        head = _HEADS[project.language]
        files[f"src/{slug}.{suffix}"] = _named(head + "\n\n".join(chosen) + "\n", component, slug, number)
        if random.random() < 0.7:
            files[f"tests/test_{slug}.{suffix}"] = _named(_TESTS[project.language], component, slug, number)
        if random.random() < 0.4:
            files[f"docs/{slug.replace('_', '-')}.md"] = _page(component, number)
    for path, content in files.items():
        db.execute("INSERT INTO files VALUES (?, ?, ?)", (project.id, path, content_of(db, content)))
    return files


def content_of(db: sqlite3.Connection, text: str) -> int:
    """Return the id of a text in `contents`; small common files are stored once."""
    if text in _SHARED.values():
        found = db.execute("SELECT id FROM contents WHERE id <= 1000 AND text = ?", (text,)).fetchone()
        if found:
            return found[0]
    made = db.execute("INSERT INTO contents (text) VALUES (?)", (text,)).lastrowid
    assert made is not None
    return made


def _named(text: str, component: str, slug: str, number: str) -> str:
    camel = "".join(part.capitalize() for part in slug.split("_"))
    for hole, value in (("{c}", component), ("{C}", camel), ("{s}", slug), ("{S}", slug.upper()), ("{k}", number)):
        text = text.replace(hole, value)
    return text


def _readme(project: Project, name: str, text: str, licence: str) -> str:
    parts = "\n".join(f"- {component}" for component in project.components)
    install = _INSTALL[project.language].replace("{p}", project.where.split("/")[1])
    return (
        f"# {name}\n\n{text}.\n\n## Install\n\n```\n{install}\n```\n\n## Parts\n\n{parts}\n\n"
        f"## Help\n\nQuestions go to the issues; see `CONTRIBUTING.md` before you send a patch.\n\n"
        f"## Licence\n\n{name} is free software under {licence}.\n"
    )


def _changes(random: Random, project: Project) -> str:
    entries = [f"- The {part} is easier to set up." for part in random.sample(project.components, 2)]
    text = f"# Changes\n\n## Unreleased\n\n{entries[0]}\n\n## 1.0\n\n{entries[1]}\n- First stable version.\n"
    right, wrong = MISSPELT[project.id % len(MISSPELT)]
    return text[::-1].replace(right[::-1], wrong[::-1], 1)[::-1]


def _page(component: str, number: str) -> str:
    return (
        f"# {component.capitalize()}\n\nThe {component} works without settings. These exist all the same:\n\n"
        f"- `limit`: how many entries it keeps, {number} by default\n- `quiet`: says nothing unless something fails\n"
    )
