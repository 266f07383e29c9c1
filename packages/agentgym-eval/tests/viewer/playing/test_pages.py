"""Tests of the pages for playing environments in the viewer."""

from __future__ import annotations

import hashlib
import json
import re
import sys
from collections.abc import Iterator
from html import unescape
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest
from agentgym_envs import WORLDS, read_episodes
from agentgym_envs.agents import prompts
from agentgym_eval.cli.view import view
from agentgym_eval.viewer.index.index import Index
from agentgym_eval.viewer.index.links import Links
from agentgym_eval.viewer.index.queries import Filters
from agentgym_eval.viewer.pages.site import Site
from agentgym_eval.viewer.playing import pages
from agentgym_eval.viewer.server import serve
from agentgym_eval.viewer.server.app import make_app
from counting_world import ENV
from starlette.testclient import TestClient

SAME_ORIGIN = {"origin": "http://127.0.0.1:8000"}


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    folder = tmp_path / "runs"
    folder.mkdir()
    return folder


@pytest.fixture
def index(runs: Path, tmp_path: Path) -> Iterator[Index]:
    index = Index(runs, tmp_path / "index.sqlite")
    yield index
    index.close()


@pytest.fixture
def browser(index: Index) -> Iterator[TestClient]:
    with TestClient(make_app(Site(index, Links())), "http://127.0.0.1:8000", headers=SAME_ORIGIN) as client:
        yield client


def begin(browser: TestClient, **fields: str) -> str:
    response = browser.post("/play", data={"env": ENV, "split": "test", "task": "1", **fields}, follow_redirects=False)
    assert response.status_code == 303, response.text
    return response.headers["location"]


def wait_for_policy(browser: TestClient, game: str) -> str:
    """Return the game's page once no policy is playing."""
    while "is playing" in (page := browser.get(game).text):
        pass
    return page


def test_game_is_played_with_plain_forms(browser: TestClient, runs: Path) -> None:
    game = begin(browser)
    page = browser.get(game).text
    assert "Goal: 1." in page
    assert 'value="add"' in page
    browser.post(f"{game}/say", data={"text": "add", "thought": "<script>alert(1)</script>"})
    page = browser.get(game).text
    assert "Count: 1." in page
    assert "&lt;script&gt;" in page
    assert "<script>alert" not in page
    browser.post(f"{game}/go-on", data={"policy": "oracle", "turns": "1"})
    assert "Goal reached" in wait_for_policy(browser, game)
    assert "Saved in" in browser.post(f"{game}/save").text
    (file,) = runs.glob("played/*/episodes.jsonl")
    (episode,) = read_episodes(file)
    assert (episode.policy, episode.success) == ("human+oracle", True)


def test_game_is_saved_in_a_folder_that_does_not_exist_yet(browser: TestClient, runs: Path) -> None:
    runs.rmdir()
    assert ">Play<" in browser.get("/").text
    game = begin(browser, task="0")
    browser.post(f"{game}/say", data={"text": "stop"})
    assert "Saved in" in browser.post(f"{game}/save").text
    assert len(list(runs.glob("played/*/episodes.jsonl"))) == 1


def test_up_to_date_page_gets_status_204(browser: TestClient) -> None:
    game = begin(browser)
    assert browser.get(game, headers={"x-seen": "1"}).status_code == 204
    browser.post(f"{game}/say", data={"text": "add"})
    assert browser.get(game, headers={"x-seen": "1"}).status_code == 200


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"env": "textkraft"}, "Did you mean"),
        ({"task": "99"}, "10 test tasks"),
        ({"split": "exam"}, "no split exam"),
        ({"seed": "-1"}, "Seed must be a whole number"),
        ({"seed": "9" * 5000}, "Seed must be a whole number"),
        ({"options": "colour"}, "KEY=VALUE"),
        ({"prompt": "missing.md"}, "no prompt file missing.md"),
        ({"prompt": "nowhere:NAME"}, "can&#39;t be imported"),
        ({"options": "'"}, "can&#39;t be parsed"),
        ({"env": "", "other": "nowhere:World"}, "can&#39;t be imported"),
        ({"env": "", "other": "mcp:python server.py"}, "may be a command that it starts"),
    ],
)
def test_invalid_settings_are_reported_above_the_filled_in_form(
    fields: dict[str, str], message: str, browser: TestClient
) -> None:
    response = browser.post("/play", data={"env": ENV, "task": "7", "agent": "bare", **fields})
    assert response.status_code == 400
    assert message in response.text
    assert 'value="bare"' in response.text


