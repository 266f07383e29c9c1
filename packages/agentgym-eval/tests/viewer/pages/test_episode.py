from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from html import unescape
from pathlib import Path

import pytest
from agentgym_envs import Episode, EpisodeSpec, Policy, Reply, Sample, TokenUsage, Turn, TurnContext, make, play
from agentgym_envs.agents.agent import Agent
from agentgym_envs.util.screenshots import ElementBoxes, ScreenshotStore
from agentgym_eval.policies.policies import Oracle
from agentgym_eval.viewer.index.index import Index
from agentgym_eval.viewer.index.links import Links
from agentgym_eval.viewer.pages.site import Site
from agentgym_eval.viewer.server.app import make_app
from starlette.testclient import TestClient
from viewer_runs import EVIL, episode, evaluate, write

Look = Callable[..., str]
PNG = b"\x89PNG made up"


@pytest.fixture
def look(tmp_path: Path) -> Iterator[Look]:
    """`look(path, status=200)`: the page, once what lies in `tmp_path / "runs"` is in the index."""
    (tmp_path / "runs").mkdir()
    index = Index(tmp_path / "runs", tmp_path / "index.sqlite")
    browser = TestClient(make_app(Site(index, Links())), "http://127.0.0.1:8000")

    def page(path: str, status: int = 200) -> str:
        index.refresh()
        answer = browser.get(path)
        assert answer.status_code == status, answer.text
        return answer.text

    yield page
    index.close()


def by_oracle(world: str, task: str, agent: str, noise: float = 0.0, samples: int = 1) -> list[Episode]:
    env = Agent.parse(agent).wrap(make(world))
    return [play(env, Oracle(noise), EpisodeSpec(task, sample, 0, "test")) for sample in range(samples)]


def words(page: str) -> str:
    return unescape(re.sub(r"<[^>]*>", "", page))


class Says(Policy):
    """Replies with the given texts in order."""

    name = "says"

    def __init__(self, *texts: str) -> None:
        self._texts = iter(texts)

    async def reply(self, context: TurnContext) -> Reply:
        return Reply(next(self._texts))


def record(folder: Path, env: str) -> None:
    settings = {"env": env, "options": [], "seed": 0, "policy": "oracle"}
    (folder / "run.json").write_text(json.dumps({"schema": "agentgym.run/1", "settings": settings}))


def test_a_replay_tells_everything_without_a_script(look: Look, tmp_path: Path) -> None:
    (one,) = by_oracle("agentgym/TextCraft-v0", "textcraft/test/nether_wart_block", "react+plan", 0.4)
    record(evaluate(tmp_path / "runs" / "a", [one]), one.env)
    page = look("/episode/a/episodes/0")
    told = words(page)
    for turn in one.turns:
        assert turn.observation in told
        assert (turn.action or turn.reply.text.strip()) in told
    assert one.final_observation in told
    assert "Goal reached" not in told  # what a page of play says
    assert "craft nether wart block." in re.findall(r"<h1>(.*?) <span", page)[0]
    assert page.count('class="scene crafting"') == len(one.turns) + 1
    assert page.count('<article class="turn') == len(one.turns) + 1
    assert [int(number) for number in re.findall(r'data-turn="(\d+)"', page)] == list(range(len(one.turns) + 1))


def test_a_grid_is_drawn_for_each_turn(look: Look, tmp_path: Path) -> None:
    (one,) = by_oracle("agentgym/BabyAI-v0", "babyai/test/UnlockPickup/1000000", "bare")
    record(evaluate(tmp_path / "runs" / "a", [one]), one.env)
    page = look("/episode/a/episodes/0")
    assert page.count('<svg class="grid"') == len(one.turns) + 1
    assert "locked door</title>" in page.split('id="turn-1"')[0]
    assert "carrying a" in words(page)


