"""Write docs/reference/*.md from the docstrings: a page for each public module, and an index.

    uv run scripts/make_reference.py           # write the pages
    uv run scripts/make_reference.py --check   # fail if a page is out of date

The source is parsed and not imported, so this takes seconds and doesn't need torch. Public names are those in a
module's `__all__`, or else those it defines without a leading underscore.
"""

from __future__ import annotations

import argparse
import logging
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import griffe

ROOT = Path(__file__).parent.parent
FOLDER = ROOT / "docs" / "reference"
WIDTH = 100  # maximum length of a signature on one line
PAGES: dict[str, str] = {
    "agentgym_envs": "all names of the package, by page",
    "agentgym_envs.core": "environments and tasks, and how they are made and registered",
    "agentgym_envs.episodes": "episodes, policies, and playing them",
    "agentgym_envs.pool": "many environments at once",
    "agentgym_envs.agents.agent": "agents: a reply format and a scaffold",
    "agentgym_envs.agents.prompts": "prompts: system messages from files and functions",
    "agentgym_envs.checks.contract": "checks of the environment contract",
    "agentgym_envs.checks.difficulty": "success of random actions and of the oracle by difficulty",
    "agentgym_envs.checks.speed": "resets and steps per second",
    "agentgym_envs.episodes.conversation": "conversations, and those of recorded episodes",
    "agentgym_envs.agents.formats": "reply formats",
    "agentgym_envs.adapters.numeric": "numeric actions and observations, for agents that aren't language models",
    "agentgym_envs.retrieval": "retrieval for SearchQA",
    "agentgym_envs.server.settings": "flags of `serve`",
    "agentgym_eval": "all names of the package, by page",
    "agentgym_eval.api": "evaluating, collecting, comparing and reading runs from Python",
    "agentgym_eval.runs.settings": "flags of `evaluate` and `collect`",
    "agentgym_eval.runs.comparison_settings": "flags of `compare`",
    "agentgym_eval.policies.endpoint.settings": "flags for models behind an endpoint",
    "agentgym_eval.policies.harness": "flags for agents of other programs",
    "agentgym_eval.policies.policies": "policies without a model, and finding policies by name",
    "agentgym_eval.metrics.summary": "metrics of episodes",
    "agentgym_eval.metrics.comparison": "comparisons of two runs on the same tasks",
    "agentgym_eval.metrics.failure_causes": "why episodes failed",
    "agentgym_eval.metrics.intervals": "confidence intervals",
    "agentgym_eval.metrics.pass_at_k": "pass@k and pass^k",
    "agentgym_eval.reports.files": "report files",
    "agentgym_eval.reports.evaluated": "evaluated runs, as reports name them",
    "agentgym_eval.data.formats": "episodes in other formats",
    "agentgym_eval.cli.view": "flags of `view`",
    "agentgym_eval.util.errors": "errors",
    "agentgym_trainer": "all names of the package, by page",
    "agentgym_trainer.api": "training from Python",
    "agentgym_trainer.config": "flags of `train`",
    "agentgym_trainer.recipes": "recipes of `train`",
    "agentgym_trainer.curriculum.horizon": "horizon schedules",
    "agentgym_trainer.curriculum.task_sampler": "task samplers",
    "agentgym_trainer.reward_shaping": "reward shaping",
    "agentgym_trainer.models.scratch": "models from scratch",
    "agentgym_trainer.algorithms": "algorithms",
    "agentgym_trainer.engines.base": "the engine protocol",
    "agentgym_trainer.engines.factory": "engines by name, and what they are given",
    "agentgym_trainer.gateway.harness": "harnesses: agents of other programs that are trained",
    "agentgym_trainer.gateway.server": "the OpenAI-compatible server that records what it samples",
    "agentgym_trainer.tokens.trajectory": "trajectories: episodes as tokens",
}
SHARED = ("agentgym_envs.core", "agentgym_envs.episodes", "agentgym_envs.pool")
"""Subpackages whose page has what the package exports of them, unless a module of theirs has a page of its own."""
Known = griffe.Object | griffe.Alias


