"""Tests of the documentation: its Python code runs, its commands and flags exist, its links have targets."""

from __future__ import annotations

import inspect
import json
import re
import shlex
import subprocess
import textwrap
import tomllib
from collections.abc import Callable, Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

import gymnasium
import pytest
from agentgym_envs import WORLDS, TextEnv, make, text_env
from agentgym_envs.cli import check as check_cli
from agentgym_envs.cli import main as envs_cli
from agentgym_eval.cli import convert as data_cli
from agentgym_eval.cli import main as eval_cli
from agentgym_eval.cli import view as viewer_cli
from agentgym_trainer import cli as train_cli
from agentgym_trainer.algorithms import ADVANTAGES, PRESETS
from agentgym_trainer.config import OfflineConfig, RLConfig
from agentgym_trainer.curriculum.horizon import AdaptiveHorizon, by_kind
from agentgym_trainer.recipes import RECIPES
from agentgym_trainer.run.folder import RunFolder
from agentgym_trainer.trainers.rl_loop import RLLoop
from documents import DOCUMENTS, ROOT, blocks, command_lines, name_of, prose, register, write_files

PACKAGES = sorted((ROOT / "packages").iterdir())
every_document = pytest.mark.parametrize("document", DOCUMENTS, ids=name_of)


@pytest.fixture
def workspace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty working folder on the import path. Environments registered from it are removed afterwards."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield tmp_path
    modules = tuple(path.stem for path in tmp_path.iterdir())
    for spec in list(gymnasium.registry.values()):
        if str(spec.entry_point).startswith(modules):
            del gymnasium.registry[spec.id]


@pytest.mark.long
@every_document
def test_python_code_of_the_document_runs(
    document: Path, workspace: Path, requires_world: Callable[[str], None]
) -> None:
    write_files(document, workspace)
    python = "".join(block.body for block in blocks(document) if block.language == "python" and not block.file)
    for world in WORLDS:
        if world.id in python:
            requires_world(world.id)
    namespace: dict[str, Any] = {"__name__": "__main__"}
    for block in blocks(document):
        if block.language == "python" and not block.file:
            lines_before = "\n" * block.line  # so that tracebacks have the document's line number
            exec(compile(lines_before + block.body, str(document), "exec"), namespace)


# Commands.

OUR_COMMANDS = {
    "evaluate": eval_cli,
    "collect": eval_cli,
    "compare": eval_cli,
    "convert": data_cli,
    "serve": envs_cli,
    "searchqa-index": envs_cli,
    "install-browser": envs_cli,
    "view": viewer_cli,
    "train": train_cli,
}
# Possible prefixes of a command: uv with an extra, `agentgym` outside a checkout, and accelerate's launcher, which runs
# `train` as a module.
_UV = re.compile(r"^(uv run (--extra \S+ )?|agentgym (?=[a-z]))")
_LAUNCHER = re.compile(r"^accelerate launch .*-m agentgym_trainer")


def our_commands() -> list[tuple[str, tuple[str, ...], Path]]:
    """Return each command with a document that contains it."""
    lines = [(_LAUNCHER.sub("train", _UV.sub("", line)), path) for path in DOCUMENTS for line in command_lines(path)]
    parsed = [(shlex.split(line, comments=True), path) for line, path in lines]
    commands = {(words[0], tuple(words[1:])): path for words, path in parsed if words and words[0] in OUR_COMMANDS}
    return sorted((*command, path) for command, path in commands.items())


every_command = pytest.mark.parametrize(
    ("command", "arguments", "document"),
    our_commands(),
    ids=lambda part: part if isinstance(part, str) else name_of(part) if isinstance(part, Path) else " ".join(part),
)


@every_command
def test_command_and_flags_are_valid(
    command: str, arguments: tuple[str, ...], document: Path, monkeypatch: pytest.MonkeyPatch, workspace: Path
) -> None:
    module = OUR_COMMANDS[command]
    write_files(document, workspace)
    register(workspace)
    try:
        if command == "train":
            if "--like" in arguments:  # a run of an earlier command
                run = Path(arguments[arguments.index("--like") + 1])
                RunFolder.create(run, RECIPES["quickstart"].config, "quickstart")
            train_cli._parse(arguments)
            return
        if command == "view":
            Path(next(word for word in arguments if word != "--help")).mkdir(parents=True)
        if "--like" in arguments:
            run = Path(arguments[arguments.index("--like") + 1])
            run.mkdir(parents=True)
            record = {"schema": "agentgym.run/1", "settings": {"env": "textcraft", "policy": "oracle"}}
            (run / "run.json").write_text(json.dumps(record), encoding="utf-8")
        function = command.replace("-", "_")
        monkeypatch.setattr(module, {"searchqa_index": "_index"}.get(function, f"_{function}"), lambda *_: 0)
        assert getattr(module, function)(arguments) == 0
    except SystemExit as end:
        assert {"--help", "--help-all"} & {*arguments}
        assert not end.code


