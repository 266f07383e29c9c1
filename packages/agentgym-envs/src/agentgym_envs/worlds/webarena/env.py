"""The world `agentgym/WebArena-v0`: a browser, some sites, and an objective that ends with `stop`."""

from __future__ import annotations

import asyncio
import io
import os
import weakref
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from agentgym_envs.core.tasks import Task, TaskSet
from agentgym_envs.core.text_env import MAX_OBSERVATION_CHARS, EnvFault, Feedback, TextEnv
from agentgym_envs.util.chromium import check_chromium
from agentgym_envs.util.extras import brought_by
from agentgym_envs.util.screenshots import ElementBoxes, ScreenshotStore

with brought_by("webarena"):
    from agentgym_envs.worlds.webarena.actions import grammar
    from agentgym_envs.worlds.webarena.actions.candidates import choices
    from agentgym_envs.worlds.webarena.actions.perform import perform
    from agentgym_envs.worlds.webarena.browser.login import Accounts
    from agentgym_envs.worlds.webarena.browser.playwright_errors import TabClosed
    from agentgym_envs.worlds.webarena.browser.session import Session
    from agentgym_envs.worlds.webarena.browser.site_urls import Sites
    from agentgym_envs.worlds.webarena.episode_session import Stage
    from agentgym_envs.worlds.webarena.evaluation import Judge, Verdict, evaluate
    from agentgym_envs.worlds.webarena.expert.expert import Expert
    from agentgym_envs.worlds.webarena.expert.reasons import Situation
    from agentgym_envs.worlds.webarena.page.observation import frame, literal, one_line, shortened, tree
    from agentgym_envs.worlds.webarena.page.snapshot import take
    from agentgym_envs.worlds.webarena.tasks.reset_hook import ResetHook
    from agentgym_envs.worlds.webarena.tasks.site_backend import EmbeddedVenue, RealVenue
    from agentgym_envs.worlds.webarena.tasks.task_sets import EMBEDDED, check_task_set, task_set
    from agentgym_envs.worlds.webarena.tasks.verified import ANSWER_FORMAT, evaluate_verified, is_verified

_FRAME_ROOM = 6_000  # characters of an observation that are kept for what stands around the tree
_STEP_PATIENCE, _START_PATIENCE = 120.0, 1_200.0  # seconds; a real site may have to be reset first


