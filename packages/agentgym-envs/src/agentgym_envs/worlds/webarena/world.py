"""The world `agentgym/WebArena-v0`: a browser, some sites, and an objective that ends with `stop`."""

from __future__ import annotations

import io
import os
import tempfile
from collections.abc import Coroutine, Mapping
from pathlib import Path
from typing import Any, ClassVar, Literal, TypeVar

import numpy as np
from numpy.typing import NDArray

from agentgym_envs.retrieval.extras import brought_by
from agentgym_envs.tasks import Task, TaskSet
from agentgym_envs.text_env import MAX_OBSERVATION_CHARS, EnvFault, Feedback, TextEnv

with brought_by("webarena"):
    from agentgym_envs.worlds.webarena import actions
    from agentgym_envs.worlds.webarena.browser import Browser, acquire
    from agentgym_envs.worlds.webarena.choices import choices
    from agentgym_envs.worlds.webarena.evaluation import Judge, Verdict, evaluate
    from agentgym_envs.worlds.webarena.faults import TabClosed
    from agentgym_envs.worlds.webarena.login import Accounts
    from agentgym_envs.worlds.webarena.observation import frame, literal, shortened, tree
    from agentgym_envs.worlds.webarena.oracle import Expert
    from agentgym_envs.worlds.webarena.perform import perform
    from agentgym_envs.worlds.webarena.reset import ResetHook
    from agentgym_envs.worlds.webarena.session import Session
    from agentgym_envs.worlds.webarena.sites import Sites
    from agentgym_envs.worlds.webarena.snapshot import take
    from agentgym_envs.worlds.webarena.task_files import start_urls
    from agentgym_envs.worlds.webarena.tasks import EMBEDDED, check_task_set, task_set
    from agentgym_envs.worlds.webarena.verified import ANSWER_FORMAT, evaluate_verified, is_verified
    from agentgym_envs.worlds.webarena.web import EmbeddedWeb, RealWeb, Web

