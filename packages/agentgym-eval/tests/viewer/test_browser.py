"""Tests of the viewer's pages in a real browser, live and exported."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Literal

import pytest
from agentgym_envs import EpisodeSpec, make, play
from agentgym_envs.agents.agent import Agent
from agentgym_eval.policies.policies import Oracle
from agentgym_eval.viewer.index.index import Index
from agentgym_eval.viewer.index.links import Address, Links
from agentgym_eval.viewer.pages import scenes
from agentgym_eval.viewer.server.export import export
from counting_world import ENV
from playwright.sync_api import Browser, Route, expect
from viewer_browser import PHONE, WatchedPage, serve_index, width_of
from viewer_runs import EVIL, episode, write_episodes, write_evaluation_run, write_training_run

LONG = "unbreakable" * 30
LINKS = Links()
PAGES = [
    LINKS.runs(),
    LINKS.runs({"kind": "evaluate", "text": "o"}),
    LINKS.episodes(),
    LINKS.episodes(text="north"),
    LINKS.run("rl"),
    LINKS.run("good"),
    LINKS.edit("rl"),
    LINKS.trash(),
    LINKS.curves(["rl"]),
    LINKS.compare(),
    LINKS.compare("poor", "good"),
    LINKS.compare_runs(["poor", "good", "rl"], "good", split="test", step="77"),
    LINKS.episode(Address("babyai", "episodes", 0)),
    LINKS.episode(Address("evil.jsonl", "evil", 0)),
    LINKS.messages(Address("babyai", "episodes", 0), 1),
    LINKS.messages(Address("evil.jsonl", "evil", 0), 1),
    LINKS.siblings(Address("poor", "episodes", 0)),
    LINKS.side_by_side(Address("poor", "episodes", 0), Address("good", "episodes", 0)),
    LINKS.play(),
]


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Index]:
    folder = tmp_path_factory.mktemp("viewer")
    runs = folder / "runs"
    write_evaluation_run(runs / "poor", [episode(f"t/{n}", s, s < n, turns=3) for n in range(4) for s in range(4)])
    write_evaluation_run(runs / "good", [episode(f"t/{n}", 0, True, turns=1) for n in range(4)])
    write_training_run(runs / "rl")
    markup = f"{EVIL}<img src=x onerror=alert(2)>{LONG}"
    write_episodes(runs / "evil.jsonl", [episode(markup, reply=f"</pre></script>{EVIL}", category=LONG, policy=markup)])
    env = make("agentgym/BabyAI-v0")
    write_evaluation_run(
        runs / "babyai", [play(Agent.parse("react").wrap(env), Oracle(), EpisodeSpec("babyai/test/GoToObj/1000000"))]
    )
    env.close()
    index = Index(runs, folder / "index.sqlite")
    index.refresh()
    yield index
    index.close()


@pytest.fixture(scope="module")
def live(index: Index) -> Iterator[str]:
    """Run a viewer and yield its address."""
    with serve_index(index) as address:
        yield address


@pytest.fixture(scope="module")
def exported(index: Index, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("export") / "pages"
    export(index, out, 1000)
    return out


def check_pages(watched: WatchedPage, base: str, paths: Sequence[str]) -> None:
    """Check that pages fit a phone, load nothing from other sites, and log no messages."""
    watched.page.set_viewport_size(PHONE)
    for path in paths:
        watched.page.goto(base + path)
        assert width_of(watched.page) <= PHONE["width"], path
    assert [url for url in watched.requests if not url.startswith(base)] == []
    assert watched.messages == []


def test_environment_text_is_escaped_and_fits_a_phone(watched: WatchedPage, live: str) -> None:
    check_pages(watched, live, [LINKS.episodes(), LINKS.episode(Address("evil.jsonl", "evil", 0))])
    expect(watched.page.locator("#turn-0")).to_contain_text(f"</pre></script>{EVIL}")


@pytest.mark.long
def test_all_pages_fit_a_phone_and_run_no_injected_scripts(watched: WatchedPage, live: str) -> None:
    check_pages(watched, live, PAGES)


def test_replay_is_controlled_by_keys(watched: WatchedPage, live: str) -> None:
    page = watched.page
    page.goto(live + LINKS.episode(Address("poor", "episodes", 0)))
    turns = [page.locator(f"#turn-{number}") for number in range(4)]
    expect(turns[0]).to_be_visible()
    expect(turns[1]).to_be_hidden()
    for key, visible in (("ArrowRight", 1), ("End", 3), ("ArrowLeft", 2), ("Home", 0), ("ArrowLeft", 0)):
        page.keyboard.press(key)
        expect(turns[visible]).to_be_visible()
        assert sum(turn.is_visible() for turn in turns) == 1
    page.keyboard.press("?")
    expect(page.locator("#keys")).to_be_visible()
    page.keyboard.press("Escape")
    page.keyboard.press("t")
    for turn in turns:
        expect(turn).to_be_visible()


@pytest.mark.long
def test_text_typed_before_the_script_loads_filters_the_actions(watched: WatchedPage, live: str) -> None:
    page, delayed = watched.page, list[Route]()
    page.goto(live + LINKS.play(env=ENV, split="test", task="count/test/2"))
    page.get_by_role("button", name="Begin").click()
    expect(page.locator("#now")).to_contain_text("Goal: 2.")
    page.route("**/playing.js*", lambda route: delayed.append(route))
    page.goto(page.url, wait_until="commit")
    page.get_by_label("Your action").fill("ad")
    expect(page.locator(".actions button:visible")).to_have_text(["add", "stop"])
    for route in delayed:
        route.continue_()
    expect(page.locator(".actions button:visible")).to_have_text(["add"])


@pytest.mark.long
def test_game_is_played_by_typing_and_finished_by_a_policy(watched: WatchedPage, live: str) -> None:
    page = watched.page
    page.goto(live + LINKS.play(env=ENV, split="test", task="count/test/2"))
    page.get_by_role("button", name="Begin").click()
    expect(page.locator("#now")).to_contain_text("Goal: 2.")
    expect(page.get_by_label("Your action")).to_be_focused()
    page.keyboard.type("ad")
    expect(page.locator(".actions button:visible")).to_have_text(["add"])
    page.keyboard.type("d")
    page.keyboard.press("Enter")
    expect(page.locator("#now")).to_contain_text("Count: 1.")
    expect(page.get_by_label("Your action")).to_be_focused()
    page.keyboard.type(EVIL)
    page.keyboard.press("Enter")
    expect(page.locator("#said-1")).to_contain_text(EVIL)
    expect(page.locator("#said-1")).to_contain_text("invalid")
    page.locator("#go-on").get_by_role("button", name="Continue").click()
    expect(page.locator(".end")).to_contain_text("Goal reached")
    page.get_by_role("button", name="Save the episode").click()
    expect(page.locator("aside")).to_contain_text("Saved in")
    assert watched.messages == []
    assert [url for url in watched.requests if not url.startswith(live)] == []


@pytest.mark.long
def test_exported_lists_are_filtered_sorted_and_searched(watched: WatchedPage, exported: Path) -> None:
    page = watched.page
    page.set_viewport_size(PHONE)
    page.goto((exported / "index.html").as_uri())
    page.get_by_role("navigation").get_by_role("link", name="Episodes").click()
    status = page.locator(".status")
    page.locator("select[name=run]").select_option("poor")
    expect(status).to_have_text("16 episodes")
    page.get_by_label("Text").fill("GO nor")
    expect(status).to_have_text("16 episodes")
    page.get_by_label("Text").fill('"north room"')
    expect(status).to_have_text("0 episodes")
    page.get_by_label("Text").fill("")
    page.get_by_label("Success").select_option("yes")
    expect(status).to_have_text("6 episodes")
    page.locator("th").get_by_role("link", name="Task").click()
    page.locator("th").get_by_role("link", name="Task").click()
    expect(page.locator("tbody tr").first).to_contain_text("t/3")
    page.reload()
    expect(status).to_have_text("6 episodes")
    expect(page.locator("tbody tr").first).to_contain_text("t/3")
    page.locator("tbody tr a").first.click()
    expect(page.locator("#where")).to_have_text("turn 0 of 0–2")
    page.keyboard.press("End")
    expect(page.locator("#turn-3")).to_be_visible()
    assert width_of(page) <= PHONE["width"]
    assert [url for url in watched.requests if not url.startswith(exported.as_uri())] == []
    assert watched.messages == []


@pytest.mark.long
def test_exported_side_by_side_page_shows_episodes_in_frames(watched: WatchedPage, exported: Path) -> None:
    page = watched.page
    page.goto((exported / "compare.html").as_uri())
    page.locator("details", has_text="good").get_by_role("link", name="with poor").first.click()
    page.get_by_role("link", name="side by side").first.click()
    for name in ("a", "b"):
        expect(page.frame_locator(f"iframe[name={name}]").locator("#turn-0")).to_be_visible()
    page.goto((exported / "side-by-side.html").as_uri() + "?a=javascript:alert(1)&b=https://example.com")
    assert [frame.url for frame in page.frames[1:]] == ["about:blank", "about:blank"]
    assert watched.messages == []


@pytest.mark.long
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_has_sufficient_contrast_in_light_and_dark(
    scheme: Literal["light", "dark"], chromium: Browser, live: str
) -> None:
    with chromium.new_context(color_scheme=scheme) as context:
        page = context.new_page()
        for path in PAGES:
            page.goto(live + path)
            assert page.evaluate(LOW_CONTRAST_TEXTS) == [], path
        background = page.evaluate("getComputedStyle(document.body).backgroundColor")
        assert (sum(map(int, re.findall(r"\d+", background)[:3])) > 3 * 128) == (scheme == "light")


LOW_CONTRAST_TEXTS = r"""() => {
  const numbers = (colour) => (colour.match(/[\d.]+/g) ?? []).map(Number);
  const linear = (c) => (c / 255 <= 0.04045 ? c / 255 / 12.92 : ((c / 255 + 0.055) / 1.055) ** 2.4);
  const light = ([r, g, b]) => 0.2126 * linear(r) + 0.7152 * linear(g) + 0.0722 * linear(b);
  const ground = (element) => {
    const above = element.parentElement ? ground(element.parentElement) : [255, 255, 255];
    const [r, g, b, a = 1] = numbers(getComputedStyle(element).backgroundColor);
    return [r, g, b].map((c, at) => c * a + above[at] * (1 - a));
  };
  const found = [];
  const texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (texts.nextNode()) {
    const words = texts.currentNode.textContent.trim();
    const element = texts.currentNode.parentElement;
    if (!words || element.closest("svg, select, [aria-disabled]") || !element.checkVisibility()) continue;
    const [one, two] = [light(numbers(getComputedStyle(element).color)), light(ground(element))];
    const contrast = (Math.max(one, two) + 0.05) / (Math.min(one, two) + 0.05);
    if (contrast < 4.5) found.push([words.slice(0, 40), element.className, contrast.toFixed(2)]);
  }
  return found;
}"""
"""Returns texts with a contrast below 4.5, the minimum of WCAG 2.2 (criterion 1.4.3)."""


def test_points_of_a_curve_are_clickable(watched: WatchedPage, live: str) -> None:
    watched.page.goto(live + LINKS.run("rl"))
    is_link_on_top = """points => points.map(point => {
        const box = point.getBoundingClientRect();
        return document.elementFromPoint(box.x + box.width / 2, box.y + box.height / 2).closest("a") !== null;
    })"""
    on_top = watched.page.locator(".chart a .hit").evaluate_all(is_link_on_top)
    assert on_top
    assert all(on_top)


@pytest.mark.long
def test_training_curve_and_order_of_a_comparison_fit_a_phone(watched: WatchedPage, live: str) -> None:
    page = watched.page
    page.set_viewport_size(PHONE)
    page.goto(live + LINKS.run("rl"))
    chart = page.locator(".scroll:has(> .chart)")
    assert chart.evaluate("box => box.scrollWidth - box.clientWidth") == 0
    page.goto(live + LINKS.compare("poor", "good"))
    width = "select => select.getBoundingClientRect().width"
    assert page.get_by_label("Order").evaluate(width) == page.get_by_label("Run A").evaluate(width)


@pytest.mark.long
def test_color_scheme_button_is_remembered(watched: WatchedPage, live: str) -> None:
    page = watched.page
    page.goto(live)
    before = page.evaluate("getComputedStyle(document.body).backgroundColor")
    page.get_by_title("Light or dark").click()
    after = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert before != after
    page.goto(live + LINKS.episodes())
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == after


@pytest.mark.long
def test_lists_follow_a_running_run_and_keep_focus_and_selection(watched: WatchedPage, live: str, index: Index) -> None:
    page = watched.page
    lines = [episode(f"g/{n}").to_json() + "\n" for n in range(3)]
    path = write_evaluation_run(index.root / "growing", [episode("g/9")], done=False) / "episodes.jsonl"
    index.refresh()
    page.goto(live + LINKS.episodes(run="growing"))
    expect(page.locator("tbody tr")).to_have_count(1)
    page.evaluate("window.same = document.querySelector('tbody tr')")
    page.get_by_label("Turns from").focus()
    with path.open("a", encoding="utf-8") as file:
        file.write(lines[0] + lines[1] + lines[2][:50])
        file.flush()
        expect(page.locator("tbody tr")).to_have_count(3)
        file.write(lines[2][50:])
    expect(page.locator("tbody tr")).to_have_count(4)
    assert page.evaluate("window.same.isConnected && window.same === document.querySelector('tbody tr')")
    assert page.evaluate("document.activeElement.name") == "turns_from"
    page.goto(live + LINKS.runs())
    page.get_by_label("Select growing").check()
    write_episodes(index.root / "another.jsonl", [episode()])
    expect(page.get_by_role("link", name="another.jsonl")).to_be_visible()
    expect(page.get_by_label("Select growing")).to_be_checked()


@pytest.mark.long
def test_viewer_works_without_scripts(chromium: Browser, live: str) -> None:
    with chromium.new_context(java_script_enabled=False) as context:
        page = context.new_page()
        page.goto(live + LINKS.episode(Address("poor", "episodes", 0)))
        for number in range(4):
            expect(page.locator(f"#turn-{number}")).to_be_visible()
        page.goto(live + LINKS.episodes())
        page.get_by_label("Text").fill("north")
        page.get_by_role("button", name="Filter").click()
        expect(page.locator("tbody tr").first).to_be_visible()
        page.goto(live + LINKS.play(env=ENV, split="test", task="count/test/0"))
        page.get_by_role("button", name="Begin").click()
        page.locator("#go-on").get_by_role("button", name="Continue").click()
        expect(page.locator(".end")).to_contain_text("Goal reached")


@pytest.mark.long
def test_episode_is_reachable_by_keyboard(watched: WatchedPage, live: str) -> None:
    page = watched.page
    page.goto(live + LINKS.episodes(run="poor"))
    page.keyboard.press("Tab")
    expect(page.locator(".skip")).to_be_focused()
    page.keyboard.press("Enter")
    for _ in range(60):
        page.keyboard.press("Tab")
        if page.evaluate("document.activeElement.closest('tbody') !== null"):
            break
    assert page.evaluate("document.activeElement.matches(':focus-visible')")
    page.keyboard.press("Enter")
    expect(page.locator("#replay")).to_be_visible()


@pytest.mark.long
def test_slow_scenes_are_loaded_after_the_page(
    watched: WatchedPage, live: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scenes, "_SLOW_S", 0.0)
    page = watched.page
    page.goto(live + LINKS.episode(Address("babyai", "episodes", 0)))
    expect(page.locator("#turn-0 svg.grid")).to_be_visible()
    expect(page.locator("#scenes-later")).to_have_count(0)
    assert [url for url in watched.requests if url.endswith("?scenes=1")] != []
    assert watched.messages == []


@pytest.mark.long
def test_replay_is_controlled_by_mouse_and_plays_automatically(watched: WatchedPage, live: str) -> None:
    page = watched.page
    page.goto(live + LINKS.episode(Address("poor", "episodes", 0), 1))
    expect(page.locator("#turn-1")).to_be_visible()
    page.locator(".timeline a[data-turn='2'] .hit").click()
    expect(page.locator("#turn-2")).to_be_visible()
    assert page.url.endswith("#turn-2")
    page.locator("[data-go=first]").click()
    page.locator("#speed").select_option("8")
    page.locator("[data-go=play]").click()
    expect(page.locator("#turn-3")).to_be_visible()
    expect(page.locator("[data-go=play]")).to_have_text("▶ Play")