class WebArena(TextEnv):
    """Do something on web sites through a browser, read as text. `stop` ends the episode, right or wrong.

    Args:
        task_set: `embedded`, tasks on sites that come along; `webarena`, `webarena-verified` or
            `webarena-verified-hard` (with the extra `webarena-verified`); or a file or folder of tasks in WebArena's
            JSON.
        sites: URLs of the real sites, for all sets but `embedded`: a mapping from WebArena's names (`shopping`,
            `shopping_admin`, `reddit`, `gitlab`, `map`, `wikipedia`, `homepage`) or `shopping=URL,reddit=URL`. What it
            doesn't name is looked up in the environment: `SHOPPING`, or before it `WA_SHOPPING`, and so on.
        extra_hosts: Further hosts (`host` or `host:port`) that the real sites' pages need, such as a map's tiles.
        accounts: Name and password by site, in place of WebArena's published ones.
        judge: `MODEL@BASE_URL` of an OpenAI-compatible endpoint that judges free answers; its key is read from
            `OPENAI_API_KEY`. Without it such tasks are refused when they are asked for.
        skip_judged: Leave out the tasks that need a judge.
        reset_hook: A URL, or a program and its arguments, that resets the real sites before tasks that ask for it.
        observe: Show what is in the `viewport`, or the whole `page`.
        max_chars: Longest tree shown.
        viewport: Width and height of the window in pixels.
        screenshot: Add a picture of the window to `info["screenshot"]`, as an array (height, width, 3) of uint8.
        pictures: A folder in which a picture of each page that was shown is kept; see `agentgym_envs.util.screenshots`.
        executable_path: The Chromium to run.
        render_mode: `ansi` for the text, `rgb_array` for a picture.

    The score is 1 when everything holds that the task checks (the answer, the address, contents of pages, and on the
    embedded sites the databases), else 0; `info["raw"]` has each part. A task's category is its site or `cross-site`.
    """

    metadata: dict[str, Any] = {"render_modes": ["ansi", "rgb_array"], "render_fps": 1}  # noqa: RUF012 - as Gymnasium has it
    package: ClassVar[str] = __package__ or ""
    client_options = frozenset({"observe", "max_chars", "screenshot"})
    secret_options = frozenset({"accounts", "reset_hook"})
    step_seconds = 0.17
    step_waits = True

    def __init__(
        self,
        *,
        task_set: str | Path = EMBEDDED,
        sites: Mapping[str, str] | str | None = None,
        extra_hosts: tuple[str, ...] = (),
        accounts: Mapping[str, tuple[str, str]] | None = None,
        judge: str | Judge | None = None,
        skip_judged: bool = False,
        reset_hook: str | tuple[str, ...] | ResetHook | None = None,
        observe: Literal["viewport", "page"] = "viewport",
        max_chars: int = 12_000,
        viewport: tuple[int, int] = (1280, 720),
        screenshot: bool = False,
        pictures: str | Path | None = None,
        executable_path: str | None = None,
        render_mode: str | None = None,
    ) -> None:
        super().__init__(render_mode=render_mode)
        self._set = str(task_set)
        check_task_set(self._set)
        if self._set == EMBEDDED and sites is not None:
            raise ValueError("The embedded tasks are for the embedded sites; with sites give a task_set, too.")
        if observe not in ("viewport", "page"):
            raise ValueError(f"observe is {observe!r}; give 'viewport' or 'page'.")
        most = MAX_OBSERVATION_CHARS - _FRAME_ROOM
        if isinstance(max_chars, bool) or not isinstance(max_chars, int) or not 500 <= max_chars <= most:
            raise ValueError(f"max_chars is a number from 500 to {most:,}, not {max_chars!r}.")
        if not isinstance(screenshot, bool):
            raise ValueError(f"screenshot is true or false, not {screenshot!r}.")
        if len(viewport) != 2 or not all(100 <= side <= 10_000 for side in viewport):
            raise ValueError(f"viewport is width and height in pixels, such as (1280, 720), not {viewport!r}.")
        self._accounts = Accounts.of(accounts or {})
        self._real = None if self._set == EMBEDDED else _real_venue(sites, self._accounts, reset_hook, extra_hosts)
        self._judge = _judge(judge)
        self._skip_judged = skip_judged
        self._whole = observe == "page"
        self._max_chars = max_chars
        self._viewport = (viewport[0], viewport[1])
        self._screenshot = screenshot
        self._album = None if pictures is None else ScreenshotStore(pictures)
        self._pictured = screenshot or self._album is not None or render_mode == "rgb_array"
        self._executable_path = executable_path
        self._stage: Stage | None = None

    @property
    def tasks(self) -> TaskSet:
        """The tasks of the set this world was made with."""
        return task_set(self._set, judged=self._judge is not None, skip_judged=self._skip_judged)

    def check_dependencies(self) -> None:
        """See that there is a Chromium."""
        check_chromium(self._executable_path)

    def oracle(self) -> str:
        """On the embedded sites the plan's next step, found on the page as it is. Published tasks come without
        plans: there it stops at once, with the reference answer where there is one.
        """
        if "plan" not in self.task.payload:
            reference: Mapping[str, Any] = self.task.payload["eval"].get("reference_answers") or {}
            return f"stop [{reference.get('exact_match') or ' '.join(reference.get('must_include', ()))}]"
        return self._expert.next(self._page)

    def oracle_thought(self) -> str:
        """What on this page serves the plan's next step, and what that leads to."""
        return self._situation().thought()

    def oracle_plan(self) -> str:
        """The plan's steps from here, without what only later pages show."""
        return self._situation().outline()

    def _situation(self) -> Situation:
        title, objective = self._titles[self._active], str(self.task.payload["intent"])
        return Situation(one_line(objective), one_line(title), self._page, self._expert.left, self.oracle())

    # The episode.

    def _start(self, task: Task) -> str:
        stage = self._standing_stage()
        stage.end()
        stage.venue.look_after()
        self._answer: str | None = None
        self._verdict: Verdict | None = None
        self._said = "None"
        self._expert = Expert(task.payload.get("plan", ()), stage.venue.sites.fill(task.payload["start_url"]))
        stage.run(self._begin(stage, task.payload), _START_PATIENCE)
        return self._shown()

    def _standing_stage(self) -> Stage:
        """The stage of this process, set up at the first reset."""
        if self._stage is None or not self._stage.ours:
            venue = self._real or EmbeddedVenue()
            self._stage = Stage(venue, self._viewport, self._executable_path)
            self._forgotten = weakref.finalize(self, self._stage.forsake)
            self._forgotten.atexit = False  # browser and sites end with the process by themselves
        return self._stage

    async def _begin(self, stage: Stage, task: Mapping[str, Any]) -> None:
        await stage.begin(task)
        await self._look(stage.session)

    def _act(self, action: str) -> Feedback:
        parsed = grammar.parse(action)
        if isinstance(parsed, str):
            self._notices = (parsed,)
            return Feedback(self._shown(), valid=False)
        stage = self._standing_stage()
        stage.venue.look_after()
        if isinstance(parsed, grammar.Stop):
            return self._stop(stage, parsed.answer)
        before = self._page
        refusal = stage.run(self._play(stage.session, parsed), _STEP_PATIENCE)
        self._expert.played(action, before, valid=refusal is None)
        self._said = action
        return Feedback(self._shown(), valid=refusal is None)

    async def _play(self, session: Session, action: grammar.Action) -> str | None:
        refusal = await perform(session, self._page, action)
        await self._look(session, *filter(None, (refusal,)))
        return refusal

    async def _look(self, session: Session, *notices: str) -> None:
        """Wait until the page is at rest and read it."""
        while True:
            await session.settle()
            try:
                self._page = await session.guard(take(session.tab))
                self._picture = await session.screenshot() if self._pictured else None
                break
            except TabClosed:
                continue
        self._notices = (*notices, *session.take_notices())
        self._titles = tuple(tab.title for tab in session.tabs)
        self._addresses = tuple(tab.url for tab in session.tabs)
        self._active = session.active

    def _stop(self, stage: Stage, answer: str) -> Feedback:
        self._verdict = stage.run(self._judged(stage, answer), _START_PATIENCE)
        self._answer, self._said = answer, f"stop [{answer}]"
        stage.end()
        came = "Everything that the task asks for holds." if self._verdict.score == 1 else "The task was not done."
        return Feedback(f"You stopped with the answer {shortened(literal(answer))}. {came}", terminated=True)

    async def _judged(self, stage: Stage, answer: str) -> Verdict:
        task, sites = self.task.payload, stage.venue.sites
        if stage.har is not None:
            await stage.session.close()  # which writes the recording
            return await asyncio.to_thread(evaluate_verified, task, answer, stage.har, sites)
        databases, accounts = stage.entry.databases, self._accounts
        return await evaluate(
            task, answer, stage.session, sites, judge=self._judge, database=databases, accounts=accounts
        )

    # What it says.

    def _shown(self) -> str:
        """What the agent reads of the page; a picture of it is kept where that is asked for."""
        said = self._frame()
        if self._album is not None and self._picture is not None:
            try:
                boxes = {node.id: node.seen for node in self._page.nodes if node.seen is not None}
                self._album.put(self.task.id, said, self._picture, ElementBoxes(*self._viewport, boxes))
            except OSError as error:
                raise EnvFault(f"A picture can't be kept in {self._album.folder}: {error}") from error
        return said

    def _frame(self) -> str:
        page = tree(self._page, self._whole, self._max_chars)
        objective = str(self.task.payload["intent"])
        if is_verified(self.task.payload):
            objective = f"{objective.rstrip('. ')}. {ANSWER_FORMAT}"
        address = self._addresses[self._active]
        whole = frame(self._titles, self._active, address, objective, self._said, self._notices, page)
        return whole if len(whole) <= MAX_OBSERVATION_CHARS else f"{whole[: MAX_OBSERVATION_CHARS - 1]}…"

    def _standing(self) -> tuple[float, bool]:
        score = 0.0 if self._verdict is None else self._verdict.score
        return score, score == 1.0

    def _state(self) -> str:
        """The tabs, the whole page with what stands in its fields, and what was written to the databases."""
        if self._stage is None or not self._stage.playing:
            return f"{self.task.id}: {self._answer}"
        tabs, changes = f"{self._addresses} {self._active}", self._stage.entry.changes()
        return f"{self.task.id}: {tabs} {changes}\n{tree(self._page, True, 1 << 30)}"

    def _available_actions(self) -> list[str] | None:
        playing = self._stage is not None and self._stage.playing
        return choices(self._page, len(self._titles)) if playing else []

    def _raw(self) -> dict[str, Any]:
        parts = {} if self._verdict is None else self._verdict.parts
        return {"url": self._addresses[self._active], "tabs": len(self._titles), "answer": self._answer, "parts": parts}

    def _info(self) -> dict[str, Any]:
        picture = {"screenshot": self._pixels()} if self._screenshot else {}
        return super()._info() | picture

    def render(self) -> Any:
        """The last observation as text in mode `ansi`, the window as an array (height, width, 3) in `rgb_array`."""
        return self._pixels() if self.render_mode == "rgb_array" else super().render()

    def _pixels(self) -> NDArray[np.uint8]:
        from PIL import Image

        if self._picture is None:
            raise EnvFault("There is no picture of this page.")
        return np.asarray(Image.open(io.BytesIO(self._picture)).convert("RGB"))

    def close(self) -> None:
        """Close the browser's session, and the browser and the sites with the last world of the process."""
        stage, self._stage = self._stage, None
        if stage is not None and stage.ours:
            self._forgotten.detach()
            stage.close()


