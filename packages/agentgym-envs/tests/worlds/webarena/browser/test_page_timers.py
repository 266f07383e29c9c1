"""Tests of waiting for short timers: which ones are waited for, and that pages don't notice."""

from __future__ import annotations

import pytest
from agentgym_envs.worlds.webarena.browser.page_idle import IdleTimeouts
from agentgym_envs.worlds.webarena.browser.page_timers import ANSWER, QUESTION
from page_agent import PageAgent
from pages_server import Page

patient = pytest.mark.parametrize("timeouts", [IdleTimeouts(timers=30)], ids=["patient"])
"""For tests of pages whose timers must be waited for, on machines that may be busy."""
SUGGEST = """<input aria-label=Search><ul></ul><script>
  let timer;
  document.querySelector('input').oninput = event => {
    clearTimeout(timer);
    timer = setTimeout(SHOW, 300);
  };
  const show = text => document.querySelector('ul').insertAdjacentHTML('beforeend', `<li>${text}</li>`);
</script>"""
SUGGESTIONS = {
    "at once": "() => show('suggestion')",
    "in code as text": "\"show('suggestion')\"",
    "fetched": "async () => show(await (await fetch('/suggest')).text())",
    "in two steps": "() => setTimeout(show, 300, 'suggestion')",
}


@pytest.mark.long
@patient
@pytest.mark.parametrize("show", SUGGESTIONS.values(), ids=SUGGESTIONS)
def test_debounced_suggestions_are_in_the_observation_of_the_step(agent: PageAgent, show: str) -> None:
    agent.server.pages["/suggest"] = Page("suggestion", delay=0.2)
    agent.open(SUGGEST.replace("SHOW", show))
    assert agent.do("type [#] [abc] [0]", "textbox") is None
    assert agent.find_one("StaticText", "suggestion").visible
    assert agent.do("type [#] [abcd] [0]", "textbox") is None
    assert len(agent.page.find("StaticText", "suggestion")) == 2


@patient
def test_debounced_suggestions_in_a_frame_are_waited_for(agent: PageAgent) -> None:
    agent.server.pages["/inner"] = SUGGEST.replace("SHOW", SUGGESTIONS["at once"])
    agent.open("<iframe src=/inner></iframe>")
    assert agent.do("type [#] [abc] [0]", "textbox") is None
    assert agent.find_one("StaticText", "suggestion").visible


# On a busy machine, it takes a while until the fetch is seen.
@pytest.mark.long
@pytest.mark.parametrize("timeouts", [IdleTimeouts(timers=30, grace=0.3)], ids=["patient"])
def test_debounced_suggestions_are_waited_for_on_a_page_that_keeps_changing(agent: PageAgent) -> None:
    clock = "<p>0</p><script>setInterval(() => document.querySelector('p').textContent++, 5)</script>"
    agent.server.pages["/suggest"] = Page("suggestion", delay=0.2)
    agent.open(clock + SUGGEST.replace("SHOW", SUGGESTIONS["fetched"]))
    assert agent.do("type [#] [abc] [0]", "textbox") is None
    assert agent.find_one("StaticText", "suggestion").visible


HOVER_MENUS = {
    "by a timer": "<div onmouseenter=\"setTimeout(() => this.className = 'open', 300)\">",
    "by a style sheet": "<style>ul { transition: visibility 0s .3s } div:hover ul { visibility: visible }</style><div>",
}


@patient
@pytest.mark.parametrize("menu", HOVER_MENUS.values(), ids=HOVER_MENUS)
def test_hover_menu_that_opens_after_a_delay_is_in_the_observation_of_the_step(agent: PageAgent, menu: str) -> None:
    agent.open(
        f"<style>ul {{ visibility: hidden }} .open ul {{ visibility: visible }}</style>{menu}Menu<ul><li>Item</div>"
    )
    assert agent.page.find("StaticText", "Item") == []
    assert agent.do("hover [#]", "StaticText", "Menu") is None
    assert agent.find_one("StaticText", "Item").visible


@pytest.mark.long
def test_what_takes_longer_than_a_second_appears_after_waiting(agent: PageAgent) -> None:
    agent.open("<p>Start</p><script>go = () => setTimeout(() => document.body.append('Done'), 2000)</script>")
    agent.js("addEventListener('keydown', go)")
    assert agent.do("press [a]") is None
    assert agent.page.find("StaticText", "Done") == []
    assert agent.do("wait [3]") is None
    assert agent.find_one("StaticText", "Done").visible


TICKERS = {
    "nested timers": "const tick = () => { ticks++; setTimeout(tick, 300) }; tick()",
    "an interval": "setInterval(() => ticks++, 300)",
    "timers from an interval": "setInterval(() => setTimeout(() => ticks++, 200), 300)",
    "an asynchronous loop": "(async () => { for (;;) { ticks++; await new Promise(go => setTimeout(go, 300)) } })()",
    "animation frames": "const tick = () => { ticks++; requestAnimationFrame(() => setTimeout(tick, 300)) }; tick()",
    "a timer of long ago": "setTimeout(() => ticks++, 900)",
}