T = TypeVar("T")
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
        executable_path: The Chromium to run.
        render_mode: `ansi` for the text, `rgb_array` for a picture.

    The score is 1 when everything holds that the task checks (the answer, the address, contents of pages, and on the
    embedded sites the databases), else 0; `info["raw"]` has each part. A task's category is its site or `cross-site`.
    """

    metadata: dict[str, Any] = {"render_modes": ["ansi", "rgb_array"], "render_fps": 1}  # noqa: RUF012 - as Gymnasium has it
    package: ClassVar[str] = __package__ or ""

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
        if not 500 <= max_chars <= most:
            raise ValueError(f"max_chars is a number from 500 to {most:,}, not {max_chars!r}.")
        if len(viewport) != 2 or not all(100 <= side <= 10_000 for side in viewport):
            raise ValueError(f"viewport is width and height in pixels, such as (1280, 720), not {viewport!r}.")
        self._accounts = Accounts.of(accounts or {})
        self._real = None if self._set == EMBEDDED else _real_web(sites, self._accounts, reset_hook, extra_hosts)
        self._judge = _judge(judge)
        self._skip_judged = skip_judged
        self._whole = observe == "page"
        self._max_chars = max_chars
        self._viewport = tuple(viewport)
        self._screenshot = screenshot
        self._pictured = screenshot or render_mode == "rgb_array"
        self._executable_path = executable_path
        self._web: Web | None = None
        self._browser: Browser | None = None
        self._session: Session | None = None
        self._recordings: tempfile.TemporaryDirectory[str] | None = None

    @property
    def tasks(self) -> TaskSet:
        """The tasks of the set this world was made with."""
        return task_set(self._set, judged=self._judge is not None, skip_judged=self._skip_judged)

    def oracle(self) -> str:
        """On the embedded sites the plan's next step, found on the page as it is. Published tasks come without
        plans: there it stops at once, with the reference answer where there is one.
        """
        if "plan" not in self.task.payload:
            reference: Mapping[str, Any] = self.task.payload["eval"].get("reference_answers") or {}
            return f"stop [{reference.get('exact_match') or ' '.join(reference.get('must_include', ()))}]"
        return self._expert.next(self._page)

    # The episode.

    def _start(self, task: Task) -> str:
        self._end_episode()
        if self._web is None:
            self._web = self._real or EmbeddedWeb()
        if self._browser is None:
            self._browser = acquire(self._web.hosts, self._executable_path)
        self._web.look_after()
        self._answer: str | None = None
        self._verdict: Verdict | None = None
        self._said = "None"
        self._expert = Expert(task.payload.get("plan", ()), self._web.sites.fill(task.payload["start_url"]))
        self._run(self._begin(task.payload, self._web), _START_PATIENCE)
        return self._frame()

    async def _begin(self, task: Mapping[str, Any], web: Web) -> None:
        assert self._browser is not None
        self._entry = await web.enter(task, self._open)
        har = None
        if is_verified(task):
            self._recordings = tempfile.TemporaryDirectory(prefix="agentgym-har-")
            har = Path(self._recordings.name, "trace.har")
        self._har = har
        self._session = await self._open(**self._entry.session, record_har_path=har)
        for number, url in enumerate(start_urls(web.sites.fill(dict(task)))):
            if number:
                await self._session.new_tab()
            if (refusal := await self._session.goto(url)) is not None:
                raise EnvFault(f"The task's first page can't be opened: {refusal}")
        await self._session.focus(0)
        await self._look(self._session)

    async def _open(self, storage_state: Mapping[str, Any] | None = None, **options: Any) -> Session:
        assert self._browser is not None
        return await self._browser.session(storage_state=storage_state, viewport=self._viewport, **options)

    def _act(self, action: str) -> Feedback:
        parsed = actions.parse(action)
        if isinstance(parsed, str):
            self._notices = (parsed,)
            return Feedback(self._frame(), valid=False)
        if self._web is not None:
            self._web.look_after()
        if isinstance(parsed, actions.Stop):
            return self._stop(parsed.answer)
        expected = self.oracle()
        refusal = self._run(self._play(parsed), _STEP_PATIENCE)
        self._expert.played(action, expected, valid=refusal is None)
        self._said = action
        return Feedback(self._frame(), valid=refusal is None)

    async def _play(self, action: actions.Action) -> str | None:
        session = self._there()
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
        self._active, self._url = session.active, session.tab.url

    def _stop(self, answer: str) -> Feedback:
        self._answer, self._said = answer, f"stop [{answer}]"
        self._verdict = self._run(self._judged(answer), _START_PATIENCE)
        self._end_episode()
        came = "Everything that the task asks for holds." if self._verdict.score == 1 else "The task was not done."
        return Feedback(f"You stopped with the answer {shortened(literal(answer))}. {came}", terminated=True)

    async def _judged(self, answer: str) -> Verdict:
        assert self._web is not None
        task, session = self.task.payload, self._there()
        if self._har is not None:
            await session.close()  # which writes the recording
            return evaluate_verified(task, answer, self._har, self._web.sites)
        databases = self._entry.databases
        return await evaluate(
            task, answer, session, self._web.sites, judge=self._judge, database=databases, accounts=self._accounts
        )

    def _end_episode(self) -> None:
        session, self._session = self._session, None
        if session is not None and self._browser is not None:
            self._browser.loop.run(session.close(), _STEP_PATIENCE)
        recordings, self._recordings = self._recordings, None
        if recordings is not None:
            recordings.cleanup()
        if self._web is not None:
            self._web.leave()

    # What it says.

    def _frame(self) -> str:
        page = tree(self._page, self._whole, self._max_chars)
        objective = str(self.task.payload["intent"])
        if is_verified(self.task.payload):
            objective = f"{objective.rstrip('. ')}. {ANSWER_FORMAT}"
        whole = frame(self._titles, self._active, self._url, objective, self._said, self._notices, page)
        return whole if len(whole) <= MAX_OBSERVATION_CHARS else f"{whole[: MAX_OBSERVATION_CHARS - 1]}…"

    def _standing(self) -> tuple[float, bool]:
        score = 0.0 if self._verdict is None else self._verdict.score
        return score, score == 1.0

    def _state(self) -> str:
        """The tabs, the whole page with what stands in its fields, and what was written to the databases."""
        if self._session is None:
            return f"{self.task.id}: {self._answer}"
        addresses = [tab.url for tab in self._session.tabs]
        return f"{self.task.id}: {addresses} {self._active} {self._entry.changes()}\n{tree(self._page, True, 1 << 30)}"

    def _available_actions(self) -> list[str] | None:
        return [] if self._session is None else choices(self._page, len(self._titles))

    def _raw(self) -> dict[str, Any]:
        parts = {} if self._verdict is None else self._verdict.parts
        return {"url": self._url, "tabs": len(self._titles), "answer": self._answer, "parts": parts}

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
        try:
            self._end_episode()
        finally:
            browser, self._browser = self._browser, None
            if browser is not None:
                browser.release()
            web, self._web = self._web, None
            if web is not None:
                web.close()

    def _there(self) -> Session:
        if self._session is None:
            raise EnvFault("The browser's session is over; reset() begins another.")
        return self._session

    def _run(self, work: Coroutine[Any, Any, T], patience: float) -> T:
        assert self._browser is not None
        return self._browser.loop.run(work, patience)


def _real_web(
    sites: Mapping[str, str] | str | None,
    accounts: Accounts,
    reset_hook: str | tuple[str, ...] | ResetHook | None,
    extra_hosts: tuple[str, ...],
) -> RealWeb:
    known = Sites.from_environment(os.environ).configured | Sites.of(sites or {}).configured
    if not known:
        raise ValueError(
            "Nothing is known of where the sites are: give sites='shopping=http://HOST:PORT,...', or set SHOPPING, "
            "SHOPPING_ADMIN, REDDIT, GITLAB, MAP, WIKIPEDIA and HOMEPAGE (or each with WA_ before it)."
        )
    if reset_hook is not None and not isinstance(reset_hook, ResetHook):
        reset_hook = ResetHook(reset_hook if isinstance(reset_hook, str) else tuple(reset_hook))
    return RealWeb(Sites(**known), accounts, reset_hook, extra_hosts)


def _judge(judge: str | Judge | None) -> Judge | None:
    if not isinstance(judge, str):
        return judge
    model, _, url = judge.partition("@")
    if not model or not url.startswith(("http://", "https://")):
        raise ValueError(f"judge is {judge!r}; write MODEL@http://HOST:PORT/v1.")
    return Judge(url, model, os.environ.get("OPENAI_API_KEY", ""))
