"""The environment `agentgym/WebArena-v0`: an objective to reach on web sites through a browser."""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar, Literal

from agentgym_envs.core.action_schema import Function
from agentgym_envs.core.tasks import Task, TaskSet
from agentgym_envs.core.text_env import MAX_ACTION_CHARS, MAX_OBSERVATION_CHARS, Feedback, TextEnv
from agentgym_envs.util.chromium import check_chromium
from agentgym_envs.util.extras import brought_by
from agentgym_envs.util.screenshots import ScreenshotStore

with brought_by("webarena"):
    from agentgym_envs.worlds.webarena.actions import grammar
    from agentgym_envs.worlds.webarena.actions.action_types import Action, Stop
    from agentgym_envs.worlds.webarena.actions.candidates import candidate_actions
    from agentgym_envs.worlds.webarena.actions.perform import perform
    from agentgym_envs.worlds.webarena.browser.login import Accounts
    from agentgym_envs.worlds.webarena.browser.session import Session
    from agentgym_envs.worlds.webarena.episode_session import EpisodeSession
    from agentgym_envs.worlds.webarena.evaluation import Judge, Verdict, evaluate
    from agentgym_envs.worlds.webarena.expert.expert import Expert
    from agentgym_envs.worlds.webarena.expert.reasons import Situation
    from agentgym_envs.worlds.webarena.miniwob.backend import MiniWobPages
    from agentgym_envs.worlds.webarena.miniwob.expert import ScriptedExpert
    from agentgym_envs.worlds.webarena.miniwob.page_server import html_folder
    from agentgym_envs.worlds.webarena.miniwob.page_task import GIVEN_UP, INSTRUCTIONS, PageTask, reward_sentence
    from agentgym_envs.worlds.webarena.miniwob.pages import choose_pages, interchangeable_names
    from agentgym_envs.worlds.webarena.miniwob.tasks import is_miniwob, miniwob_tasks
    from agentgym_envs.worlds.webarena.observed import observe
    from agentgym_envs.worlds.webarena.options import (
        check_elements,
        check_task_set_options,
        check_view,
        choose_skins,
        draw_skin,
        judge_of,
        real_sites,
    )
    from agentgym_envs.worlds.webarena.page.element_names import ON_NAMES, on_named_elements, without_ids
    from agentgym_envs.worlds.webarena.page.marks import ON_MARKS, ON_SCREENSHOTS
    from agentgym_envs.worlds.webarena.page.observation import frame, id_and_name, literal, one_line, shortened, tree
    from agentgym_envs.worlds.webarena.tasks.reset_hook import ResetHook
    from agentgym_envs.worlds.webarena.tasks.site_backend import EmbeddedSites
    from agentgym_envs.worlds.webarena.tasks.task_sets import (
        EMBEDDED,
        MINIWOB,
        choose_templates,
        embedded_tasks,
        task_set,
    )
    from agentgym_envs.worlds.webarena.tasks.verified import ANSWER_FORMAT, evaluate_verified, is_verified

_FRAME_CHARS = 6_000  # characters of an observation that are reserved for the text around the tree
_STEP_TIMEOUT = 120.0  # seconds
_EPISODE_TIMEOUT = 1_200.0  # seconds to begin or to evaluate an episode; a real site may have to be reset first


