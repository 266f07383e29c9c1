"""Tests of the command `agentgym list`."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable

import pytest
from agentgym_envs import WORLDS
from agentgym_envs.cli import list_command
from agentgym_envs.cli.agentgym import contributions, main
from agentgym_envs.cli.list_command import GROUP, SECTIONS
from agentgym_envs.core.registry import world_class
from agentgym_envs.util.listing import Listed, Setting
from door_world import Door, registered_env
from gymnasium.error import DependencyNotInstalled

OVEN = Listed(
    "oven:N", "It bakes.", "hot", {"id": "kitchen/Oven-v0", "sizes": {"large": 2000}}, (Setting("heat", 1.5, "°C."),)
)


class Provided:
    """Stands for an entry point."""

    def __init__(self, *entries: Listed) -> None:
        self.load: Callable[[], Callable[[], tuple[Listed, ...]]] = lambda: lambda: entries


@pytest.fixture
def kitchen(monkeypatch: pytest.MonkeyPatch) -> None:
    provided = {"agents": Provided(OVEN, Listed("pan", "It fries.")), "environments": Provided(Listed("sink", "Wet."))}
    monkeypatch.setattr(list_command, "contributions", lambda group: provided)


@pytest.mark.usefixtures("kitchen")
def test_the_overview_has_a_line_for_each_entry_and_names_what_is_not_installed(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["list"]) == 0
    out = capsys.readouterr().out
    assert "  oven:N  It bakes. (hot)\n  pan     It fries.\n" in out
    assert out.index("environments (") < out.index("agents (")
    assert "Not installed: policies, protocols. To install: uv " in out
    assert "Not installed: recipes, algorithms, advantages, " in out


@pytest.mark.usefixtures("kitchen")
@pytest.mark.parametrize("name", ["agents", "oven", "oven:N", "OVEN", "kitchen/oven-v0"])
def test_a_section_or_a_name_is_shown_in_full(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list", name]) == 0
    out = capsys.readouterr().out
    assert "oven:N (agents): It bakes." in out
    assert "  id     kitchen/Oven-v0\n  sizes  2,000 large\n" in out
    assert "    heat=1.5  °C.\n" in out
    assert ("pan (agents)" in out) == (name == "agents")


@pytest.mark.usefixtures("kitchen")
def test_unknown_names_get_a_suggestion(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list", "ovn"]) == 2
    error = capsys.readouterr().err
    assert error == (
        "agentgym list: There is nothing called 'ovn'. Did you mean oven? Sections: environments, agents.\n"
    )
    assert main(["list", "worlds"]) == 2
    assert "Did you mean environments?" in capsys.readouterr().err
    assert main(["list", "recipes"]) == 2
    assert "recipes are part of agentgym-trainer, which isn't installed. Install it: uv " in capsys.readouterr().err
    assert main(["list", "nowhere:mine/World-v0"]) == 2
    assert "The module of the environment nowhere:mine/World-v0 can't be imported" in capsys.readouterr().err


@pytest.mark.usefixtures("kitchen")
def test_json_has_all_facts(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list", "oven", "--json"]) == 0
    (entry,) = json.loads(capsys.readouterr().out)["agents"]
    assert entry["facts"] == {"id": "kitchen/Oven-v0", "sizes": {"large": 2000}}
    assert entry["settings"] == [{"name": "heat", "default": 1.5, "about": "°C."}]


def test_environments_are_listed_with_tasks_and_options(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list", "environments", "--json"]) == 0
    entries = {entry["name"]: entry for entry in json.loads(capsys.readouterr().out)["environments"]}
    assert [entry["facts"]["id"] for entry in entries.values()] == [world.id for world in WORLDS]
    assert entries["textcraft"]["facts"]["tasks"]["test"] > 100
    assert entries["textcraft"]["settings"][0]["name"] == "depth"
    assert entries["textcraft"]["settings"][0]["default"] == [1, 4]


def test_missing_dependencies_are_shown(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def fail(self: object) -> None:
        raise DependencyNotInstalled("There is no abacus. Install one: shop abacus")

    monkeypatch.setattr(world_class("agentgym/TextCraft-v0"), "check_dependencies", fail)
    assert main(["list", "textcraft"]) == 0
    assert re.search("  installed +There is no abacus. Install one: shop abacus\n", capsys.readouterr().out)
    monkeypatch.setattr("agentgym_envs.cli.listings.task_counts", fail)  # as if a package that its module imports lacks
    assert main(["list", "textcraft"]) == 0
    assert "settings" not in capsys.readouterr().out


def test_environments_of_other_packages_are_described(capsys: pytest.CaptureFixture[str]) -> None:
    with registered_env(Door):
        assert main(["list", "door_world:door/Door-v0"]) == 0
    assert re.search("  tasks +6 train, 0 dev, 3 test\n", capsys.readouterr().out)


def test_packages_declare_exactly_the_known_sections() -> None:
    assert contributions(GROUP).keys() == SECTIONS.keys()


def test_listing_imports_no_heavy_packages() -> None:
    code = "import sys\nfrom agentgym_envs.cli.agentgym import main\nmain(['list'])\n"
    code += "print([name for name in ('torch', 'transformers', 'trl', 'accelerate', 'vllm') if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"


def test_a_closed_pipe_ends_the_command_quietly() -> None:
    done = subprocess.run(
        f"{sys.executable} -c 'from agentgym_envs.cli.agentgym import main; main()' list environments | head -n 1",
        shell=True,
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.startswith("textcraft")
    assert done.stderr == ""