def _real_venue(
    sites: Mapping[str, str] | str | None,
    accounts: Accounts,
    reset_hook: str | tuple[str, ...] | ResetHook | None,
    extra_hosts: tuple[str, ...],
) -> RealVenue:
    known = Sites.from_environment(os.environ).configured | Sites.of(sites or {}).configured
    if not known:
        raise ValueError(
            "Nothing is known of where the sites are: give sites='shopping=http://HOST:PORT,...', or set SHOPPING, "
            "SHOPPING_ADMIN, REDDIT, GITLAB, MAP, WIKIPEDIA and HOMEPAGE (or each with WA_ before it)."
        )
    if reset_hook is not None and not isinstance(reset_hook, ResetHook):
        reset_hook = ResetHook(reset_hook if isinstance(reset_hook, str) else tuple(reset_hook))
    return RealVenue(Sites(**known), accounts, reset_hook, extra_hosts)


def _judge(judge: str | Judge | None) -> Judge | None:
    if not isinstance(judge, str):
        return judge
    model, _, url = judge.partition("@")
    if not model or not url.startswith(("http://", "https://")):
        raise ValueError(f"judge is {judge!r}; write MODEL@http://HOST:PORT/v1.")
    return Judge(url, model, os.environ.get("OPENAI_API_KEY", ""))