FLAGS_OF_OTHERS = {"--extra", "--frozen", "--locked", "--upgrade"}  # uv
FLAGS_OF_OTHERS |= {"--version"}  # a flag of every command that its help doesn't list
FLAGS_OF_OTHERS |= {"--machine_rank", "--num_processes"}  # accelerate launch
FLAGS_OF_OTHERS |= {"--dtype", "--enable-lora", "--enforce-eager", "--max-lora-rank"}  # vllm serve
FLAGS_OF_OTHERS |= {"--api-server-count", "--data-parallel-size", "--tensor-parallel-size", "--weight-transfer-config"}
FLAGS_OF_OTHERS |= {"--gpus"}  # benchmarks/gpu/first_hour.py


def one_of_each_kind() -> list[str]:
    """Return a recipe for each kind of training run, since each kind has its own flags."""
    return list({type(recipe.config): name for name, recipe in RECIPES.items()}.values())


@pytest.fixture
def flags(capsys: pytest.CaptureFixture[str]) -> set[str]:
    for show in (
        lambda: train_cli._parse(["textcraft-grpo", "--reward", "per-turn", "--help-all"]),
        lambda: train_cli._parse(["textcraft-scaling", "--algorithm", "ppo", "--help-all"]),
        lambda: train_cli._parse(["mixture", "--algorithm", "gigpo", "--horizon", "adaptive", "--help-all"]),
        lambda: train_cli._parse(["textcraft-scaling", "--algorithm", "hgpo", "--horizon", "backward", "--help-all"]),
        lambda: train_cli._parse(["textcraft-scaling", "--algorithm", "graphgpo", "--help-all"]),
        *(lambda recipe=recipe: train_cli._parse([recipe, "--help-all"]) for recipe in one_of_each_kind()),
        lambda: eval_cli.evaluate(["--help-all"]),
        lambda: eval_cli.collect(["--help-all"]),
        lambda: eval_cli.compare(["--help"]),
        lambda: viewer_cli.view(["--help"]),
        lambda: data_cli.convert(["--help-all"]),
        lambda: check_cli.main(["--help"]),
        lambda: envs_cli.serve(["--help-all"]),
        lambda: envs_cli.searchqa_index(["--help"]),
        lambda: envs_cli.install_browser(["--help"]),
    ):
        with pytest.raises(SystemExit):
            show()
    return set(re.findall(r"--[a-z][a-z0-9.-]*", capsys.readouterr().out))


def test_flags_mentioned_in_prose_exist(flags: set[str]) -> None:
    assert {"--policy", "--horizon.turns", "--horizon.stages", "--keep"} <= flags
    for document in DOCUMENTS:
        mentioned = {code.split()[0] for code in re.findall(r"`(--[^`\n]+)`", prose(document))}
        assert mentioned <= flags | FLAGS_OF_OTHERS, document


@every_document
def test_scripts_of_the_document_exist(document: Path) -> None:
    for line in command_lines(document):
        assert all((ROOT / word).is_file() for word in line.split() if word.endswith((".py", ".yaml"))), line


# Links.

_LINK = re.compile(r"\]\(([^)\s]+)\)")