class WebArena(TextEnv):
    """Reach an objective on web sites through a browser whose pages are observed as text. `stop` ends the episode.

    Args:
        task_set: `embedded`, tasks on the sites that this package brings; `webarena`, `webarena-agentgym-rl`,
            `webarena-verified` or `webarena-verified-hard` (with the extra `webarena-verified`); `miniwob`, the pages
            of MiniWoB++ (with the extra `miniwob`); or a file or folder of tasks in WebArena's JSON.
        pages: Names of the pages of `miniwob` to play, such as `"click-button"`, or of groups of them: `text` (the
            default), `positions`, `pixels`, `time` and `all`; see docs/webarena.md.
        templates: Names of the templates of the embedded tasks to play, such as `"map/phone"`; default all. A task's
            cluster is the name of its template.
        skin: How the embedded sites look and behave, with the same data and tasks: `plain`; `rough`, with the widgets
            and the length of large web applications; or `mixed`, one of the two per episode, drawn from the seed of
            `reset` and the task, and reported in `info["raw"]["skin"]`. See docs/webarena.md.
        sites: URLs of the real sites, for all sets but `embedded` and `miniwob`: a mapping from WebArena's names
            (`shopping`, `shopping_admin`, `reddit`, `gitlab`, `map`, `wikipedia`, `homepage`) or
            `shopping=URL,reddit=URL`. Missing sites are read from environment variables: `WA_SHOPPING`, then
            `SHOPPING`, and so on.
        extra_hosts: Further hosts (`host` or `host:port`) that the real sites' pages need, such as a map's tiles.
        accounts: User name and password by site, in place of WebArena's published ones.
        judge: `MODEL@BASE_URL` of an OpenAI-compatible endpoint that judges free-form answers. Its key is read from
            `OPENAI_API_KEY`. Without a judge, a task that needs one raises an error when it is selected.
        skip_judged: Leave out the tasks that need a judge.
        reset_hook: A URL, or a program and its arguments, that resets the real sites before tasks that require it; or
            `containers`, which replaces the sites' Docker containers of `webarena-verified` before every task.
        observe: Show what is in the `viewport`, or the whole `page`.
        positions: Show where visible elements are: `at: x,y` in pixels, for actions on points.
        elements: What stands for an element in observations and actions: its id, or role and name (`names`), such as
            `click [button 'Save']`.
        max_chars: Maximum length of the accessibility tree in an observation, in characters.
        viewport: Width and height of the window in pixels.
        screenshot: Add a screenshot to `info["screenshot"]`, as an array (height, width, 3) of uint8, and the positions
            of the visible elements in it to `info["element_boxes"]`: left, top, right and bottom by id or name.
        marks: Draw a box and the id on screenshots around each visible element that can be acted on.
        pictures: A folder to which a screenshot of each observed page is written; see `agentgym_envs.util.screenshots`.
        executable_path: Path of the Chromium to run, relative to the working directory of this call.
        render_mode: `ansi` for the text, `rgb_array` for a screenshot.

    The score is 1 when all checks of the task pass (the answer, the URL, contents of pages, and on the embedded sites
    the databases), else 0; `info["raw"]` has each part. A task's category is its site or `cross-site`. On a page of
    `miniwob`, the score is the page's own reward without time penalty, 0 if it is negative; the task succeeds if it is
    positive, and its category is the page.
    """

    metadata: dict[str, Any] = {"render_modes": ["ansi", "rgb_array"], "render_fps": 1}  # noqa: RUF012 - as in Gymnasium
    package: ClassVar[str] = __package__ or ""
    client_options = frozenset(
        {"templates", "pages", "skin", "observe", "positions", "elements", "max_chars", "screenshot", "marks"}
    )
    secret_options = frozenset({"accounts", "reset_hook"})
    step_seconds = 0.17
    step_waits = True
    oracle_replans = False

    def __init__(
        self,
        *,
        task_set: str | Path = EMBEDDED,
        templates: str | Sequence[str] | None = None,
        pages: str | Sequence[str] | None = None,
        skin: Literal["plain", "rough", "mixed"] = "plain",
        sites: Mapping[str, str] | str | None = None,
        extra_hosts: tuple[str, ...] = (),
        accounts: Mapping[str, tuple[str, str]] | None = None,
        judge: str | Judge | None = None,
        skip_judged: bool = False,
        reset_hook: str | tuple[str, ...] | ResetHook | None = None,
        observe: Literal["viewport", "page"] = "viewport",
        positions: bool = False,
        elements: Literal["ids", "names"] = "ids",
        max_chars: int = 12_000,
        viewport: tuple[int, int] = (1280, 720),
        screenshot: bool = False,
        marks: bool = False,
        pictures: str | Path | None = None,
        executable_path: str | None = None,
        render_mode: str | None = None,
    ) -> None:
        super().__init__(render_mode=render_mode)
        self._task_set = str(task_set)
        hosted_here = self._task_set in (EMBEDDED, MINIWOB)
        self._task_path = check_task_set_options(self._task_set, sites=sites, templates=templates, pages=pages)
        self._skins = choose_skins(skin, self._task_set)
        self._templates = choose_templates(templates)
        self._pages = choose_pages(pages)
        longest = MAX_OBSERVATION_CHARS - _FRAME_CHARS
        check_view(observe, max_chars, viewport, longest, screenshot=screenshot, marks=marks, positions=positions)
        check_elements(elements, marks=marks)
        self._accounts = Accounts.of(accounts or {})
        self._real_sites = None if hosted_here else real_sites(sites, self._accounts, reset_hook, extra_hosts)
        self._judge = judge_of(judge)
        self._skip_judged = skip_judged
        self._whole_page = observe == "page"
        self._positions = positions
        self._by_name = elements == "names"
        self._max_chars = max_chars
        self._viewport = (viewport[0], viewport[1])
        self._screenshot = screenshot
        self._screenshot_store = None if pictures is None else ScreenshotStore(pictures)
        self._needs_picture = screenshot or self._screenshot_store is not None or render_mode == "rgb_array"
        if marks and not self._needs_picture:
            raise ValueError("marks=True draws on screenshots, but none are taken; add screenshot=True.")
        self._marks = marks
        self._executable_path = None if executable_path is None else str(Path(executable_path).absolute())
        self._episode: EpisodeSession | None = None

    @property
    def tasks(self) -> TaskSet:
        """The tasks of the environment's `task_set`."""
        if self._task_set == MINIWOB:
            return miniwob_tasks(self._pages)
        if self._templates is not None:
            return embedded_tasks(self._templates)
        return task_set(self._task_set, self._task_path, judged=self._judge is not None, skip_judged=self._skip_judged)

    @property
    def instructions(self) -> str:
        """The instructions for an agent, with paragraphs on names of elements, pages of `miniwob` and screenshots if
        there are any.
        """
        seen = f"{ON_SCREENSHOTS} {ON_MARKS}" if self._marks else ON_SCREENSHOTS
        parts = (ON_NAMES, self._by_name), (INSTRUCTIONS, self._task_set == MINIWOB), (seen, self._screenshot)
        return "\n\n".join((super().instructions, *(text for text, applies in parts if applies)))

    @property
    def has_screenshots(self) -> bool:
        """Whether `info` has screenshots."""
        return self._screenshot

    def check_dependencies(self) -> None:
        """Check that Chromium is installed, and the pages of `miniwob` if they are played."""
        check_chromium(self._executable_path)
        if self._task_set == MINIWOB:
            html_folder()

    @property
    def functions(self) -> tuple[Function, ...]:
        """The kinds of actions; elements are numbers, or with `elements="names"` texts."""
        return tuple(map(on_named_elements, super().functions)) if self._by_name else super().functions

    def oracle(self) -> str:
        """Return the expert's next action.

        On the embedded sites it is the next step of the task's plan, resolved on the current page; on a page of
        `miniwob` that of its script. Published tasks have no plans: for them it is `stop`, with the reference answer if
        there is one.

        Raises:
            ValueError: if the task is a page of `miniwob` without a script.
        """
        return self._seen.names.with_names(self._next()) if self._by_name else self._next()

    def _next(self) -> str:
        if self._scripted is not None:
            return self._scripted.next()
        if "plan" not in self.task.payload:
            reference: Mapping[str, Any] = self.task.payload["eval"].get("reference_answers") or {}
            return f"stop [{reference.get('exact_match') or ' '.join(reference.get('must_include', ()))}]"
        return self._expert.next(self._seen.page)

    def oracle_thought(self) -> str:
        """Explain why the plan's next step is taken on this page and what follows it."""
        return "" if self._scripted is not None else self._situation().thought()

    def oracle_plan(self) -> str:
        """List the remaining steps of the plan without details that only later pages show."""
        return "" if self._scripted is not None else self._situation().outline()

    def interchangeable_names(self) -> tuple[tuple[str, ...], ...]:
        """Return the placeholder words and first names of the pages of `miniwob`; there are none on other sites."""
        return interchangeable_names() if self._task_set == MINIWOB else ()

    def _situation(self) -> Situation:
        title, remaining = one_line(self._seen.title), self._expert.remaining
        detour = self._expert.detour(self._seen.page) if remaining else ""
        return Situation(one_line(self._objective), title, self._seen.page, remaining, self._next(), detour)

    # Episodes.

    def _choose(self, options: dict[str, Any]) -> Task:
        # Before the task: with the same seed, a task has the same skin whether it is drawn or given.
        drawn = int(self.np_random.integers(2**32)) if len(self._skins) > 1 else 0
        task = super()._choose(options)
        self._skin = draw_skin(self._skins, task.id, drawn)
        return task

    def _start(self, task: Task) -> str:
        episode = self._episode_session()
        episode.end()
        episode.backend.ensure_running()
        self._answer: str | None = None
        self._verdict: Verdict | None = None
        self._previous_action = "None"
        self._objective = str(task.payload["intent"])
        self._expert = Expert(task.payload.get("plan", ()), episode.start_urls(task.payload)[0])
        self._page_task = PageTask(task.payload) if is_miniwob(task.payload) else None
        self._scripted: ScriptedExpert | None = None
        episode.run(self._begin_episode(episode, task.payload), _EPISODE_TIMEOUT)
        return self._observation()

    def _episode_session(self) -> EpisodeSession:
        """Return the episode session of this process, which the first reset creates."""
        if self._episode is None or not self._episode.in_this_process:
            backend = self._real_sites or (MiniWobPages() if self._task_set == MINIWOB else EmbeddedSites())
            self._episode = EpisodeSession(backend, self._viewport, self._executable_path)
            self._finalizer = weakref.finalize(self, self._episode.close_in_background)
            self._finalizer.atexit = False  # at exit, browser and sites shut down by themselves
        return self._episode

    async def _begin_episode(self, episode: EpisodeSession, task: Mapping[str, Any]) -> None:
        await episode.begin({**task, "skin": self._skin})
        if self._page_task is not None:
            self._objective = await self._page_task.start(episode.session)
        await self._observe(episode.session)
        if self._page_task is not None:
            self._scripted = ScriptedExpert(self._page_task, self._objective, self._seen.page)

    def _act(self, action: str) -> Feedback:
        written, (action, parsed) = action, self._parsed(action)
        if isinstance(parsed, str):
            self._seen = replace(self._seen, notices=(parsed,))
            return Feedback(self._observation(), valid=False)
        episode = self._episode_session()
        episode.backend.ensure_running()
        if isinstance(parsed, Stop):
            return self._stop(episode, parsed.answer)
        before = self._seen.page
        valid = episode.run(self._perform_action(episode.session, parsed), _STEP_TIMEOUT) is None
        self._expert.record(action, before, valid=valid)
        if self._scripted is not None:
            self._scripted.record(action, self._seen.page, valid=valid)
        self._previous_action = written
        if self._verdict is not None:
            episode.end()
            return Feedback(reward_sentence(self._verdict), valid=valid, terminated=True)
        return Feedback(self._observation(), valid=valid)

    def _parsed(self, action: str) -> tuple[str, Action | str]:
        """Return an action with ids in place of names, and parsed, or as a hint for the agent if it is none."""
        if len(action) > MAX_ACTION_CHARS:
            return action, f"An action has at most {MAX_ACTION_CHARS:,} characters."
        try:
            action = self._seen.names.with_ids(action) if self._by_name else action
        except LookupError as error:
            return action, str(error)
        return action, grammar.parse(action)

    async def _perform_action(self, session: Session, action: Action) -> str | None:
        refusal = None if self._page_task is None else self._page_task.refusal(action)
        refusal = refusal or await perform(session, self._seen.page, action)
        await self._observe(session, *filter(None, (refusal,)))
        if self._page_task is not None:
            self._verdict = await self._page_task.verdict(session)
        return refusal

    async def _observe(self, session: Session, *notices: str) -> None:
        icons, screenshot = self._page_task is not None, self._needs_picture
        self._seen = await observe(session, *notices, icons=icons, screenshot=screenshot, marks=self._marks)

    def _stop(self, episode: EpisodeSession, answer: str) -> Feedback:
        self._verdict = episode.run(self._evaluate_answer(episode, answer), _EPISODE_TIMEOUT)
        self._answer, self._previous_action = answer, f"stop [{answer}]"
        episode.end()
        outcome = "Everything that the task asks for holds." if self._verdict.score == 1 else "The task was not done."
        return Feedback(f"You stopped with the answer {shortened(literal(answer))}. {outcome}", terminated=True)

    async def _evaluate_answer(self, episode: EpisodeSession, answer: str) -> Verdict:
        task, sites = self.task.payload, episode.backend.sites
        if self._page_task is not None:
            return await self._page_task.verdict(episode.session) or GIVEN_UP
        if episode.har is not None:
            await episode.session.close()  # this writes the HAR file
            return await asyncio.to_thread(evaluate_verified, task, answer, episode.har, sites)
        databases, accounts = episode.setup.databases, self._accounts
        return await evaluate(
            task, answer, episode.session, sites, judge=self._judge, database=databases, accounts=accounts
        )

    # Observations and info.

    def _observation(self) -> str:
        """Return the observation, and write its screenshot to the `pictures` folder if there is one."""
        observation = self._observation_text()
        if self._screenshot_store is not None:
            store, task = self._screenshot_store, self.task.id
            self._seen.write_screenshot(store, task, observation, self._viewport, by_name=self._by_name)
        return observation

    def _observation_text(self) -> str:
        seen, objective = self._seen, self._objective
        notices = tuple(map(without_ids, seen.notices)) if self._by_name else seen.notices
        label = seen.names.of if self._by_name else id_and_name
        page = tree(seen.page, self._whole_page, self._max_chars, self._positions, label)
        if is_verified(self.task.payload):
            objective = f"{objective.rstrip('. ')}. {ANSWER_FORMAT}"
        text = frame(seen.titles, seen.active, seen.address, objective, self._previous_action, notices, page)
        return text if len(text) <= MAX_OBSERVATION_CHARS else f"{text[: MAX_OBSERVATION_CHARS - 1]}…"

    def _standing(self) -> tuple[float, bool]:
        score = 0.0 if self._verdict is None else self._verdict.score
        return score, score == 1.0 if self._page_task is None else self._page_task.is_success(score)

    def _state(self) -> str:
        """Describe the tabs, the whole page with the values of its fields, and the databases' write counters."""
        if self._episode is None or not self._episode.in_episode:
            return f"{self.task.id}: {self._answer}"
        tabs, changes = f"{self._seen.addresses} {self._seen.active}", self._episode.setup.write_counters()
        return f"{self.task.id}: {tabs} {changes}\n{tree(self._seen.page, True, 1 << 30)}"

    def _available_actions(self) -> list[str] | None:
        if self._episode is None or not self._episode.in_episode:
            return []
        actions = candidate_actions(self._seen.page, len(self._seen.titles))
        return list(map(self._seen.names.with_names, actions)) if self._by_name else actions

    def _raw(self) -> dict[str, Any]:
        parts = {} if self._verdict is None else self._verdict.parts
        raw = {"url": self._seen.address, "tabs": len(self._seen.titles), "answer": self._answer, "parts": parts}
        return raw | ({"skin": self._skin} if self._task_set == EMBEDDED else {})

    def _info(self) -> dict[str, Any]:
        if not self._screenshot:
            return super()._info()
        boxes = {key: list(box) for key, box in self._seen.boxes(by_name=self._by_name).items()}
        return super()._info() | {"screenshot": self._seen.pixels(), "element_boxes": boxes}

    def render(self) -> Any:
        """Return the last observation (`ansi`), or a screenshot of shape (height, width, 3) in uint8 (`rgb_array`)."""
        return self._seen.pixels() if self.render_mode == "rgb_array" else super().render()

    def close(self) -> None:
        """Close the session. The last environment of the process also closes the browser and the embedded sites."""
        episode, self._episode = self._episode, None
        if episode is not None and episode.in_this_process:
            self._finalizer.detach()
            episode.close()
