"""Tests of the wheels of the three packages, each installed alone in an empty virtual environment, for every supported
version of Python that this machine has.

Their dependencies come from uv's cache or the registry, in the versions that are installed here. uv finds a Python that
is on PATH, that pyenv has, or that it has installed; `uv python install 3.13` adds one.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Mapping
from configparser import ConfigParser
from email import message_from_string
from pathlib import Path
from zipfile import ZipFile

import pytest
from documents import ROOT, blocks

pytestmark = pytest.mark.long

UV = [shutil.which("uv")] if shutil.which("uv") else [sys.executable, "-m", "uv"]
PACKAGES = ("agentgym-envs", "agentgym-eval", "agentgym-trainer")
OWN = f"{sys.version_info.major}.{sys.version_info.minor}"
VERSIONS = ("3.11", "3.12", "3.13")
every_python = pytest.mark.parametrize("python", VERSIONS)


def run(*command: object, cwd: Path, errors: int = subprocess.PIPE, variables: Mapping[str, str] | None = None) -> str:
    """Run a command without environment variables of this repository and with others, and return its output."""
    ours = ("PYTHONPATH", "VIRTUAL_ENV", "UV_PROJECT_ENVIRONMENT")
    env = {name: value for name, value in os.environ.items() if name not in ours} | dict(variables or {})
    call, out = list(map(str, command)), subprocess.PIPE
    result = subprocess.run(call, cwd=cwd, env=env, stdout=out, stderr=errors, text=True, check=False)
    assert result.returncode == 0, f"{result.stdout}{result.stderr or ''}"
    return result.stdout


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the wheels, and the versions of all installed packages."""
    folder = tmp_path_factory.mktemp("wheels")
    run(*UV, "build", "--quiet", "--all-packages", "--wheel", "--out-dir", folder, cwd=ROOT)
    frozen = run(*UV, "pip", "freeze", "--python", sys.executable, "--exclude-editable", cwd=ROOT)
    (folder / "versions.txt").write_text(frozen)
    return folder


def interpreter(version: str, folder: Path) -> str:
    """Return the Python of a version, or skip the test if there is none."""
    if version == OWN:
        return sys.executable
    find = [*UV, "python", "find", "--system", "--no-project", "--no-python-downloads", version]
    # pyenv puts commands of all versions on PATH, of which only those of the chosen version work.
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"))
    path = [*map(str, pyenv.glob(f"versions/{version}.*/bin")), os.environ["PATH"]]
    variables = {**os.environ, "PATH": os.pathsep.join(path)}
    found = subprocess.run(find, cwd=folder, capture_output=True, text=True, check=False, env=variables)
    if found.returncode:
        pytest.skip(f"There is no Python {version}; uv python install {version} installs one.")
    return found.stdout.strip()


def installed(package: str, wheels: Path, folder: Path, python: str) -> Path:
    """Return the `bin` folder of a new virtual environment for a version of Python, with `package` alone."""
    run(*UV, "venv", "--quiet", "--python", interpreter(python, folder), folder / "env", cwd=folder)
    bin_ = folder / "env" / "bin"
    command = ["pip", "install", "--quiet", "--python", bin_ / "python", "--find-links", wheels]
    run(*UV, *command, "--constraints", wheels / "versions.txt", package, cwd=folder)
    return bin_


def entry_points_of(wheel: Path) -> ConfigParser:
    declared = ConfigParser()
    with ZipFile(wheel) as archive:
        for name in archive.namelist():
            if name.endswith(".dist-info/entry_points.txt"):
                declared.read_string(archive.read(name).decode())
    return declared


def run_python(bin_: Path, code: str) -> list[str]:
    return run(bin_ / "python", "-c", code, cwd=bin_.parent.parent).splitlines()