def test_text_of_a_world_stays_text(look: Look, tmp_path: Path) -> None:
    evil = episode(EVIL, said=f"Thought: {EVIL}", category=EVIL, policy=EVIL, instructions=EVIL, final_observation=EVIL)
    turns = tuple(replace(turn, observation=f"{EVIL}\n{EVIL}", action=EVIL) for turn in evil.turns)
    sample = Sample((1,), (2,), (-0.5,))
    said = replace(turns[0], reply=Reply(EVIL, sample=sample), action=None, valid=False)
    evil = replace(evil, turns=(*turns, said), error=EVIL, tools=({"name": EVIL},), agent=EVIL)
    evaluate(tmp_path / "runs" / "a", [evil, replace(evil, sample=1)])
    segment = {"tokens": [EVIL, EVIL], "loss_mask": [0, 1], "turn": [-1, 0]}
    segment |= {name: [None, -1.0] for name in ("logprobs", "advantages", "entropies")}
    line = {"schema": "agentgym.tokens/2", "episode": 0, "task_id": EVIL, "segments": [segment]}
    (tmp_path / "runs" / "a" / "episodes.tokens.jsonl").write_text(json.dumps(line))
    for path in ("/episode/a/episodes/0", "/siblings/a/episodes/0", "/beside?a=a/episodes/0&b=a/episodes/1"):
        page = look(path)
        assert words(page).count(EVIL) >= 4
        assert "<script>" not in page
        assert not re.search(r"<[^>]* (?:on\w+|style)=", page), "the policy would drop it"
    assert "alert(1)" in look("/raw/a/episodes/0.json")


def test_invalid_turns_trials_and_other_kinds_stand_on_the_timeline(look: Look, tmp_path: Path) -> None:
    one = episode(turns=5)
    plan, wrong, back, again, last = one.turns
    turns = (
        replace(plan, kind="plan", action=None),
        replace(wrong, valid=False, reward=0.5),
        replace(back, kind="reflect", action=None, trial=1, reward=-0.5),
        replace(again, trial=1),
        replace(last, trial=1, action=None, reply=Reply("half a re", finish="length")),
    )
    evaluate(tmp_path / "runs" / "a", [replace(one, turns=turns, stop="length", success=False, score=0.0)])
    page = look("/episode/a/episodes/0")
    marks = re.findall(r'data-turn="\d+" class="(\w+)"', page)
    assert marks == ["plan", "invalid", "reflect", "act", "act", "end"]
    assert page.count('<rect class="trial"') == 1
    assert (page.count('<rect class="gain"'), page.count('<rect class="loss"')) == (1, 1)
    assert "truncated at the token budget" in page
    assert "trial 2" in page
    assert re.findall(r'<span class="quiet">score ([^<]+)', page) == ["0", "0.5", "0", "0", "0", "0"]
    assert re.findall(r'<span class="(\w+)">', page.partition('<p class="marks">')[2].partition("</p>")[0]) == [
        *("act", "invalid", "plan", "reflect"),
        *("end", "gain", "trial"),
    ]


def test_passages_are_opened_by_their_citations(look: Look, tmp_path: Path) -> None:
    one = episode(turns=2)
    found = "<information>Doc 1(Title: Barium) It is a metal.\nDoc 2(Title: Lanthanum) It is another.</information>"
    search, answer = one.turns
    answer = replace(answer, observation=found, action="<answer>Ba</answer>")
    answer = replace(answer, reply=Reply("<think>Barium it is, says Doc 2.</think>\n<answer>Ba</answer>"))
    evaluate(tmp_path / "runs" / "a", [replace(one, turns=(search, answer), agent="tags")])
    page = look("/episode/a/episodes/0")
    anchors = re.findall(r'class="cited" href="#([\w-]+)" title="(\w+)"', page)
    assert anchors == [("passage-1-1", "Barium"), ("passage-1-2", "Lanthanum")]
    assert all(f'<p id="{anchor}">' in page for anchor, _ in anchors)


def test_pictures_that_were_kept_are_shown(look: Look, tmp_path: Path) -> None:
    one = episode()
    folder = evaluate(tmp_path / "runs" / "a", [one])
    ScreenshotStore(folder / "pictures").put(one.task_id, one.final_observation, PNG)
    page = look("/episode/a/episodes/0")
    assert re.findall(r'<img class="picture" src="([^"]+)"', page) == ["/picture/a/episodes/0/2.png"]
    assert look("/picture/a/episodes/0/2.png") == PNG.decode(errors="replace")
    for nothing in ("0", "3", "99"):
        assert "No picture" in look(f"/picture/a/episodes/0/{nothing}.png", 404)