def main() -> int:
    """Write the pages, or check them."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--check", action="store_true", help="write nothing; fail where a page is out of date")
    check = parser.parse_args().check
    logging.getLogger("griffe").setLevel(logging.ERROR)
    pages = render()
    stale = [name for name, text in pages.items() if not same(FOLDER / name, text)]
    gone = sorted(path.name for path in FOLDER.glob("*.md") if path.name not in pages)
    if check:
        again = "write them anew with: uv run scripts/make_reference.py"
        print(f"Out of date: {', '.join(stale + gone)}; {again}" if stale or gone else f"{len(pages)} pages up to date")
        return int(bool(stale or gone))
    FOLDER.mkdir(parents=True, exist_ok=True)
    for name in gone:
        (FOLDER / name).unlink()
    for name in stale:
        (FOLDER / name).write_text(pages[name], encoding="utf-8")
    print(f"{len(pages)} pages in docs/reference, {len(stale)} written, {len(gone)} removed")
    return 0


def same(path: Path, text: str) -> bool:
    """Return whether the file exists and has this text."""
    return path.is_file() and path.read_text(encoding="utf-8") == text


def render() -> dict[str, str]:
    """Return all pages by file name."""
    paths = [str(package / "src") for package in sorted((ROOT / "packages").iterdir())]
    loader = griffe.GriffeLoader(search_paths=paths)
    for package in dict.fromkeys(name.partition(".")[0] for name in PAGES):
        loader.load(package)
    loader.resolve_aliases(implicit=True, external=False)
    pages = {f"{name}.md": formatted(module_page(name, loader.modules_collection[name])) for name in PAGES}
    rows = [f"| [`{name}`]({name}.md) | {about} |" for name, about in PAGES.items()]
    listing = ["# Reference", "", NOTE, "", "| module | holds |", "|---|---|", *rows, ""]
    return {"README.md": "\n".join(listing), **pages}


NOTE = (
    "Made from the docstrings by `scripts/make_reference.py`. Where a class is a command's settings, its fields are "
    "the flags."
)


def formatted(page: str) -> str:
    """Return the page as formatted by `ruff format`, which also formats code in Markdown."""
    call = [sys.executable, "-m", "ruff", "format", "--stdin-filename", "page.md", "-"]
    return subprocess.run(call, cwd=ROOT, input=page, capture_output=True, text=True, check=True).stdout


def module_page(name: str, module: griffe.Module) -> str:
    """Return the page of a module."""
    lines = [f"# {name}", "", *prose(module)]
    if "." not in name:
        return "\n".join([*lines, *index(name, module)]).rstrip() + "\n"
    members = list(public(module))
    if name in SHARED:
        package = module.package
        members = [(label, found) for label, found in public(package) if home(label, found) == name]
    for title, kind in (
        ("Classes", "class"),
        ("Functions", "function"),
        ("Values", "attribute"),
        ("Types", "type alias"),
    ):
        chosen = [(label, member) for label, member in members if member.kind.value == kind]
        if chosen:
            lines += [f"## {title}", ""]
        for label, member in chosen:
            lines += WRITERS[kind](label, member)
    return "\n".join(lines).rstrip() + "\n"


def index(name: str, module: griffe.Module) -> Iterator[str]:
    """Yield the tables of a package's names, with links to their sections."""
    members = [(label, found, home(label, found)) for label, found in public(module)]
    for page in (page for page in PAGES if page.startswith(f"{name}.")):
        rows = [
            f"| [`{label}`]({page}.md#{label.lower()}) | {summary(found)} |"
            for label, found, its_page in members
            if its_page == page
        ]
        if rows:
            yield from (f"## {PAGES[page][0].upper()}{PAGES[page][1:]}", "")
            yield from (f"On the page [`{page}`]({page}.md):", "", "| name | is |", "|---|---|", *rows, "")


def home(label: str, found: Known) -> str:
    """Return the page with the section of an object that a package exports: one of a module, or else a shared one."""
    modules = [page for page in PAGES if page.startswith(f"{found.package.name}.") and page not in SHARED]
    for page in modules:
        if any(each is found for name, each in public(found.modules_collection[page]) if name == label):
            return page
    for page in SHARED:
        if found.path.startswith(f"{page}."):
            return page
    raise ValueError(f"{found.path} is public, but no page has it: add its module to PAGES.")


def summary(found: Known) -> str:
    """Return the first sentence of a docstring, for a table cell."""
    text = " ".join(found.docstring.value.partition("\n\n")[0].split()) if found.docstring else ""
    return re.split(r"(?<=[.!?]) (?=[A-Z`])", text)[0].replace("|", "\\|")


def public(module: griffe.Module) -> Iterator[tuple[str, Known]]:
    """Yield the public names of a module with their objects, in alphabetical order."""
    named = module.exports if module.exports is not None else module.members
    for label in sorted(map(str, named), key=str.lower):
        if label.startswith("_") or (module.exports is None and label in module.imports):
            continue
        # Look up the import first: a submodule of the same name would hide the imported object.
        path = module.imports.get(label)
        found = module.modules_collection[path] if path else module.members[label]
        found = found.final_target if isinstance(found, griffe.Alias) else found
        if not found.is_module:
            yield label, found


def class_lines(label: str, found: Known) -> list[str]:
    """Return the section of a class: docstring, fields and methods."""
    lines = [f"### {label}", "", *code(head(label, found)), *prose(found)]
    members = [(name, member) for name, member in own(found).items() if not name.startswith("_")]
    fields = [
        (name, member) for name, member in members if member.is_attribute and (member.annotation or member.docstring)
    ]
    if fields:
        lines += ["| field | type | default | |", "|---|---|---|---|", *(field(*each) for each in fields), ""]
    for name, member in members:
        if member.is_function and not {"property.setter"} & set(member.labels):
            lines += function_lines(f"{label}.{name}", member, level=4)
    return lines