@pytest.mark.parametrize(
    ("command", "fields", "message"),
    [
        ("go-on", {"policy": "orakle"}, "Did you mean oracle"),
        ("go-on", {"policy": "oracle", "turns": "0"}, "whole number of at least 1"),
        ("go-on", {"policy": "oracle", "temperature": "hot"}, "from 0 to 10"),
        ("save", {}, "still in progress"),
    ],
)
def test_invalid_commands_are_reported_on_the_page_of_the_game(
    command: str, fields: dict[str, str], message: str, browser: TestClient
) -> None:
    game = begin(browser)
    browser.post(f"{game}/{command}", data=fields)
    assert message in wait_for_policy(browser, game)


def test_unknown_games_and_commands_give_status_404(browser: TestClient) -> None:
    assert browser.get("/play/nothing").status_code == 404
    assert browser.post("/play/nothing/say").status_code == 404
    assert browser.post(f"{begin(browser)}/sing").status_code == 404


@pytest.mark.parametrize("origin", ["http://elsewhere.example", "null", ""])
def test_requests_of_other_origins_are_rejected(origin: str, browser: TestClient) -> None:
    game = begin(browser)
    for path in ("/play", f"{game}/say", f"{game}/save"):
        assert browser.post(path, data={"env": ENV, "text": "add"}, headers={"origin": origin}).status_code == 403
    assert "said-0" not in browser.get(game).text


def test_oversized_forms_are_rejected(browser: TestClient) -> None:
    assert browser.post(f"{begin(browser)}/say", data={"text": "a" * 300_000}).status_code == 400
    assert browser.post("/play", data={f"field-{number}": "x" for number in range(51)}).status_code == 400


def test_playing_is_disabled_if_other_hosts_can_reach_the_viewer(index: Index) -> None:
    with TestClient(make_app(Site(index, Links()), "0.0.0.0"), "http://127.0.0.1:8000", headers=SAME_ORIGIN) as client:
        assert "<form" not in client.get("/play").text
        assert client.post("/play", data={"env": ENV}).status_code == 405


def test_link_prefills_the_form(browser: TestClient) -> None:
    page = browser.get(Links().play(env=ENV, task="count/test/3", split="train")).text
    assert re.search(rf'value="{ENV}" checked', page)
    assert 'value="count/test/3"' in page
    assert "<option selected>train" in page


def test_prompt_replaces_the_system_message_of_people_and_policies(
    browser: TestClient, runs: Path, tmp_path: Path
) -> None:
    prompt, folders = tmp_path / "<mine>.md", set[Path]()
    for text in ("First & foremost:\n{format_instructions}", "Second.", "Second."):
        prompt.write_text(text)
        game = begin(browser, prompt=f" {prompt} ", agent="bare")
        page = unescape(browser.get(game).text)
        assert f"<small>{prompt}</small></summary><pre>{text.partition('{')[0].rstrip()}" in page
        assert "<mine>" not in browser.get(game).text
        browser.post(f"{game}/go-on", data={"policy": "oracle"})
        wait_for_policy(browser, game)
        browser.post(f"{game}/save")
        folders |= {*(runs / "played").iterdir()}
    found = {folder: read_episodes(folder / "episodes.jsonl") for folder in folders}
    assert sorted(len(list(episodes)) for episodes in found.values()) == [1, 2]
    for folder in folders:
        settings = json.loads((folder / "run.json").read_text())["settings"]
        (text,) = {episode.instructions for episode in read_episodes(folder / "episodes.jsonl")}
        assert settings["prompt"] == str(prompt)
        assert settings["prompt_sha256"] == hashlib.sha256(text.encode()).hexdigest()
        assert folder.name.startswith("count-bare-test-seed-0-prompt-mine-.md-")