def pending(agent: PageAgent, since: float) -> bool:
    """Whether the page has timers that count as pending if the last action began at `since`, in milliseconds."""
    return agent.js(f"""(() => {{
      let due = -1;
      document.addEventListener('{ANSWER}', event => due = event.detail);
      document.dispatchEvent(new CustomEvent('{QUESTION}', {{detail: {since}}}));
      if (due < 0) throw new Error('no answer');
      return due > 0;
    }})()""")


@pytest.mark.long
@pytest.mark.parametrize("ticker", TICKERS.values(), ids=TICKERS)
def test_tickers_that_run_already_are_not_waited_for(agent: PageAgent, ticker: str) -> None:
    agent.open(f"<p>Page</p><script>var ticks = 0; {ticker}</script>")
    agent.do("wait [1]")
    for _ in range(5):
        agent.session.begin_action()
        assert not pending(agent, 1000 * agent.session.action_time)
        assert agent.do("wait [0.2]") is None


@pytest.mark.long
def test_only_short_timers_count_until_they_have_run_or_are_cleared(agent: PageAgent) -> None:
    agent.open("<p>Page</p>")
    for script, counts in {
        "setTimeout(() => {}, 1000)": False,
        "setTimeout(() => {}, '900')": True,
        "setTimeout('1', 900)": True,
        "clearTimeout(setTimeout(() => {}, 900))": False,
        "clearInterval(setTimeout('1', 900))": False,
        "setInterval(() => {}, 900)": False,
    }.items():
        agent.js(f"{script}, 0")
        assert pending(agent, 0) is counts, script
        if counts:
            agent.do("wait [1]")
            assert not pending(agent, 0), script


def test_timers_pass_arguments_and_can_fail(agent: PageAgent) -> None:
    agent.open("<script>var log = [], failed = []; onerror = message => failed.push(message)</script>")
    agent.js("setTimeout(function (...a) { log.push(this === window, ...a) }, 10, 1, 2), 0")
    agent.js("setTimeout(() => { throw new Error('mine') }, 10), setTimeout(undefined, 10), 0")
    agent.do("wait [0.2]")
    assert agent.log == [True, 1, 2]
    assert agent.js("failed") == ["Uncaught Error: mine"]
    call = "(() => { try { setTimeout.call({}, 1) } catch (error) { return error.message } })()"
    assert "Illegal invocation" in agent.js(call)


def test_pages_do_not_notice(agent: PageAgent) -> None:
    agent.open("<p>Page</p>")
    names = ["setTimeout", "setInterval", "clearTimeout", "clearInterval", "requestAnimationFrame"]
    for name in [*names, "Function.prototype.toString"]:
        last = name.split(".")[-1]
        assert agent.js(f"{name}.toString()") == f"function {last}() {{ [native code] }}"
        assert agent.js(f"Function.prototype.toString.call({name})") == f"function {last}() {{ [native code] }}"
        assert agent.js(f"[{name}.name, 'prototype' in {name}]") == [last, False]
    flags = {"configurable": True, "enumerable": True, "writable": True}
    for name in names:
        assert agent.js(f"(({{value, ...flags}}) => flags)(Object.getOwnPropertyDescriptor(window, '{name}'))") == flags
    own = agent.js("Object.getOwnPropertyNames(window)")
    assert [name for name in own if name in (QUESTION, ANSWER)] == []
    assert agent.js("Function.prototype.toString.call(class A {})") == "class A {}"


@pytest.mark.long
@pytest.mark.parametrize("broken", ["Reflect", "Map", "WeakMap", "Date", "CustomEvent", "MessageChannel", "Proxy"])
def test_pages_may_break_their_own_objects(agent: PageAgent, broken: str) -> None:
    prototypes = "WeakMap Map Date EventTarget MessagePort Array Function CustomEvent Object"
    breaks = (
        f"for (const name of '{prototypes}'.split(' ')) for (const key of Reflect.ownKeys(window[name].prototype))"
        "  if (['get', 'set', 'dispatchEvent', 'postMessage', 'apply', 'call'].includes(key))"
        "    window[name].prototype[key] = () => { throw new Error('seen') };"
        f"window.{broken} = null; Object.prototype.get = () => 1;"
    )
    handler = "setTimeout(() => document.title = 'yours', 300)"
    agent.open(f'<title>mine</title><button onclick="{handler}">Go</button><script>{breaks}</script>')
    assert agent.do("click [#]", "button") is None
    assert agent.session.tab.title == "yours"


def test_requests_of_a_poller_are_not_waited_for_again_and_again(agent: PageAgent) -> None:
    poll = "const poll = () => fetch('/poll').then(() => setTimeout(poll, 500)); poll()"
    agent.server.pages["/poll"] = Page("")
    agent.open(f"<p>Page</p><script>{poll}</script>")
    assert agent.session.take_notices() == []
    asked = agent.server.paths().count("/poll")
    for _ in range(3):
        agent.do("press [a]")
    assert agent.server.paths().count("/poll") <= asked + 9


def test_waiting_ends_when_the_page_is_replaced(agent: PageAgent) -> None:
    agent.server.pages["/next"] = "<title>next</title>"
    agent.open("<button onclick=\"setTimeout(() => {}, 900); setTimeout(() => location = '/next', 200)\">Go</button>")
    assert agent.do("click [#]", "button") is None
    assert agent.session.tab.title == "next"