def anchors(document: Path) -> set[str]:
    headings = re.findall(r"^#+ (.+)$", prose(document), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


@every_document
def test_links_of_the_document_have_targets(document: Path) -> None:
    for link in _LINK.findall(prose(document)):
        path, _, anchor = link.partition("#")
        if "://" in path:
            continue
        # Package indexes show the READMEs of packages without the rest of the repository.
        assert document.parent.parent.name != "packages", f"{link}: a package's README can't link into the repository"
        target = document if not path else (document.parent / path).resolve()
        assert target.exists(), link
        assert not anchor or anchor in anchors(target), link


# Claims of the documentation.


def test_documented_task_counts_match_the_task_sets() -> None:
    text = (ROOT / "docs/worlds.md").read_text(encoding="utf-8")
    for world in WORLDS:
        tasks = text_env(make(world.id)).tasks
        (row,) = re.findall(rf"^\| `{world.id}` \|.*$", text, re.MULTILINE)
        assert f"| {len(tasks.train):,} | {len(tasks.dev):,} | {len(tasks.test):,} |" in row
        assert f"| {world.max_episode_steps} |" in row


def test_every_recipe_and_algorithm_is_documented() -> None:
    text = (ROOT / "docs/training.md").read_text(encoding="utf-8")
    rows = {name: row for row, name in re.findall(r"^(\| `([\w+-]+)` \|.*)$", text, re.MULTILINE)}
    assert rows.keys() >= PRESETS.keys() | RECIPES.keys()
    for name, recipe in RECIPES.items():
        config = recipe.config
        adaptive = by_kind(config.horizon)["adaptive"]
        assert isinstance(adaptive, AdaptiveHorizon)
        turns = ", ".join(map(str, adaptive.stages))
        assert f"| {turns}" in rows[name]
        match config:
            case RLConfig():
                assert f"| {config.tasks_per_step} x {config.group_size} | {config.steps} |" in rows[name]
            case OfflineConfig():
                assert f"| {config.data.episodes:,} |" in rows[name]
            case _:
                pass


def test_how_tos_name_every_hook_of_environments_and_estimators() -> None:
    world, algorithm = ((ROOT / f"docs/howto/add-{what}.md").read_text("utf-8") for what in ("a-world", "an-algorithm"))
    hooks = {name for name, value in vars(TextEnv).items() if getattr(value, "__isabstractmethod__", False)}
    assert len(hooks) == 6
    hooks |= {"_available_actions", "_raw", "scene"}
    assert {name for name in hooks if f"`{name}`" not in world} == set()
    kinds = [type(estimator) for estimator in ADVANTAGES.values()]
    public = [{name for name in vars(kind) if not name.startswith("_")} for kind in kinds]
    parts = set.intersection(*public) - {f.name for kind in kinds for f in fields(kind)}
    assert parts >= {"estimate"}
    assert {name for name in parts if f"`{name}`" not in algorithm} == set()
    assert "docs/howto/add-a-world.md" in (TextEnv.__doc__ or "")


_ARXIV = re.compile(r"(?<![\d.])\d{4}\.\d{5}(?!\d)")


def test_the_papers_page_has_exactly_the_papers_cited_in_the_code() -> None:
    text = (ROOT / "docs/papers.md").read_text(encoding="utf-8")
    sources = [path for package in PACKAGES for path in (package / "src").rglob("*.py")]
    cited = {
        number for path in sources for number in _ARXIV.findall(path.read_text("utf-8")) if path.parent.name != "code"
    }
    assert len(cited) > 30
    assert cited == set(_ARXIV.findall(text))
    for module in re.findall(r"`(agentgym_[\w/.]+)`", text):
        assert any((package / "src" / module).exists() for package in PACKAGES), module


def project(package: Path) -> dict[str, Any]:
    return tomllib.loads((package / "pyproject.toml").read_text(encoding="utf-8"))["project"]


@pytest.mark.parametrize("package", PACKAGES, ids=lambda package: package.name)
def test_packages_have_license_changelog_and_documented_commands(package: Path) -> None:
    (source,) = (package / "src").iterdir()
    assert (source / "py.typed").is_file()
    assert (package / "LICENSE").read_bytes() == (ROOT / "LICENSE").read_bytes()
    metadata = project(package)
    changelog = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    assert f"## [{metadata['version']}]" in changelog
    documentation = (ROOT / "docs/README.md").read_text(encoding="utf-8")
    assert all(f"| `uv run {command}" in documentation for command in metadata.get("scripts", {}))


def test_the_readme_is_short_with_one_picture() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert {"uv run train", "uv run pytest"} <= set(text.splitlines())
    assert len(re.findall(r"^!\[", text, re.MULTILINE)) == 1
    assert len(text.splitlines()) <= 50
    assert max(map(len, text.splitlines())) <= 100


# Split, so that this file doesn't match its own patterns.
HOSTS = ("py" + "pi.org", "python" + "hosted.org", "deb." + "debian.org", "registry." + "npmjs.org")
PLACES = ("/wo" + "rk/", "/ro" + "ot/", "/opt/" + "pypi", "/opt/" + "wheels", "/home/" + "[a-z]")


def test_committed_files_have_no_registry_hosts_or_local_paths() -> None:
    pattern = "|".join([*(host.replace(".", r"\.") for host in HOSTS), *PLACES])
    grep = ["git", "grep", "--cached", "-nIE", pattern]
    result = subprocess.run(grep, cwd=ROOT, capture_output=True, text=True, check=False)
    if result.returncode == 128:
        pytest.skip("This isn't a git checkout, so nothing is committed: clone the repository to check it.")
    assert result.stdout == ""
    assert result.returncode == 1


def test_the_search_for_hosts_and_paths_finds_them(tmp_path: Path) -> None:
    (tmp_path / "lock").write_text(f"https://{HOSTS[0]}/simple\n{PLACES[0]}main\n")
    pattern = "|".join([*HOSTS, *PLACES])
    grep = ["git", "grep", "--no-index", "-cE", pattern]
    result = subprocess.run(grep, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert result.stdout == "lock:2\n"


def test_the_training_page_quotes_the_step_function() -> None:
    source = textwrap.dedent(inspect.getsource(RLLoop.step)).strip()
    assert f"```python\n{source}\n```" in (ROOT / "docs/training.md").read_text(encoding="utf-8")
