"""Tests of the files for users and contributors at the root: changelog, citation, security policy, templates."""

from __future__ import annotations

import re
import tomllib
from datetime import date
from typing import Any

import pytest
import yaml
from agentgym_envs.cli.agentgym import KNOWN
from documents import ROOT

pytestmark = pytest.mark.quick

VERSION: str = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"]
TEMPLATES = ROOT / ".github/ISSUE_TEMPLATE"
FORMS = sorted(path for path in TEMPLATES.glob("*.yml") if path.name != "config.yml")


def read(name: str) -> Any:
    return yaml.safe_load((ROOT / name).read_text(encoding="utf-8"))


def releases() -> list[tuple[str, str]]:
    """Return the headings of the changelog: version and date."""
    return re.findall(r"^## \[(.+)\](?: - (.+))?$", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), re.MULTILINE)


def test_the_changelog_begins_with_what_is_not_released_and_this_version() -> None:
    (unreleased, _), (latest, day), *earlier = releases()
    assert (unreleased, latest) == ("Unreleased", VERSION)
    days = [date.fromisoformat(released) for _, released in [(latest, day), *earlier]]
    assert days == sorted(days, reverse=True)


def test_each_version_of_the_changelog_has_every_heading_once() -> None:
    text = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    for section in re.split(r"^## ", text, flags=re.MULTILINE)[1:]:
        headings = re.findall(r"^### (.+)$", section, re.MULTILINE)
        assert headings == [name for name in ("Added", "Changed", "Deprecated", "Removed", "Fixed") if name in headings]


def test_the_citation_is_of_this_version() -> None:
    citation = read("CITATION.cff")
    assert {"cff-version", "message", "title", "authors"} <= citation.keys()  # what the schema 1.2.0 requires
    assert (citation["cff-version"], citation["type"]) == ("1.2.0", "software")
    assert (str(citation["version"]), citation["date-released"]) == (VERSION, releases()[1][1])
    license_ = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["license"]
    assert citation["license"] == license_
    assert all(author.keys() == {"name"} for author in citation["authors"])


def test_the_security_policy_supports_this_version() -> None:
    policy = (ROOT / "SECURITY.md").read_text(encoding="utf-8")
    supported = re.findall(r"^\| ([\d.]+) \| yes \|$", policy, re.MULTILINE)
    assert supported == [VERSION.rpartition(".")[0]]


@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.stem)
def test_issue_forms_follow_the_syntax(form: Any) -> None:
    content = read(str(form.relative_to(ROOT)))
    assert content.keys() == {"name", "description", "labels", "body"}
    fields = content["body"]
    assert len({field["id"] for field in fields}) == len(fields)
    assert any(field.get("validations", {}).get("required") for field in fields)
    for field in fields:
        assert field["type"] in ("input", "textarea", "dropdown")
        assert field["attributes"]["label"]
        assert (field["type"] == "dropdown") == ("options" in field["attributes"])


def test_issue_forms_ask_for_commands_that_exist() -> None:
    assert [form.stem for form in FORMS] == ["bug", "environment", "feature"]
    named = {name for form in FORMS for name in re.findall(r"`agentgym ([a-z]+)", form.read_text(encoding="utf-8"))}
    assert named == {"doctor", "check"}
    assert named <= KNOWN.keys()
    bug = read(".github/ISSUE_TEMPLATE/bug.yml")["body"]
    assert next(field for field in bug if field["id"] == "doctor")["validations"]["required"] is True


def test_the_contribution_guide_is_one_page() -> None:
    assert len((ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8").splitlines()) <= 66