def test_prompt_of_the_working_directory_and_installed_ones_are_offered(
    browser: TestClient, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "nearby_prompts.py").write_text(
        "def short(instructions, format_instructions):\n    return 'Be short.'\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    installed = EntryPoint("brief", "nearby_prompts:short", prompts.GROUP)
    for module in (pages, prompts):
        monkeypatch.setattr(module, "entry_points", lambda group: [installed] if group == prompts.GROUP else [])
    assert '<option value="brief">' in browser.get("/play").text
    assert '<input name="prompt" type="text" value="brief"' in browser.get(Links().play(env=ENV, prompt="brief")).text
    for name in ("brief", "nearby_prompts:short"):
        assert "<pre>Be short.</pre>" in browser.get(begin(browser, prompt=name)).text


@pytest.mark.parametrize("name", ["subprocess:call", "/etc/hostname"])
def test_prompt_that_may_name_code_is_not_filled_in_by_a_link(browser: TestClient, name: str) -> None:
    page = browser.get("/play", params={"env": ENV, "agent": "bare", "prompt": name}).text
    assert 'value="bare"' in page and name not in page
    assert 'name="prompt"' in page and "to play with it, type it" in page
    assert "to play with it, type it" not in browser.get("/play", params={"env": ENV, "agent": "bare"}).text


def test_form_describes_every_environment(browser: TestClient) -> None:
    page = unescape(browser.get("/play").text)
    assert [env.about for env in WORLDS if f"<small>{env.about}</small>" not in page or not env.about] == []
    assert max(map(len, re.findall(r'placeholder="([^"]*)"', page))) <= 20  # wider ones would be cut


def test_episode_links_to_its_task_with_the_same_settings(
    browser: TestClient, index: Index, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "some_prompts.py").write_text("BRIEF = 'Be brief.'\n")
    monkeypatch.syspath_prepend(tmp_path)
    installed = EntryPoint("brief", "some_prompts:BRIEF", prompts.GROUP)
    for module in (pages, prompts):
        monkeypatch.setattr(module, "entry_points", lambda group: [installed] if group == prompts.GROUP else [])
    game = begin(browser, options="'pause=0.0' listed=False", seed="3", agent="bare", prompt="brief")
    browser.post(f"{game}/say", data={"text": "stop"})
    browser.post(f"{game}/save")
    index.refresh()
    assert [run.state for run in index.runs] == ["done"]
    (row,) = index.list(Filters()).rows
    page = browser.get(Links().episode(row.address)).text
    form = browser.get(unescape(re.findall(r'href="(/play[^"]+)">play this task', page)[0])).text
    for value in ("pause=0.0 listed=False", "3", "count/test/1", "bare", "brief"):
        assert f'value="{value}"' in form


def test_environment_from_the_working_directory_can_be_played(
    runs: Path, browser: TestClient, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    source = (Path(__file__).parents[2] / "counting_world.py").read_text().replace("counting", "nearby")
    (tmp_path / "nearby_world.py").write_text(source)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setattr(serve, "serve", lambda *_, **__: 0)
    fields = {"env": "textcraft", "other": "nearby_world:nearby/Count-v0"}
    assert "No module named" in unescape(browser.post("/play", data=fields).text)
    assert view([str(runs), "--no-open"]) == 0
    assert "Goal: 1." in browser.get(begin(browser, **fields)).text
