"""One episode on a page of MiniWoB++: its start, the actions that it doesn't take, and the page's own reward."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from playwright.async_api import Error, Page

from agentgym_envs.worlds.webarena.actions import action_types as actions
from agentgym_envs.worlds.webarena.browser.playwright_errors import TabClosed, is_lost
from agentgym_envs.worlds.webarena.browser.session import Session
from agentgym_envs.worlds.webarena.evaluation import Verdict

INSTRUCTIONS: Final = """\
Each task is a single page, whose yellow bar at the top states the OBJECTIVE. The episode ends as soon as the page \
counts your attempt, right or wrong; `stop` gives up before that. Addresses, history and tabs are not used."""
"""What the environment's instructions add for this task set."""
GIVEN_UP: Final = Verdict(0.0, {"reward": 0.0})
"""The verdict if the agent stops or leaves the page before the page has counted its attempt."""
_GRADED_BY_DISTANCE = frozenset({"bisect-angle", "circle-center", "find-midpoint", "right-angle"})
"""Pages whose reward falls with the distance from a point that may lie between pixels, so that no click may reach 1."""
_ROUNDING = 1e-9  # of rewards that a page adds up
_ELSEWHERE = (
    actions.Goto,
    actions.GoBack,
    actions.GoForward,
    actions.NewTab,
    actions.TabFocus,
    actions.CloseTab,
)
# A page's time limit is lifted: its reward doesn't depend on how fast the agent is. Timers take at most 2^31 - 1 ms.
# The cursor of `terminal`, a page's timer `flicker`, doesn't blink, so that the same state has the same text. What is
# typed there is shown as text: the page would take it for markup, whose scripts could end the episode. The cover that
# a page shows after its end doesn't begin another episode: the second half of a double click would reach it. The texts
# of `scroll-text-2` can't be replaced by ones that are too short to scroll.
_START = """seed => {
  core.EPISODE_MAX_TIME = 2147483647;
  core.countdownTimer = core.clearTimer = () => {};
  Math.seedrandom(seed);
  for (const name of ['generateTerminalLine', 'generateTerminalOutput']) {
    const write = window[name];
    if (write) window[name] = text => write(text.replace(/[&<>]/g, c => `&#${c.charCodeAt(0)};`));
  }
  core.startEpisodeReal();
  core.cover_div.onclick = null;
  if (location.pathname.endsWith('/scroll-text-2.html'))
    addEventListener('beforeinput', event => event.preventDefault(), true);
  if (typeof flicker === 'number') clearInterval(flicker);
  for (const id of ['reward-display', 'click-canvas']) document.getElementById(id).style.display = 'none';
  window.agentgymEpisode = true;
  const asked = core.getUtterance();
  return typeof asked === 'string' ? {utterance: asked, fields: {}} : asked;
}"""
_LOADED = "typeof core === 'object' && Boolean(core.cover_div)"
_READY = "WOB_TASK_READY"
_STATUS = """window.agentgymEpisode
  ? {done: WOB_DONE_GLOBAL, reward: WOB_RAW_REWARD_GLOBAL, reason: String(WOB_REWARD_REASON || '')} : null"""
_PATIENCE = 30_000.0  # ms for a page's own scripts to load


class PageTask:
    """An episode on one page."""

    def __init__(self, task: Mapping[str, Any]) -> None:
        self.page = str(task["page"])
        self.fields: dict[str, str] = {}
        """What an objective in free words means, where the page says so: `by`, `to` and `message` of an e-mail."""
        self._seed = str(task["seed"])

    async def start(self, session: Session) -> str:
        """Start the page's problem, in the same way as the package's own environments, and return what it asks for.

        Raises:
            EnvFault: if the page doesn't load, or its script fails.
        """
        page = session.tab.page
        await session.guard(page.wait_for_function(_LOADED, timeout=_PATIENCE))
        asked = await session.guard(page.evaluate(_START, self._seed))
        await session.guard(page.wait_for_function(_READY, timeout=_PATIENCE))
        self.fields = {name: str(value) for name, value in asked["fields"].items()}
        return " ".join(str(asked["utterance"]).split())

    def refusal(self, action: actions.Action) -> str | None:
        """Return a sentence on why the page doesn't take an action, or None."""
        if isinstance(action, _ELSEWHERE):
            return "This task is a single page: addresses, history and tabs are not used."
        return None

    def is_success(self, score: float) -> bool:
        """Whether a score is the page's best, which is 1; on pages graded by distance, whether it is positive."""
        return score > 0 if self.page in _GRADED_BY_DISTANCE else score >= 1 - _ROUNDING

    async def verdict(self, session: Session) -> Verdict | None:
        """Return the page's reward if it has ended the episode, or if the agent has left the page; else None."""
        try:
            status = await session.guard(_status(session.tab.page))
        except TabClosed:
            status = None
        if status is None:
            return GIVEN_UP
        if not status["done"]:
            return None
        reward = float(status["reward"])
        return Verdict(min(max(reward, 0.0), 1.0), {"reward": reward})


def reward_sentence(verdict: Verdict) -> str:
    """Describe the end of an episode that the page has ended."""
    return f"The episode has ended: the page's reward is {verdict.parts['reward']:g}."


async def _status(page: Page) -> Any:
    try:
        return await page.evaluate(_STATUS)
    except Error as error:
        if is_lost(error):
            return None  # another document is loading
        raise