def head(label: str, found: Known) -> str:
    """Return the declaration of a class, with `__init__` if it isn't a dataclass."""
    bases = [str(base) for base in found.bases if not str(base).startswith(("Protocol", "Generic", "ABC", "_"))]
    of = f"({', '.join(bases)})" if bases else ""
    marks = "".join(f"@{mark.value}\n" for mark in found.decorators)
    if "dataclass" in found.labels or "__init__" not in found.members:
        return f"{marks}class {label}{of}: ..."
    made = signature("__init__", found.members["__init__"]).replace("\n", "\n    ")
    return f"{marks}class {label}{of}:\n    {made}"


def own(found: Known) -> dict[str, Known]:
    """Return the members of a class and of its private bases, which have no section of their own."""
    members: dict[str, Known] = {}
    for base in reversed(found.mro()):
        if base.name.startswith("_"):
            members |= base.members
    return members | found.members


def field(name: str, member: Known) -> str:
    """Return the table row of a field, property or class attribute."""
    about = " ".join(member.docstring.value.split()) if member.docstring else ""
    what = cell(str(member.annotation or ""))
    default = cell("" if "property" in member.labels else str(member.value or ""))
    return f"| `{name}` | {what} | {default} | {about.replace('|', chr(92) + '|')} |"


def cell(text: str) -> str:
    """Return code for a table cell; an ellipsis if it is longer than 120 characters."""
    text = " ".join(text.split()).replace("|", "\\|")
    return f"`{text}`" if text and len(text) <= 120 else "…" if text else ""


def function_lines(label: str, found: Known, level: int = 3) -> list[str]:
    """Return the section of a function: signature and docstring."""
    if found.docstring is None and level > 3:  # a method documented in the base class
        return []
    return [f"{'#' * level} {label}", "", *code(signature(label.rpartition(".")[2], found)), *prose(found)]


def signature(name: str, function: Known) -> str:
    """Return the signature of a function, with one parameter per line if it is long."""
    shown, star = [], False
    for parameter in function.parameters:
        kind = parameter.kind
        if kind is griffe.ParameterKind.var_positional:
            star = True
        elif kind is griffe.ParameterKind.keyword_only and not star:
            shown.append("*")
            star = True
        stars = {griffe.ParameterKind.var_positional: "*", griffe.ParameterKind.var_keyword: "**"}.get(kind, "")
        typed = f": {parameter.annotation}" if parameter.annotation else ""
        given = parameter.default if not stars else None
        default = "" if given is None else f" = {given}" if typed else f"={given}"
        shown.append(f"{stars}{parameter.name}{typed}{default}")
    returns = f" -> {function.returns}" if function.returns else ""
    marks = "".join(f"@{mark}\n" for mark in ("classmethod", "staticmethod") if mark in function.labels)
    start = f"{marks}async def" if "async" in function.labels else f"{marks}def"
    line = f"{start} {name}({', '.join(shown)}){returns}: ..."
    if len(line) - len(marks) <= WIDTH or not shown:
        return line
    return "\n".join([f"{start} {name}(", *(f"    {each}," for each in shown), f"){returns}: ..."])


def value_lines(label: str, found: Known) -> list[str]:
    """Return the section of a value; long values are left out."""
    of = str(found.value or "")
    shown = (
        f"{label} = {of}" if of and len(of) <= WIDTH else f"{label}: {found.annotation}" if found.annotation else label
    )
    return [f"### {label}", "", *code(shown), *prose(found)]


def prose(found: Known) -> list[str]:
    """Return a docstring as Markdown, with arguments and errors as lists."""
    if found.docstring is None:
        return []
    lines: list[str] = []
    for section in found.docstring.parse("google", warnings=False):
        if section.kind is griffe.DocstringSectionKind.text:
            lines += [*section.value.splitlines(), ""]
        elif section.kind is griffe.DocstringSectionKind.raises:
            lines += ["Raises:", "", *(item(str(each.annotation), each.description) for each in section.value), ""]
        elif section.kind in (griffe.DocstringSectionKind.parameters, griffe.DocstringSectionKind.attributes):
            lines += [*(item(each.name, each.description) for each in section.value), ""]
        elif section.kind in (griffe.DocstringSectionKind.returns, griffe.DocstringSectionKind.yields):
            lines += ["Returns: " + " ".join(" ".join(each.description.split()) for each in section.value), ""]
        elif section.kind is griffe.DocstringSectionKind.admonition:
            lines += [f"{section.title or ''}: {section.value.description}".strip(), ""]
        else:
            raise ValueError(
                f"{found.path}: a section {section.kind.value!r} of its docstring would be lost; write it here."
            )
    return lines


def item(name: str, text: str) -> str:
    """Return a list item."""
    return f"- `{name}`: {' '.join(text.split())}"


def code(text: str) -> list[str]:
    """Return a code block that is highlighted, but not run by the tests of the documentation."""
    return ["```pyi", text, "```", ""]


WRITERS = {"class": class_lines, "function": function_lines, "attribute": value_lines, "type alias": value_lines}


if __name__ == "__main__":
    sys.exit(main())
