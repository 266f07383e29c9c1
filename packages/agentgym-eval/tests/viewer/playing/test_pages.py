from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from html import unescape
from pathlib import Path

import pytest
from agentgym_envs import WORLDS, read_episodes
from agentgym_eval.cli.view import view
from agentgym_eval.viewer.index.index import Index
from agentgym_eval.viewer.index.links import Links
from agentgym_eval.viewer.index.queries import Filters
from agentgym_eval.viewer.pages.site import Site
from agentgym_eval.viewer.server import serve
from agentgym_eval.viewer.server.app import make_app
from counting_world import ENV
from starlette.testclient import TestClient

OURS = {"origin": "http://127.0.0.1:8000"}


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
    with TestClient(make_app(Site(index, Links())), "http://127.0.0.1:8000", headers=OURS) as client:
        yield client


def begin(browser: TestClient, **given: str) -> str:
    answer = browser.post("/play", data={"env": ENV, "split": "test", "task": "1", **given}, follow_redirects=False)
    assert answer.status_code == 303, answer.text
    return answer.headers["location"]


def wait(browser: TestClient, game: str) -> str:
    """The game's page once nobody but the person plays."""
    while "is playing" in (page := browser.get(game).text):
        pass
    return page


def test_a_game_is_played_with_forms_alone(browser: TestClient, runs: Path) -> None:
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
    assert "Goal reached" in wait(browser, game)
    assert "Saved in" in browser.post(f"{game}/save").text
    (file,) = runs.glob("played/*/episodes.jsonl")
    (episode,) = read_episodes(file)
    assert (episode.policy, episode.success) == ("human+oracle", True)


def test_a_page_that_shows_what_there_is_gets_no_second_one(browser: TestClient) -> None:
    game = begin(browser)
    assert browser.get(game, headers={"x-seen": "1"}).status_code == 204
    browser.post(f"{game}/say", data={"text": "add"})
    assert browser.get(game, headers={"x-seen": "1"}).status_code == 200


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"env": "textkraft"}, "Did you mean"),
        ({"task": "99"}, "10 test tasks"),
        ({"split": "exam"}, "no split exam"),
        ({"seed": "-1"}, "Seed must be a whole number"),
        ({"options": "colour"}, "KEY=VALUE"),
        ({"options": "'"}, "can&#39;t be parsed"),
        ({"env": "", "other": "nowhere:World"}, "can&#39;t be imported"),
    ],
)
def test_what_cannot_be_begun_is_said_above_the_form_as_it_was_filled_in(
    given: dict[str, str], words: str, browser: TestClient
) -> None:
    answer = browser.post("/play", data={"env": ENV, "task": "7", "agent": "bare", **given})
    assert answer.status_code == 400
    assert words in answer.text
    assert 'value="bare"' in answer.text


@pytest.mark.parametrize(
    ("move", "given", "words"),
    [
        ("go-on", {"policy": "orakle"}, "Did you mean oracle"),
        ("go-on", {"policy": "oracle", "turns": "0"}, "whole number of at least 1"),
        ("go-on", {"policy": "oracle", "temperature": "hot"}, "from 0 to 10"),
        ("save", {}, "still in progress"),
    ],
)
def test_what_cannot_be_done_is_said_on_the_game_s_page(
    move: str, given: dict[str, str], words: str, browser: TestClient
) -> None:
    game = begin(browser)
    browser.post(f"{game}/{move}", data=given)
    assert words in wait(browser, game)


def test_games_and_moves_that_do_not_exist_are_not_found(browser: TestClient) -> None:
    assert browser.get("/play/nothing").status_code == 404
    assert browser.post("/play/nothing/say").status_code == 404
    assert browser.post(f"{begin(browser)}/sing").status_code == 404


@pytest.mark.parametrize("origin", ["http://elsewhere.example", "null", ""])
def test_only_the_viewer_s_own_pages_may_play(origin: str, browser: TestClient) -> None:
    game = begin(browser)
    for path in ("/play", f"{game}/say", f"{game}/save"):
        assert browser.post(path, data={"env": ENV, "text": "add"}, headers={"origin": origin}).status_code == 403
    assert "said-0" not in browser.get(game).text


def test_forms_longer_than_any_reply_are_refused(browser: TestClient) -> None:
    assert browser.post(f"{begin(browser)}/say", data={"text": "a" * 300_000}).status_code == 400
    assert browser.post("/play", data={f"field-{number}": "x" for number in range(51)}).status_code == 400


def test_nothing_is_played_where_others_can_reach_the_viewer(index: Index) -> None:
    with TestClient(make_app(Site(index, Links()), "0.0.0.0"), "http://127.0.0.1:8000", headers=OURS) as client:
        assert "<form" not in client.get("/play").text
        assert client.post("/play", data={"env": ENV}).status_code == 405


def test_the_form_can_be_filled_in_by_a_link(browser: TestClient) -> None:
    page = browser.get(Links().play(env=ENV, task="count/test/3", split="train")).text
    assert re.search(rf'value="{ENV}" checked', page)
    assert 'value="count/test/3"' in page
    assert "<option selected>train" in page


def test_each_world_is_described(browser: TestClient) -> None:
    page = unescape(browser.get("/play").text)
    assert [world.about for world in WORLDS if f"<small>{world.about}</small>" not in page or not world.about] == []
    assert max(map(len, re.findall(r'placeholder="([^"]*)"', page))) <= 20  # wider ones are cut


def test_a_recorded_episode_leads_to_its_task_as_it_was_made(browser: TestClient, index: Index) -> None:
    game = begin(browser, options="'pause=0.0' listed=False", seed="3")
    browser.post(f"{game}/say", data={"text": "stop"})
    browser.post(f"{game}/save")
    index.refresh()
    assert [run.state for run in index.runs] == ["done"]
    (row,) = index.list(Filters()).rows
    page = browser.get(Links().episode(row.address)).text
    form = browser.get(unescape(re.findall(r'href="(/play[^"]+)">play this task', page)[0])).text
    for value in ("pause=0.0 listed=False", "3", "count/test/1"):
        assert f'value="{value}"' in form


def test_a_world_in_the_working_folder_can_be_played(
    runs: Path, browser: TestClient, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    world = (Path(__file__).parents[2] / "counting_world.py").read_text().replace("counting", "nearby")
    (tmp_path / "nearby_world.py").write_text(world)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setattr(serve, "serve", lambda *_, **__: 0)
    given = {"env": "textcraft", "other": "nearby_world:nearby/Count-v0"}
    assert "No module named" in unescape(browser.post("/play", data=given).text)
    assert view([str(runs), "--no-open"]) == 0
    assert "Goal: 1." in browser.get(begin(browser, **given)).text
