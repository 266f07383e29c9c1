"""WebArena's embedded tasks as BrowserGym's: importing this module registers `browsergym/agentgym.webarena.test.0` and
the others, for agents of BrowserGym and AgentLab.

Observations, actions and chat are BrowserGym's own. The browser reaches the embedded sites only.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache, partial
from typing import Any, ClassVar, cast

import gymnasium
from gymnasium.error import DependencyNotInstalled

from agentgym_envs.core.tasks import SPLITS, Task
from agentgym_envs.util.chromium import PLAYWRIGHTS, find_chromium
from agentgym_envs.util.installation import install
from agentgym_envs.worlds.webarena.external_episode import CANONICAL_SCRIPT, ExternalEpisode, external_tasks

try:
    from browsergym.core import _get_global_playwright  # pyright: ignore[reportMissingImports]
    from browsergym.core.env import BrowserEnv  # pyright: ignore[reportMissingImports]
    from browsergym.core.task import AbstractBrowserTask  # pyright: ignore[reportMissingImports]
except ModuleNotFoundError as missing:
    raise DependencyNotInstalled(
        f"The BrowserGym adapter needs BrowserGym. Install it: {install('agentgym-envs[browsergym]')}"
    ) from missing

PREFIX = "agentgym."
"""The beginning of the names of the tasks in BrowserGym."""
_INFEASIBLE = "N/A"
_LOCAL = "file:///**"


def browsergym_name(task_id: str) -> str:
    """Return BrowserGym's name of a task of ours: `agentgym.webarena.test.0` for `webarena/test/0`."""
    return PREFIX + task_id.replace("/", ".")


class SiteTask(AbstractBrowserTask):  # pyright: ignore[reportUntypedBaseClass]
    """A task on the embedded sites. It ends with the agent's message, which is its answer.

    Args:
        seed: Has no effect, as tasks and sites are fixed.
        task: The task of ours.
        sites: The embedded sites.
        skin: How the sites look and behave, `plain` or `rough`; see docs/webarena.md.
    """

    def __init__(self, seed: int | None, task: Task, sites: ExternalEpisode, skin: str = "plain") -> None:
        super().__init__(seed)
        self.slow_mo, self.timeout = 0, 10_000  # milliseconds
        self.locale, self.timezone_id = "en-US", "UTC"
        self._task, self._sites, self._skin = task, sites, skin
        self._is_over = False

    def setup(self, page: Any) -> tuple[str, dict[str, Any]]:
        """Open the start pages of a fresh copy of the sites, signed in.

        Returns:
            The goal, and information on the task.

        Raises:
            EnvFault: if the sites fail.
        """
        opening, context = self._sites.start(self._task, self._skin), page.context
        context.route(_LOCAL, _refuse)  # files of this machine may have the tasks' solutions
        context.set_extra_http_headers(dict(opening.headers))
        context.add_cookies([dict(cookie) for cookie in opening.cookies])
        for number, url in enumerate(opening.start_urls):
            (page if number == 0 else context.new_page()).goto(url)
        page.bring_to_front()
        task = self._task
        information = {"task_id": task.id, "split": task.split, "category": task.category, "template": task.cluster}
        return str(task.payload["intent"]), information

    def validate(
        self, page: Any, chat_messages: Sequence[Mapping[str, Any]]
    ) -> tuple[float, bool, str, dict[str, Any]]:
        """Judge the episode if the last message in the chat is the agent's. `report_infeasible` answers `N/A`.

        Returns:
            Reward, whether the episode is over, no message of the user, and the score of each part of the evaluation.

        Raises:
            EnvFault: if the sites or their databases fail.
        """
        last = chat_messages[-1]
        if self._is_over or last["role"] not in ("assistant", "infeasible"):
            self._sites.ensure_running()
            return 0.0, self._is_over, "", {}
        answer = _INFEASIBLE if last["role"] == "infeasible" else str(last["message"])
        verdict = self._sites.evaluate(answer, page.url, page.evaluate(CANONICAL_SCRIPT))
        self._is_over = True
        return verdict.score, True, "", {"answer": answer, "parts": verdict.parts}


def _refuse(route: Any) -> None:
    route.abort()


class SiteEnv(BrowserEnv):  # pyright: ignore[reportUntypedBaseClass]
    """BrowserGym's environment of one task on the embedded sites, which have a fresh copy for each episode.

    Args:
        task_id: The id of the task, such as `webarena/test/0`.
        task_kwargs: Keyword arguments of `SiteTask`: `skin`.
        pw_chromium_kwargs: Further arguments of Playwright's `launch`. A Chromium is found as in our own environments
            if Playwright has none.
        settings: Other keyword arguments of BrowserGym's environment.
    """

    metadata: ClassVar[dict[str, Any]] = {"render_modes": []}  # BrowserGym's None makes Gymnasium warn

    def __init__(
        self,
        task_id: str,
        task_kwargs: Mapping[str, Any] | None = None,
        pw_chromium_kwargs: Mapping[str, Any] | None = None,
        **settings: Any,
    ) -> None:
        self._task, self._sites = external_tasks()[task_id], cast("ExternalEpisode | None", None)
        self._task_kwargs, self._launch_kwargs = dict(task_kwargs or {}), dict(pw_chromium_kwargs or {})
        super().__init__(SiteTask, **settings)

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Start the task on fresh copies of the sites.

        Raises:
            EnvFault: if the sites fail.
            gymnasium.error.DependencyNotInstalled: if no Chromium is installed.
        """
        self.close()
        self._sites = ExternalEpisode()
        self.task_kwargs = {**self._task_kwargs, "task": self._task, "sites": self._sites}
        self.pw_chromium_kwargs = {**self._launch_kwargs, "proxy": {"server": self._sites.proxy}}
        try:
            with _found_chromium():
                return super().reset(seed=seed)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Close the browser and delete the episode's copy of the sites. May be called twice."""
        super().close()
        sites, self._sites = self._sites, None
        if sites is not None:
            sites.close()


@contextmanager
def _found_chromium() -> Generator[None]:
    """Let BrowserGym launch the Chromium of our own environments if Playwright has none."""
    program = _program()
    if program is PLAYWRIGHTS:
        yield
        return
    chromium = _get_global_playwright().chromium
    launch = chromium.launch
    chromium.launch = partial(launch, executable_path=program)
    try:
        yield
    finally:
        chromium.launch = launch


_program = cache(find_chromium)


def _register() -> None:
    tasks = external_tasks()
    for split in SPLITS:
        for task_id in tasks.split(split).ids:
            gymnasium.register(
                f"browsergym/{browsergym_name(task_id)}",
                f"{__name__}:{SiteEnv.__name__}",
                nondeterministic=True,
                disable_env_checker=True,  # BrowserGym's spaces don't pass
                kwargs={"task_id": task_id},
            )


_register()
