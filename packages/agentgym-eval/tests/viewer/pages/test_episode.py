"""Tests of the pages of an episode, its siblings and side-by-side comparison."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from html import unescape
from pathlib import Path

import pytest
from agentgym_envs import (
    Episode,
    EpisodeSpec,
    ExpertStart,
    Policy,
    Reply,
    Sample,
    TokenUsage,
    Turn,
    TurnContext,
    make,
    play,
    play_many,
)
from agentgym_envs.agents.agent import Agent
from agentgym_eval.policies.policies import Oracle
from viewer_runs import EVIL, GetPage, episode, write_episodes, write_evaluation_run


def by_oracle(env_id: str, task: str, agent: str, noise: float = 0.0, samples: int = 1) -> list[Episode]:
    env = Agent.parse(agent).wrap(make(env_id))
    return [play(env, Oracle(noise), EpisodeSpec(task, sample, 0, "test")) for sample in range(samples)]


def visible_text(page: str) -> str:
    return unescape(re.sub(r"<[^>]*>", "", page))


class RepliesInOrder(Policy):
    """Replies with the given texts in order."""

    name = "says"

    def __init__(self, *texts: str) -> None:
        self._texts = iter(texts)

    async def reply(self, context: TurnContext) -> Reply:
        return Reply(next(self._texts))


def write_run_json(folder: Path, env: str) -> None:
    settings = {"env": env, "options": [], "seed": 0, "policy": "oracle"}
    (folder / "run.json").write_text(json.dumps({"schema": "agentgym.run/1", "settings": settings}))


def test_a_turn_whose_context_does_not_continue_the_previous_one_is_marked(tmp_path: Path, get_page: GetPage) -> None:
    said = [Sample((1, 2), (3,), (-1.0,), fresh=fresh) for fresh in (True, False, True)]
    turns = tuple(Turn("Go.", Reply("on", sample=each), None, True, 0.0, "s") for each in said)
    write_episodes(tmp_path / "runs/mine.jsonl", [replace(episode(), turns=turns)])
    articles = get_page("/episode/mine.jsonl/mine/0").split("<article")[1:]
    assert ["new context" in article for article in articles] == [False, False, True, False]


def test_episode_page_is_complete_without_scripts(get_page: GetPage, tmp_path: Path) -> None:
    (recorded,) = by_oracle("agentgym/TextCraft-v0", "textcraft/test/nether_wart_block", "react+plan", 0.4)
    write_run_json(write_evaluation_run(tmp_path / "runs" / "a", [recorded]), recorded.env)
    page = get_page("/episode/a/episodes/0")
    text = visible_text(page)
    for turn in recorded.turns:
        assert turn.observation in text
        assert (turn.action or turn.reply.text.strip()) in text
    assert recorded.final_observation in text
    assert "Goal reached" not in text  # shown only when playing
    assert "craft nether wart block." in re.findall(r"<h1>(.*?) <span", page)[0]
    assert page.count('class="scene crafting"') == len(recorded.turns) + 1
    assert page.count('<article class="turn') == len(recorded.turns) + 1
    assert [int(number) for number in re.findall(r'data-turn="(\d+)"', page)] == list(range(len(recorded.turns) + 1))


def test_turns_of_an_expert_before_the_policys_are_shown_as_such(get_page: GetPage, tmp_path: Path) -> None:
    env = Agent.parse("bare").wrap(make("agentgym/TextCraft-v0"))
    spec = EpisodeSpec("textcraft/test/nether_wart_block", 0, 0, "test")
    (recorded,) = play_many(env, RepliesInOrder("inventory"), [spec], horizon=1, expert_start=ExpertStart(1))
    led = len(recorded.turns) - 1
    assert led > 0
    write_run_json(write_evaluation_run(tmp_path / "runs" / "a", [recorded]), recorded.env)
    page = get_page("/episode/a/episodes/0")
    assert page.count('<article class="turn expert"') == page.count('<span class="tag">expert</span>') == led
    assert page.count('<span class="tag">masked in the loss</span>') == led
    assert '<span class="expert">expert</span>' in page
    assert f"truncated after 1 action in {led + 1} turns" in visible_text(page)


def test_grid_is_drawn_for_each_turn(get_page: GetPage, tmp_path: Path) -> None:
    (recorded,) = by_oracle("agentgym/BabyAI-v0", "babyai/test/UnlockPickup/1000000", "bare")
    write_run_json(write_evaluation_run(tmp_path / "runs" / "a", [recorded]), recorded.env)
    page = get_page("/episode/a/episodes/0")
    assert page.count('<svg class="grid"') == len(recorded.turns) + 1
    assert "locked door</title>" in page.split('id="turn-1"')[0]
    assert "carrying a" in visible_text(page)


def test_text_of_an_episode_is_escaped(get_page: GetPage, tmp_path: Path) -> None:
    evil = episode(
        EVIL, reply=f"Thought: {EVIL}", category=EVIL, policy=EVIL, instructions=EVIL, final_observation=EVIL
    )
    turns = tuple(replace(turn, observation=f"{EVIL}\n{EVIL}", action=EVIL) for turn in evil.turns)
    sample = Sample((1,), (2,), (-0.5,))
    sampled = replace(turns[0], reply=Reply(EVIL, sample=sample), action=None, valid=False)
    evil = replace(evil, turns=(*turns, sampled), error=EVIL, tools=({"name": EVIL},), agent=EVIL)
    write_evaluation_run(tmp_path / "runs" / "a", [evil, replace(evil, sample=1)])
    segment = {"tokens": [EVIL, EVIL], "loss_mask": [0, 1], "turn": [-1, 0]}
    segment |= {name: [None, -1.0] for name in ("logprobs", "advantages", "entropies")}
    line = {"schema": "agentgym.tokens/2", "episode": 0, "task_id": EVIL, "segments": [segment]}
    (tmp_path / "runs" / "a" / "episodes.tokens.jsonl").write_text(json.dumps(line))
    for path in ("/episode/a/episodes/0", "/siblings/a/episodes/0", "/side-by-side?a=a/episodes/0&b=a/episodes/1"):
        page = get_page(path)
        assert visible_text(page).count(EVIL) >= 4
        assert "<script>" not in page
        assert not re.search(r"<[^>]* (?:on\w+|style)=", page), "the content security policy forbids inline code"
    assert "alert(1)" in get_page("/raw/a/episodes/0.json")


def test_timeline_marks_invalid_turns_trials_and_kinds_of_turns(get_page: GetPage, tmp_path: Path) -> None:
    recorded = episode(turns=5)
    plan, invalid, reflection, second_trial, last = recorded.turns
    turns = (
        replace(plan, kind="plan", action=None),
        replace(invalid, valid=False, reward=0.5),
        replace(reflection, kind="reflect", action=None, trial=1, reward=-0.5),
        replace(second_trial, trial=1),
        replace(last, trial=1, action=None, reply=Reply("half a re", finish="length")),
    )
    write_evaluation_run(
        tmp_path / "runs" / "a", [replace(recorded, turns=turns, stop="length", success=False, score=0.0)]
    )
    page = get_page("/episode/a/episodes/0")
    marks = re.findall(r'data-turn="\d+" class="([\w ]+)"', page)
    assert marks == ["plan", "invalid", "reflect", "act", "act decided", "end"]
    assert page.count('<rect class="trial"') == 1
    assert (page.count('<rect class="gain"'), page.count('<rect class="loss"')) == (1, 1)
    assert "truncated at the token budget" in page
    assert "trial 2" in page
    assert re.findall(r'<span class="quiet">score ([^<]+)', page) == ["0", "0.5", "0", "0", "0", "0"]
    assert re.findall(r'<span class="(\w+)">', page.partition('<p class="marks">')[2].partition("</p>")[0]) == [
        *("act", "invalid", "plan", "reflect"),
        *("end", "gain", "decision", "trial"),
    ]


def test_citations_link_to_their_passages(get_page: GetPage, tmp_path: Path) -> None:
    recorded = episode(turns=2)
    result = "<information>Doc 1(Title: Barium) It is a metal.\nDoc 2(Title: Lanthanum) It is another.</information>"
    search, answer = recorded.turns
    answer = replace(answer, observation=result, action="<answer>Ba</answer>")
    answer = replace(answer, reply=Reply("<think>Barium it is, says Doc 2.</think>\n<answer>Ba</answer>"))
    write_evaluation_run(tmp_path / "runs" / "a", [replace(recorded, turns=(search, answer), agent="tags")])
    page = get_page("/episode/a/episodes/0")
    anchors = re.findall(r'class="cited" href="#([\w-]+)" title="(\w+)"', page)
    assert anchors == [("passage-1-1", "Barium"), ("passage-1-2", "Lanthanum")]
    assert all(f'<p id="{anchor}">' in page for anchor, _ in anchors)


def test_usage_and_reasoning_of_replies_are_shown(get_page: GetPage, tmp_path: Path) -> None:
    metadata = TokenUsage(1200, 34, 1000), 1.5, "tool_calls", f"I see a door. {EVIL}"
    reply = Reply("go", "stop", None, *metadata)
    turns = (replace(episode().turns[0], reply=reply), episode().turns[0], replace(episode().turns[0], reply=reply))
    without_usage = replace(turns[0], reply=Reply("go", seconds=0.5))
    write_evaluation_run(
        tmp_path / "runs" / "a", [replace(episode(), turns=turns), replace(episode("t/2"), turns=(without_usage,))]
    )
    page = get_page("/episode/a/episodes/0")
    assert "1 requests, tokens unknown" in visible_text(get_page("/episode/a/episodes/1"))
    line = "1\u202f200 prompt tokens (1\u202f000 cached) · 34 completion tokens · 1.50 s · finish reason tool_calls"
    assert (
        visible_text(page).count(line)
        == page.count('<p class="request')
        == page.count("<summary>Reasoning</summary>")
        == 2
    )
    assert "I see a door. &lt;script&gt;" in page
    assert "2 requests, 2,400" in visible_text(page)
    assert "1 episode<" in get_page("/episodes?text=door")


def test_tokens_have_colors_and_statistics(get_page: GetPage, tmp_path: Path) -> None:
    rollouts = tmp_path / "runs" / "t" / "rollouts" / "step-000001.jsonl"
    write_episodes(rollouts, [episode(), episode(sample=1)])
    (tmp_path / "runs" / "t" / "run.json").write_text('{"schema": "agentgym.train/2"}')
    columns = {"loss_mask": [0, 1], "turn": [-1, 0], "logprobs": [None, -3.0], "advantages": [None, 1.0]}
    segment = {"tokens": ["<user>", "go"], **columns, "entropies": [None, 0.1]}
    line = {"schema": "agentgym.tokens/2", "episode": 1, "task_id": "t/1", "group": 3, "trained": False}
    rollouts.with_suffix(".tokens.jsonl").write_text(json.dumps({**line, "segments": [segment]}))
    address = re.findall(r'href="(/episode/t/[^"]+/)0\?', get_page("/episodes?run=t"))[0]
    page = get_page(f"{address}1")
    assert 'class="said p4 h0 a5" title="turn 0, log-probability -3.000' in page
    assert '<span class="read">&lt;user&gt;</span>' in page
    assert "1 completion token · group 3 · not trained on" in visible_text(page)
    assert 'id="tokens"' not in get_page(f"{address}0")


def test_sibling_page_shows_the_divergence(get_page: GetPage, tmp_path: Path) -> None:
    first, second, third = (episode(sample=sample, turns=3) for sample in range(3))
    changed = replace(second.turns[2], action="go south", reply=Reply("go south"))
    second = replace(second, turns=(*second.turns[:2], changed))
    write_evaluation_run(tmp_path / "runs" / "a", [third, first, second, episode("t/2")])
    page = get_page("/siblings/a/episodes/0")
    headers = re.findall(r'<th scope="col"><a href="([^"]+)"', page)
    assert headers == ["/episode/a/episodes/1", "/episode/a/episodes/2", "/episode/a/episodes/0"]
    assert "diverge at turn 2" in page
    assert page.count('<td class="same"') == 2 + 2 + 1
    assert "All episodes are identical" in get_page("/side-by-side?a=a/episodes/0&b=a/episodes/1")
    assert "different tasks: t/1, t/2" in visible_text(get_page("/side-by-side?a=a/episodes/0&b=a/episodes/3"))


def test_column_headers_show_the_differences_of_episodes(get_page: GetPage, tmp_path: Path) -> None:
    write_evaluation_run(
        tmp_path / "runs" / "long-name", [episode(), episode(sample=1, success=False), episode(sample=2, success=None)]
    )
    write_evaluation_run(tmp_path / "runs" / "other", [episode(policy="q")])
    siblings, side_by_side = (
        get_page("/siblings/long-name/episodes/0"),
        get_page("/side-by-side?a=long-name/episodes/0&b=other/episodes/0"),
    )
    headers = [re.findall(r'<th scope="col">(.*?)</th>', page, re.DOTALL) for page in (siblings, side_by_side)]
    first, second, third = map(visible_text, headers[0])
    assert [header.split()[:3] for header in (first, second, third)] == [
        ["attempt", "0", "success"], ["attempt", "1", "failure"], ["attempt", "2", "error"],
    ]  # fmt: skip
    assert siblings.count(">long-name</a>") == 1
    assert [visible_text(header).split()[:5] for header in headers[1]] == [
        ["long-name,", "attempt", "0", "success", "p"], ["other,", "attempt", "0", "success", "q"],
    ]  # fmt: skip


def test_attempts_are_linked_in_order(get_page: GetPage, tmp_path: Path) -> None:
    write_evaluation_run(
        tmp_path / "runs" / "a", [episode(sample=2), episode(sample=0, success=False), episode(sample=1)]
    )
    page = get_page("/episode/a/episodes/0")
    attempts = re.findall(r'<a href="/episode/a/episodes/(\d)"[^>]*>(\d)</a>', page)
    assert attempts == [("1", "0"), ("2", "1"), ("0", "2")]


@pytest.mark.parametrize(
    ("path", "status", "sentence"),
    [
        ("/episode/a/episodes/9", 404, "has no episode 9"),
        ("/episode/b/episodes/0", 404, "There is no run b"),
        ("/episode/a/other/0", 404, "has no file other"),
        ("/siblings/a/episodes/9", 404, "has no episode 9"),
        ("/side-by-side?a=a/episodes/0", 400, "b must be an episode address RUN/FILE/NUMBER"),
        ("/side-by-side?a=a/episodes/x&b=a/episodes/0", 400, "a must be an episode address"),
    ],
)
def test_missing_episodes_are_reported(
    get_page: GetPage, tmp_path: Path, path: str, status: int, sentence: str
) -> None:
    write_evaluation_run(tmp_path / "runs" / "a", [episode()])
    assert sentence in visible_text(get_page(path, status))


def test_episode_that_failed_at_reset_has_a_page(get_page: GetPage, tmp_path: Path) -> None:
    broken = episode(success=None, turns=0, error="EnvFault: no browser", final_observation="")
    write_evaluation_run(tmp_path / "runs" / "a", [broken])
    assert "EnvFault: no browser" in visible_text(get_page("/episode/a/episodes/0"))
    assert "All episodes are identical" in get_page("/siblings/a/episodes/0")


@pytest.mark.long
def test_slow_scenes_are_rendered_on_request(get_page: GetPage, tmp_path: Path) -> None:
    env = Agent.parse("bare").wrap(make("agentgym/SciWorld-v0"))
    policy = RepliesInOrder("open door to kitchen", "look around", "go to kitchen", "pick up thermometer")
    recorded = play(env, policy, EpisodeSpec("sciworld/train/boil/0"), horizon=4)
    write_run_json(write_evaluation_run(tmp_path / "runs" / "a", [recorded]), recorded.env)
    first = get_page("/episode/a/episodes/0")
    (later,) = re.findall(r'id="scenes-later"><a href="([^"]+)"', first)
    assert 'class="scene' not in first
    page = get_page(later)
    assert page.count('class="scene text"') == len(recorded.turns) + 1
    assert "that is open)</mark>" in page.split('id="turn-1"')[1].split('id="turn-2"')[0]
    assert "scenes-later" not in page


def href(page: str, rel: str) -> str:
    match = re.search(rf'<a rel="{rel}" href="([^"]*)"', page)
    return unescape(match[1]) if match else ""


def test_filters_stay_with_an_episode_that_was_opened_from_a_list(tmp_path: Path, get_page: GetPage) -> None:
    played = [episode(f"t/{n}", 0, n % 2 == 0, reply="red door" if n > 2 else "go") for n in range(6)]
    write_evaluation_run(tmp_path / "runs/eval", played)
    listed = get_page("/episodes?success=no&sort=-task")
    link = re.search(r'href="(/episode/[^"]*)">t/<wbr>3', listed)
    assert link is not None
    page = get_page(unescape(link[1]))
    assert "2 of 3" in visible_text(page)
    assert 'href="/episodes?sort=-task&amp;success=no"' in page
    assert href(page, "prev") == "/episode/eval/episodes/5?sort=-task&success=no"
    page = get_page(href(page, "next"))
    assert "3 of 3" in visible_text(page)
    assert href(page, "next") == ""


def test_next_result_of_a_search_is_opened_at_its_turn(tmp_path: Path, get_page: GetPage) -> None:
    looks = [Turn("A room.", Reply(text), text, True, 0.0, "s") for text in ("go", "red door")]
    write_evaluation_run(tmp_path / "runs/eval", [replace(episode(f"t/{n}"), turns=tuple(looks)) for n in range(2)])
    assert href(get_page("/episode/eval/episodes/0?text=red+door"), "next") == (
        "/episode/eval/episodes/1?text=red+door#turn-1"
    )


def test_episode_without_a_list_has_the_neighbours_of_its_file(tmp_path: Path, get_page: GetPage) -> None:
    write_evaluation_run(tmp_path / "runs/a", [episode(f"t/{n}") for n in range(2)])
    write_evaluation_run(tmp_path / "runs/b", [episode(f"t/{n}") for n in range(2)])
    page = get_page("/episode/a/episodes/1")
    assert "2 of 2" in visible_text(page) and "in episodes.jsonl" in visible_text(page)
    assert (href(page, "prev"), href(page, "next")) == ("/episode/a/episodes/0", "")
    page = get_page("/episode/a/episodes/1?list=all")
    assert "of 4" in visible_text(page)
    assert "list=all" in href(page, "prev") + href(page, "next")
    assert "not among the 0" in visible_text(get_page("/episode/a/episodes/1?success=no"))
    assert "no filter colour" in get_page("/episode/a/episodes/1?colour=red", 400)