@pytest.mark.parametrize(
    ("action", "marked"),
    [
        ("click [4]", "\t[4] link &#39;A &lt;b&gt;&#39;"),
        ("TYPE [ 4 ] [two words] [0]", "\t[4] link &#39;A &lt;b&gt;&#39;"),
        ("tab_focus [4]", None),
        ("stop [click [4]]", None),
        ("click [44]", None),
    ],
)
def test_the_element_of_an_action_is_marked(look: Look, tmp_path: Path, action: str, marked: str | None) -> None:
    tree = "Tab 0: 'T'\n\n[1] RootWebArea 'T'\n\t[4] link 'A <b>'\n\t[40] link 'B'\n\nOBJECTIVE: click [4]"
    turn = Turn(tree, Reply(action), action, valid=True, reward=0.0, state_key="s")
    one = replace(episode(), turns=(turn,), final_observation=tree)
    folder = evaluate(tmp_path / "runs" / "a", [one])
    places = ElementBoxes(1280, 720, {4: (10.0, 20.0, 110.0, 45.5), 1: (0.0, 0.0, 1280.0, 720.0)})
    ScreenshotStore(folder / "pictures").put(one.task_id, tree, PNG, places)
    page = look("/episode/a/episodes/0")
    assert re.findall(r'<mark class="target"[^>]*>(.*?)</mark>', page) == ([marked] if marked else [])
    boxes = re.findall(r'viewBox="0 0 1280 720".*?<rect ([^>]+)/>', page)
    assert boxes == (['x="10.0" y="20.0" width="100.0" height="25.5"'] if marked else [])


def test_what_an_endpoint_told_of_a_reply_is_shown(look: Look, tmp_path: Path) -> None:
    asked = TokenUsage(1200, 34, 1000), 1.5, "tool_calls", f"I see a door. {EVIL}"
    told = Reply("go", "stop", None, *asked)
    turns = (replace(episode().turns[0], reply=told), episode().turns[0], replace(episode().turns[0], reply=told))
    silent = replace(turns[0], reply=Reply("go", seconds=0.5))
    evaluate(tmp_path / "runs" / "a", [replace(episode(), turns=turns), replace(episode("t/2"), turns=(silent,))])
    page = look("/episode/a/episodes/0")
    assert "1 requests, tokens unknown" in words(look("/episode/a/episodes/1"))
    line = "1\u202f200 prompt tokens (1\u202f000 cached) · 34 completion tokens · 1.50 s · finish reason tool_calls"
    assert words(page).count(line) == page.count('<p class="request') == page.count("<summary>Reasoning</summary>") == 2
    assert "I see a door. &lt;script&gt;" in page
    assert "2 requests, 2,400" in words(page)
    assert "1 episode<" in look("/episodes?text=door")


def test_tokens_have_colours_and_figures(look: Look, tmp_path: Path) -> None:
    rollouts = tmp_path / "runs" / "t" / "rollouts" / "step-000001.jsonl"
    write(rollouts, [episode(), episode(sample=1)])
    (tmp_path / "runs" / "t" / "run.json").write_text('{"schema": "agentgym.train/2"}')
    columns = {"loss_mask": [0, 1], "turn": [-1, 0], "logprobs": [None, -3.0], "advantages": [None, 1.0]}
    segment = {"tokens": ["<user>", "go"], **columns, "entropies": [None, 0.1]}
    line = {"schema": "agentgym.tokens/2", "episode": 1, "task_id": "t/1", "group": 3, "trained": False}
    rollouts.with_suffix(".tokens.jsonl").write_text(json.dumps({**line, "segments": [segment]}))
    address = re.findall(r'href="(/episode/t/[^"]+/)0"', look("/episodes?run=t"))[0]
    page = look(f"{address}1")
    assert 'class="said p4 h0 a5" title="turn 0, log-probability -3.000' in page
    assert '<span class="read">&lt;user&gt;</span>' in page
    assert "1 completion token · group 3 · not trained on" in words(page)
    assert 'id="tokens"' not in look(f"{address}0")


