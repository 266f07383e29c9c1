"""Tests of the viewer's pages: lists, comparison, links, security, and the `view` command."""

from __future__ import annotations

import re
import signal
import socket
import subprocess
import sys
import threading
import urllib.request
from html.parser import HTMLParser
from pathlib import Path

import pytest
from agentgym_eval.cli.view import view
from agentgym_eval.viewer.index.links import Address, FileLinks, Links, parse_address
from agentgym_eval.viewer.index.queries import Filters
from agentgym_eval.viewer.pages.comparison import ComparisonQuery, compare_page
from agentgym_eval.viewer.pages.lists import episodes_page, runs_page
from agentgym_eval.viewer.pages.run import run_page
from agentgym_eval.viewer.pages.site import Site
from agentgym_eval.viewer.server.app import make_app
from agentgym_eval.viewer.server.guard import is_loopback
from starlette.testclient import TestClient
from viewer_runs import EVIL, episode, write_episodes, write_evaluation_run, write_training_run

LOCAL = "http://127.0.0.1:8000"


def browser(site: Site, base: str = LOCAL, host: str = "127.0.0.1") -> TestClient:
    return TestClient(make_app(site, host), base)


class Page(HTMLParser):
    """The links and tags of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.links: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        followed = ("href", "src", "hx-get") if ("method", "post") in attrs else ("href", "src", "action", "hx-get")
        self.links += [value for name, value in attrs if name in followed and value]


def write_runs(site: Site) -> None:
    write_evaluation_run(
        site.index.root / "poor", [episode(f"t/{n}", s, s < n, turns=3) for n in range(4) for s in range(4)]
    )
    better = [episode(f"t/{n}", s, s <= n or n == 3, turns=1) for n in range(4) for s in range(4)]
    write_evaluation_run(site.index.root / "good", [*better, episode("t/8", 0, True), episode("t/1", 4, None)])
    write_training_run(site.index.root / "rl")
    site.index.refresh()


PAGES = [
    "/",
    "/?kind=train&sort=-success",
    "/episodes",
    "/run/rl",
    "/run/good",
    "/compare",
    "/compare?a=poor&b=good",
    "/compare?a=rl&b=good",
    "/compare?run=rl&run=good&run=poor&baseline=poor",
    "/trash",
    "/trash/move?run=good",
    "/trash/empty",
    "/nope",
]


@pytest.mark.long
def test_every_link_resolves(site: Site) -> None:
    write_runs(site)
    client = browser(site)
    links = {link for page in PAGES for link in Page(client.get(page).text).links}
    assert len(links) > 80
    for link in links:
        assert link.startswith(("/", "#")), link
        if link.startswith("/"):
            assert client.get(link).status_code == 200, link


def test_a_page_after_the_last_one_is_the_last(site: Site) -> None:
    write_runs(site)
    client = browser(site)
    for path in ("/?size=1", "/episodes?size=1"):
        pages = re.findall(r"<span>Page 1 of (\d+)</span>", client.get(path).text)
        assert len(pages) == 1 and int(pages[0]) > 1
        assert client.get(f"{path}&page=999").text == client.get(f"{path}&page={pages[0]}").text


def test_pages_need_only_the_viewers_own_files(site: Site) -> None:
    write_runs(site)
    client = browser(site)
    for path in PAGES:
        response = client.get(path)
        assert "default-src 'self'" in response.headers["content-security-policy"]
        for tag, attributes in Page(response.text).tags:
            assert tag != "style", path
            assert not any(name.startswith("on") or name == "style" for name in attributes), (path, attributes)
            assert tag != "script" or attributes["src"], path


def test_text_of_environments_and_files_is_escaped(site: Site) -> None:
    evil = episode(EVIL, env=f"{EVIL}-v0", reply=EVIL, category=EVIL, policy=EVIL, stop="terminated")
    write_evaluation_run(site.index.root / "eval", [evil, episode("t/2", category="x")])
    write_evaluation_run(site.index.root / f"a {EVIL.replace('/', '_')}", [evil])
    (site.index.root / "eval" / "run.json").write_text(
        f'{{"schema": "agentgym.run/1", "settings": {{"{EVIL}": "{EVIL}", "policy": "{EVIL}"}}}}'
    )
    site.index.refresh()
    client = browser(site)
    first, second = (run.slug for run in site.index.runs)
    for path in (
        "/",
        f"/?text={EVIL}",
        "/episodes",
        f"/episodes?text={EVIL}",
        f"/run/{first}",
        f"/compare?a={first}&b={second}",
        f"/{EVIL}",
    ):
        text = client.get(path).text
        assert "<script>" not in text, path
        assert f"/{EVIL}" == path or "&lt;script&gt;" in text, path


def test_invalid_addresses_are_one_sentence_errors(site: Site) -> None:
    write_runs(site)
    client = browser(site)
    for path, status, sentence in (
        ("/run/godo", 404, "Did you mean good?"),
        ("/episodes?turn=3", 400, "There is no filter turn"),
        ("/compare?a=good&b=good&sort=x", 400, "sort must be one of"),
        ("/compare?a=good&b=poor&a_file=x", 404, "has no file x"),
        ("/raw/good/episodes/99.json", 404, "has no episode 99"),
        (f"/raw/good/episodes/{2**64}.json", 404, f"has no episode {2**64}"),
        (f"/side-by-side?a=good/episodes/0&b=poor/episodes/{2**64}", 404, f"has no episode {2**64}"),
        ("/nowhere", 404, "no such page"),
    ):
        response = client.get(path)
        assert (response.status_code, sentence in response.text) == (status, True), (path, response.text)


def test_up_to_date_page_gets_status_204(site: Site) -> None:
    write_runs(site)
    client = browser(site)
    for path in ("/", "/?kind=train", "/episodes?run=rl", "/run/rl", "/compare?a=poor&b=good"):
        text = client.get(path).text
        (version,) = re.findall(r'"X-Seen": "([^"]+)"', text)
        assert client.get(path, headers={"X-Seen": version}).status_code == 204
        write_episodes(site.index.root / "new.jsonl", [episode(path)])
        site.index.refresh()
        assert client.get(path, headers={"X-Seen": version}).status_code == 200


def test_index_follows_the_folder_while_serving(site: Site) -> None:
    path = write_evaluation_run(site.index.root / "eval", [episode()], done=False) / "episodes.jsonl"
    with browser(site) as client:
        while "of 1" not in client.get("/episodes").text and site.index.list(Filters()).total < 1:
            pass
        with path.open("a") as file:
            file.write(episode("t/new").to_json() + "\n")
        while "t/new" not in client.get("/episodes").text:
            pass
    assert not [thread for thread in threading.enumerate() if thread.name == "viewer-index"]


def test_only_host_names_of_this_machine_are_accepted(site: Site) -> None:
    for base, status in (
        (LOCAL, 200),
        ("http://localhost:9", 200),
        ("http://[::1]:8000", 200),
        ("http://evil.example:8000", 403),
        ("http://127.0.0.1.evil.example", 403),
        ("http://localhost.evil.example:80", 403),
    ):
        assert browser(site, base).get("/").status_code == status, base
    assert browser(site).get("/", headers={"host": ""}).status_code == 403
    assert browser(site, "http://gym.example:8000", host="gym.example").get("/").status_code == 200
    assert browser(site, f"http://{socket.gethostname()}:8000", host="0.0.0.0").get("/").status_code == 200
    assert browser(site, "http://evil.example", host="0.0.0.0").get("/").status_code == 403


def test_other_sites_cannot_post(site: Site) -> None:
    client = browser(site)
    for origin in ("http://evil.example", "null", "http://127.0.0.1:9", ""):
        assert client.post("/", headers={"origin": origin}).status_code == 403
    assert client.post("/").status_code == 403
    assert client.post("/", headers={"origin": LOCAL}).status_code == 405


def test_is_loopback_recognizes_loopback_addresses() -> None:
    assert all(is_loopback(host) for host in ("127.0.0.1", "127.8.8.8", "::1", "localhost"))
    assert not any(is_loopback(host) for host in ("0.0.0.0", "::", "10.0.0.1", "gym.example", "localhost.evil"))


def test_training_curve_has_stages_and_linked_points(site: Site) -> None:
    write_runs(site)
    text = browser(site).get("/run/rl").text
    assert re.findall(r'class="band[^"]*"><title>([^<]+)', text) == [
        "up to 4 turns",
        "up to 8 turns: the next stage of the schedule",
    ]
    points = re.findall(r'<a href="([^"]+)"><title>([^<]+)', text)
    assert [label for _, label in points] == [
        *(f"step {step}: {25 * step:.1f}% in training; show episodes" for step in range(1, 5)),
        "step 0: 25.0% (4.6% to 69.9%) on test tasks, sampled; show episodes",
        "step 4: 75.0% (30.1% to 95.4%) on test tasks, sampled; show episodes",
    ]
    episodes = browser(site).get(points[2][0].replace("&amp;", "&")).text
    assert "4 episodes" in episodes
    assert "rollouts/step-000003" in episodes


def test_runs_are_compared_on_their_common_tasks(site: Site) -> None:
    write_runs(site)
    text = compare_page(site, ComparisonQuery("poor", "good"))
    assert "They have 4 tasks in common; 1 only in B." in text
    assert text.count('<span class="tag bad">1 error</span>') == 1
    assert "Success of B minus A: +25.0 points" in text
    assert "B is better on 4 tasks and worse on 0" in text
    order = re.findall(r"<tr><td>t/<wbr>(\d)", compare_page(site, ComparisonQuery("poor", "good", sort="task")))
    assert order == ["0", "1", "2", "3"]
    assert re.findall(r'class="tag good">([^<]+)', text) == ["+25.0"] * 4
    assert "paired permutation test, p 0.12)" in text
    swapped = compare_page(site, ComparisonQuery("good", "poor"))
    assert "Success of B minus A: -25.0 points" in swapped
    href = re.findall(r'href="(/side-by-side[^"]+)"', text)[0].replace("&amp;", "&")
    assert browser(site).get(href).status_code == 200


def test_comparison_without_common_tasks_shows_a_note(site: Site) -> None:
    write_runs(site)
    assert "No task has results in both runs" in compare_page(
        site, ComparisonQuery("rl", "poor", a_file=_rollout(site))
    )


def _rollout(site: Site) -> str:
    return next(file.slug for file in site.index.run("rl").files if file.part == "rollouts")


def test_links_of_an_export_are_relative_files(site: Site) -> None:
    links = FileLinks("run/rl.html")
    assert links.runs() == "../index.html"
    assert links.run("good") == "good.html"
    assert links.asset("style.css") == "../static/style.css"
    assert links.episode(Address("a", "b", 3), turn=2) == "../episode/a/b/3.html#turn-2"
    assert links.episodes(run="a", page=2) == "../episodes.html?run=a&page=2"
    assert FileLinks("index.html").run("good") == "run/good.html"


def test_exported_pages_make_no_server_requests(site: Site) -> None:
    write_runs(site)
    exported = Site(site.index, FileLinks("run/rl.html"))
    for text in (
        runs_page(exported),
        run_page(exported, "rl"),
        run_page(exported, "good"),
        episodes_page(exported, Filters()),
    ):
        assert "hx-" not in text
        assert "htmx" not in text
        assert not [link for link in Page(text).links if link.startswith(("/", "http"))]


def test_addresses_round_trip_through_links() -> None:
    address = Address("run-a", "file.b", 12)
    assert parse_address("run-a/file.b/12") == address
    assert Links().side_by_side(address, address).count("run-a%2Ffile.b%2F12") == 2
    with pytest.raises(ValueError, match="unpack"):
        parse_address("run-a/12")


def test_invalid_usage_is_a_one_sentence_error_and_exit_code_2(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for arguments, message in (
        ([str(tmp_path / "nowhere")], "Name a folder with runs"),
        ([str(tmp_path), "--port", "70000"], "between 0 and 65535"),
    ):
        assert view(arguments) == 2
        assert message in capsys.readouterr().err
    with socket.create_server(("127.0.0.1", 0)) as taken:
        assert view([str(tmp_path), "--port", str(taken.getsockname()[1]), "--no-open"]) == 2
    assert "can't listen on" in capsys.readouterr().err


def test_viewer_writes_nothing_into_the_folder(site: Site) -> None:
    write_runs(site)
    before = sorted(site.index.root.rglob("*"))
    client = browser(site)
    for path in PAGES:
        client.get(path)
    assert sorted(site.index.root.rglob("*")) == before


@pytest.mark.long
def test_view_command_serves_until_ctrl_c(tmp_path: Path) -> None:
    write_evaluation_run(tmp_path / "eval", [episode("t/here")])
    code = "import sys; from agentgym_eval.cli.view import view; sys.exit(view(sys.argv[1:]))"
    command = [sys.executable, "-c", code, str(tmp_path), "--no-open"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as server:
        try:
            assert server.stderr
            (address,) = re.findall(r"http://127.0.0.1:\d+/", server.stderr.readline())
            while "t/here" not in urllib.request.urlopen(f"{address}episodes").read().decode():
                pass
            server.send_signal(signal.SIGINT)
            assert server.wait(60) == 0
            assert server.stderr.read() == ""
        finally:
            server.kill()