@pytest.mark.parametrize("package", PACKAGES)
def test_the_wheel_contains_all_source_files(package: str, wheels: Path) -> None:
    (wheel,) = wheels.glob(f"{package.replace('-', '_')}-*.whl")
    source = ROOT / "packages" / package / "src"
    tracked = subprocess.run(["git", "ls-files", "."], cwd=source, capture_output=True, text=True, check=False)
    if tracked.returncode:
        pytest.skip("This isn't a git checkout; clone the repository to check it.")
    names = set(ZipFile(wheel).namelist())
    files = {name for name in tracked.stdout.splitlines() if (source / name).exists()}
    assert files
    assert files - names == set()
    assert any(name.endswith(".dist-info/licenses/LICENSE") for name in names)
    assert not [name for name in names if "/tests/" in name or name.endswith(".pyc")]


@pytest.mark.parametrize("package", PACKAGES)
def test_the_wheel_has_complete_metadata(package: str, wheels: Path) -> None:
    (wheel,) = wheels.glob(f"{package.replace('-', '_')}-*.whl")
    with ZipFile(wheel) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        metadata = message_from_string(archive.read(name).decode())
    assert (metadata["Author"], metadata["License-Expression"]) == ("AgentGym developers", "Apache-2.0")
    assert len(metadata["Keywords"].split(",")) > 4
    supported = {f"Programming Language :: Python :: {version}" for version in VERSIONS}
    assert {name for name in metadata.get_all("Classifier", []) if "Python :: 3." in name} == supported
    assert metadata["Summary"] and metadata.get_payload()
    own_requirements = {
        requirement
        for requirement in metadata.get_all("Requires-Dist", [])
        if requirement.startswith("agentgym-") and "[" not in requirement
    }
    assert own_requirements == {f"{other}=={metadata['Version']}" for other in PACKAGES[: PACKAGES.index(package)]}


def test_agentgym_is_the_only_program(wheels: Path) -> None:
    """Other names would replace programs of the system: `view` is vim's, `convert` is ImageMagick's."""
    declared = [
        point
        for package in PACKAGES
        for wheel in wheels.glob(f"{package.replace('-', '_')}-*.whl")
        if entry_points_of(wheel).has_section("console_scripts")
        for point in entry_points_of(wheel).items("console_scripts")
    ]
    assert declared == [("agentgym", "agentgym_envs.cli.agentgym:main")]


def test_the_workspace_contains_nothing_and_is_not_for_upload(wheels: Path) -> None:
    (wheel,) = wheels.glob("agentgym_workspace-*.whl")
    with ZipFile(wheel) as archive:
        assert all(".dist-info/" in name for name in archive.namelist())
        (metadata,) = (name for name in archive.namelist() if name.endswith("/METADATA"))
        assert "\nClassifier: Private :: Do Not Upload\n" in archive.read(metadata).decode()


PLAY = """
import sys, importlib.util, agentgym_envs, gymnasium
env = gymnasium.make("agentgym/TextCraft-v0")
observation, info = env.reset(seed=0, options={"split": "test"})
assert env.unwrapped.instructions and env.unwrapped.functions
while not info["success"]:
    *_, info = env.step(env.unwrapped.oracle())
print(info["score"], "{}.{}".format(*sys.version_info))
print(*[name for name in ("torch", "transformers", "agentgym_eval") if importlib.util.find_spec(name)])
try:
    gymnasium.make("agentgym/BabyAI-v0")
except gymnasium.error.DependencyNotInstalled as error:
    print(error)
"""


@every_python
def test_environments_run_without_eval_and_trainer(python: str, wheels: Path, tmp_path: Path) -> None:
    score, heavy, missing = run_python(installed("agentgym-envs", wheels, tmp_path, python), PLAY)
    assert (score, heavy) == (f"1.0 {python}", "")
    assert "uv pip install 'agentgym-envs[babyai]'" in missing


@every_python
def test_the_extra_all_has_the_dependencies_of_all_environments(python: str, wheels: Path, tmp_path: Path) -> None:
    bin_ = installed("agentgym-envs[all]", wheels, tmp_path, python)
    lines = run_python(
        bin_,
        "import importlib.util\nfrom agentgym_envs import WORLDS, make, text_env\nfor world in WORLDS:\n"
        "    env = text_env(make(world.id))\n    print(world.id, len(env.tasks.test), bool(env.instructions))\n"
        "print(importlib.util.find_spec('torch'))",
    )
    assert len(lines) == 6
    assert all(line.endswith("True") for line in lines[:5])
    assert lines[-1] == "None"
    assert "--port" in run(bin_ / "agentgym", "serve", "--help", cwd=tmp_path)