def test_siblings_part_where_they_part(look: Look, tmp_path: Path) -> None:
    first, second, third = (episode(sample=sample, turns=3) for sample in range(3))
    changed = replace(second.turns[2], action="go south", reply=Reply("go south"))
    second = replace(second, turns=(*second.turns[:2], changed))
    evaluate(tmp_path / "runs" / "a", [third, first, second, episode("t/2")])
    page = look("/siblings/a/episodes/0")
    heads = re.findall(r'<th scope="col"><a href="([^"]+)"', page)
    assert heads == ["/episode/a/episodes/1", "/episode/a/episodes/2", "/episode/a/episodes/0"]
    assert "diverge at turn 2" in page
    assert page.count('<td class="same"') == 2 + 2 + 1
    assert "All episodes are identical" in look("/beside?a=a/episodes/0&b=a/episodes/1")
    assert "different tasks: t/1, t/2" in words(look("/beside?a=a/episodes/0&b=a/episodes/3"))


def test_columns_side_by_side_are_headed_by_what_sets_them_apart(look: Look, tmp_path: Path) -> None:
    evaluate(
        tmp_path / "runs" / "long-name", [episode(), episode(sample=1, success=False), episode(sample=2, success=None)]
    )
    evaluate(tmp_path / "runs" / "other", [episode(policy="q")])
    group, beside = look("/siblings/long-name/episodes/0"), look("/beside?a=long-name/episodes/0&b=other/episodes/0")
    heads = [re.findall(r'<th scope="col">(.*?)</th>', page, re.DOTALL) for page in (group, beside)]
    one, two, three = map(words, heads[0])
    assert [each.split()[:3] for each in (one, two, three)] == [
        ["attempt", "0", "success"], ["attempt", "1", "failure"], ["attempt", "2", "error"],
    ]  # fmt: skip
    assert group.count(">long-name</a>") == 1
    assert [words(each).split()[:5] for each in heads[1]] == [
        ["long-name,", "attempt", "0", "success", "p"], ["other,", "attempt", "0", "success", "q"],
    ]  # fmt: skip


def test_attempts_are_linked_in_their_order(look: Look, tmp_path: Path) -> None:
    evaluate(tmp_path / "runs" / "a", [episode(sample=2), episode(sample=0, success=False), episode(sample=1)])
    page = look("/episode/a/episodes/0")
    attempts = re.findall(r'<a href="/episode/a/episodes/(\d)"[^>]*>(\d)</a>', page)
    assert attempts == [("1", "0"), ("2", "1"), ("0", "2")]


@pytest.mark.parametrize(
    ("path", "status", "sentence"),
    [
        ("/episode/a/episodes/9", 404, "has no episode 9"),
        ("/episode/b/episodes/0", 404, "There is no run b"),
        ("/episode/a/other/0", 404, "has no file other"),
        ("/siblings/a/episodes/9", 404, "has no episode 9"),
        ("/beside?a=a/episodes/0", 400, "b must be an episode address RUN/FILE/NUMBER"),
        ("/beside?a=a/episodes/x&b=a/episodes/0", 400, "a must be an episode address"),
    ],
)
def test_what_is_not_there_is_said(look: Look, tmp_path: Path, path: str, status: int, sentence: str) -> None:
    evaluate(tmp_path / "runs" / "a", [episode()])
    assert sentence in words(look(path, status))


def test_an_episode_that_broke_at_once_has_a_page(look: Look, tmp_path: Path) -> None:
    broken = episode(success=None, turns=0, error="EnvFault: no browser", final_observation="")
    evaluate(tmp_path / "runs" / "a", [broken])
    assert "EnvFault: no browser" in words(look("/episode/a/episodes/0"))
    assert "All episodes are identical" in look("/siblings/a/episodes/0")


@pytest.mark.long
def test_a_slow_world_is_drawn_when_asked(look: Look, tmp_path: Path) -> None:
    env = Agent.parse("bare").wrap(make("agentgym/SciWorld-v0"))
    says = Says("open door to kitchen", "look around", "go to kitchen", "pick up thermometer")
    one = play(env, says, EpisodeSpec("sciworld/train/boil/0"), horizon=4)
    record(evaluate(tmp_path / "runs" / "a", [one]), one.env)
    first = look("/episode/a/episodes/0")
    (later,) = re.findall(r'id="scenes-later"><a href="([^"]+)"', first)
    assert 'class="scene' not in first
    page = look(later)
    assert page.count('class="scene text"') == len(one.turns) + 1
    assert "that is open)</mark>" in page.split('id="turn-1"')[1].split('id="turn-2"')[0]
    assert "scenes-later" not in page