@every_python
def test_evaluation_runs_without_torch(python: str, wheels: Path, tmp_path: Path) -> None:
    bin_ = installed("agentgym-eval", wheels, tmp_path, python)
    flags = ["--env", "textcraft", "--policy", "oracle", "--tasks", "2", "--out", "run"]
    assert "view them with: agentgym view run" in run(bin_ / "agentgym", "evaluate", *flags, cwd=tmp_path)
    assert len((tmp_path / "run" / "episodes.jsonl").read_text().splitlines()) == 2
    assert run_python(bin_, "import importlib.util; print(importlib.util.find_spec('torch'))") == ["None"]
    for command in ("view", "compare", "collect", "convert"):
        assert f"usage: agentgym {command} " in run(bin_ / "agentgym", command, "--help", cwd=tmp_path)


@pytest.mark.parametrize("python", dict.fromkeys([OWN, VERSIONS[-1]]))
def test_the_trainer_imports_and_builds_a_model(python: str, wheels: Path, tmp_path: Path) -> None:
    bin_ = installed("agentgym-trainer", wheels, tmp_path, python)
    shown = run(bin_ / "agentgym", "train", "--help", cwd=tmp_path)
    assert "usage: agentgym train " in shown and "textcraft-grpo" in shown
    code = "from agentgym_trainer.models.scratch import Scratch, build_model\n"
    code += "model = build_model(Scratch(hidden=32, layers=1, heads=2), vocab=300, end_id=2, pad_id=0, seed=0)\n"
    assert run_python(bin_, code + "import agentgym_trainer.trainers.rl; print(type(model).__name__)") == [
        "Qwen3ForCausalLM"
    ]


SESSION = ROOT / "docs/ten-commands.md"


def shown_outputs() -> list[tuple[str, str]]:
    """Return the commands of the recorded session with what they printed."""
    (block,) = (block for block in blocks(SESSION) if block.language == "console")
    return outputs(block.body)


def outputs(session: str) -> list[tuple[str, str]]:
    """Return the commands of a session, which follow `$`, with what they printed."""
    parts = re.split(r"^\$ (.*)\n", session, flags=re.MULTILINE)[1:]
    return list(zip(parts[::2], parts[1::2], strict=True))


def words(output: str) -> Counter[str]:
    """Return the words of an output, whose lines are as wide as the terminal, without what differs between machines."""
    output = re.sub(r"\bin [\d.]+ s\b", "in N s", output)
    output = re.sub(r"[\d.]+ on \w+ \w+", "PYTHON on MACHINE", output)
    return Counter(output.replace("─", "").split())


def test_the_recorded_session_is_repeated(wheels: Path, tmp_path: Path) -> None:
    """All commands in one shell, with this version of Python, and with versions of the dependencies that are tested."""
    session = shown_outputs()
    commands = [command for command, _ in session]
    assert commands[:3] == ["python3 -m venv env", ". env/bin/activate", "pip install agentgym-eval"]
    assert len(commands) == 10
    links = f"{wheels} {os.environ.get('PIP_FIND_LINKS', '')}"
    settings = {"FIND_LINKS": links, "CONSTRAINT": wheels / "versions.txt", "QUIET": 2, "DISABLE_PIP_VERSION_CHECK": 1}
    pip = {f"PIP_{name}": str(value) for name, value in settings.items()}
    path = os.pathsep.join([str(Path(sys.base_prefix, "bin")), os.environ["PATH"]])
    script = "\n".join(f"echo '$ {command}'\n{command}" for command in commands)
    shell = ("bash", "-e", "-o", "pipefail", "-c", script)
    printed = run(*shell, cwd=tmp_path, errors=subprocess.STDOUT, variables=pip | {"PATH": path})
    repeated = outputs(printed)
    assert [command for command, _ in repeated] == commands
    for (command, shown), (_, again) in zip(session, repeated, strict=True):
        assert words(again) == words(shown), command
    assert (tmp_path / "pages/index.html").is_file()
