"""Environments of BrowserGym as text environments: `browsergym:miniwob.click-test`.

An observation is the page's accessibility tree, as BrowserGym writes it, and an action is a call of its high-level
actions, such as `click('12')`.
"""

from __future__ import annotations

import difflib
import threading
from collections.abc import Callable, Generator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from importlib import resources
from importlib.util import find_spec
from typing import Any, ClassVar, ParamSpec, TypeVar

import gymnasium
from gymnasium.error import DependencyNotInstalled

from agentgym_envs.adapters.external import ExternalEnv
from agentgym_envs.core.feedback import EnvFault, Feedback, writable
from agentgym_envs.core.tasks import Split, Task, Tasks
from agentgym_envs.core.text_env import MAX_OBSERVATION_CHARS
from agentgym_envs.util.chromium import check_chromium, find_chromium
from agentgym_envs.util.importing import import_named
from agentgym_envs.util.installation import install

try:
    import browsergym.core  # pyright: ignore[reportMissingImports]
    from browsergym.core.action.highlevel import HighLevelActionSet  # pyright: ignore[reportMissingImports]
    from browsergym.utils.obs import (  # pyright: ignore[reportMissingImports]
        IGNORED_AXTREE_ROLES,
        flatten_axtree_to_str,
    )
    from playwright.sync_api import sync_playwright
except ModuleNotFoundError as missing:
    raise DependencyNotInstalled(
        f"BrowserGym's environments need BrowserGym. Install it: {install('agentgym-envs[browsergym]')}"
    ) from missing

_ACTIONS = ("chat", "infeas", "bid", "nav", "tab")
_MINIWOB = "miniwob"
_PREFIX = "browsergym/"
_CUT = " […]"
_MOST_ERROR = 1000  # characters
P = ParamSpec("P")
T = TypeVar("T")


class BrowserGymEnv(ExternalEnv):
    """Tasks that are registered with BrowserGym, each with seeds. A browser is started for each episode.

    BrowserGym uses Playwright's synchronous interface, which leaves an event loop running in its thread. So an
    environment has a thread of its own for all that is BrowserGym's, and callers may use event loops of theirs.
    """

    scheme: ClassVar[str] = "browsergym"
    step_seconds: ClassVar[float] = 1.0

    def __init__(
        self,
        source: str,
        *,
        actions: Sequence[str] = _ACTIONS,
        settings: Mapping[str, Any] | None = None,
        task_settings: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> None:
        """Create the environment without starting a browser.

        Args:
            source: The id of a task without `browsergym/`, such as `miniwob.click-test`, or a benchmark, such as
                `miniwob`, for all of its tasks in turn. `MODULE:ID` imports the module that registers the task first.
            actions: The subsets of BrowserGym's high-level actions that an agent has.
            settings: Keyword arguments of BrowserGym's environment, such as `pre_observation_delay`.
            task_settings: Keyword arguments of the task. MiniWoB's pages are those of the package `miniwob`, unless
                there is a `base_url`.
            options: See `ExternalEnv`.

        Raises:
            ValueError: if there is no such task or subset of actions, or options are out of range.
            gymnasium.error.DependencyNotInstalled: if the package of the benchmark is missing.
        """
        super().__init__(source, **options)
        self._ids = _registered(source)
        try:
            self._actions = HighLevelActionSet(list(actions), strict=False, multiaction=False)
        except ValueError as error:
            raise ValueError(f"actions must be subsets of BrowserGym's high-level actions: {error}") from error
        self._settings, self._task_settings = dict(settings or {}), dict(task_settings or {})
        if source.startswith(_MINIWOB) and "base_url" not in self._task_settings and find_spec(_MINIWOB) is not None:
            pages = resources.files(_MINIWOB).joinpath("html", "miniwob")
            self._task_settings["base_url"] = f"file://{pages}/"
        self._inner: gymnasium.Env[Any, Any] | None = None
        self._playwright: _Playwright | None = None
        self._thread: ThreadPoolExecutor | None = None
        self._said = 0

    def check_dependencies(self) -> None:
        """Check that a Chromium is installed.

        Raises:
            gymnasium.error.DependencyNotInstalled: if there is none.
        """
        check_chromium()

    def close(self) -> None:
        """Close the browser. May be called twice."""
        thread = self._thread
        if thread is None:
            return
        try:
            self._call(self._quit)
        finally:
            self._thread = None
            thread.shutdown()

    def _call(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Call a function in the environment's thread, which the first call starts."""
        if self._thread is None:
            self._thread = ThreadPoolExecutor(1, "browsergym")
        return self._thread.submit(function, *args, **kwargs).result()

    # The following run in the environment's thread.

    def _quit(self) -> None:
        """Close the episode's environment, and stop Playwright."""
        try:
            self._end()
        finally:
            playwright, self._playwright = self._playwright, None
            if playwright is not None:
                playwright.stop()

    def _end(self) -> None:
        """Close the episode's environment."""
        inner, self._inner = self._inner, None
        if inner is not None:
            inner.close()

    def _reset(self, task: Task) -> Mapping[str, Any]:
        """Start the episode's environment, and return its first observation."""
        self._end()
        settings = {"disable_env_checker": True, "action_mapping": self._actions.to_python_code, **self._settings}
        if self._task_settings:
            settings["task_kwargs"] = self._task_settings
        if self._playwright is None:
            self._playwright = _Playwright()
        with self._playwright.given():
            self._inner = gymnasium.make(f"{_PREFIX}{task.payload['task']}", **settings)
            return self._inner.reset(seed=task.payload["seed"])[0]

    # The following run in the caller's.

    def _seeds(self, split: Split, first: int) -> Tasks:
        """Return the seeds of a split, with the tasks of BrowserGym in turn."""
        seeds = super()._seeds(split, first)

        def build(task_id: str) -> Task:
            task = seeds.build(task_id)
            name = self._ids[int(task_id.rpartition("/")[2]) % len(self._ids)]
            return replace(task, category=name, payload={**task.payload, "task": name})

        return Tasks(seeds.ids, build)

    def _described(self) -> str:
        actions = self._actions.describe(with_long_description=True, with_examples=True)
        return (
            "You use a web browser to reach a goal. You see the page as its accessibility tree, one element per line, "
            "with its id in brackets: [12] button 'Send'. Ids are texts in actions: click('12').\n\n"
            f"{actions.strip()}\nYour action is one call of these functions."
        )

    def _begin(self, task: Task) -> str:
        observation = self._call(self._reset, task)
        self._said = len(_messages(observation))
        return writable(f"Goal: {observation['goal']}\n\n{_shown(observation)}")

    def _take(self, action: str) -> Feedback:
        if self._inner is None:
            raise EnvFault(f"{self.name} has no browser.")
        heard = self._said
        observation, reward, terminated, truncated, _ = self._call(self._inner.step, action)
        self._earn(float(reward))
        said = _messages(observation)
        self._said = len(said)
        news = [f"The user says: {text}" for text in said[heard:]]
        error = str(observation["last_action_error"])[:_MOST_ERROR]
        if error:
            news.append(f"The action failed: {error}")
        return Feedback(
            writable("\n\n".join([*news, _shown(observation)])),
            valid=not error,
            terminated=bool(terminated),
            truncated=bool(truncated),
        )


class _Playwright:
    """The Playwright of one environment, made and used in its thread. Its Chromium is that of our own environments.

    BrowserGym has one for all threads, although Playwright's objects belong to the thread that made them.
    """

    def __init__(self) -> None:
        program = find_chromium()
        self._started: Any = sync_playwright().start()
        chromium = self._started.chromium
        chromium.launch = partial(chromium.launch, executable_path=program)

    def stop(self) -> None:
        """Stop it."""
        self._started.stop()

    @contextmanager
    def given(self) -> Generator[None]:
        """Let BrowserGym use it, as it does when an episode begins."""
        with _LOCK:
            others = browsergym.core._PLAYWRIGHT
            browsergym.core._set_global_playwright(self._started)
            try:
                yield
            finally:
                browsergym.core._set_global_playwright(others)


_LOCK = threading.Lock()


def _registered(source: str) -> list[str]:
    """Return the ids, without their prefix, of a task or of all tasks of a benchmark.

    Raises:
        ValueError: if there is none.
        gymnasium.error.DependencyNotInstalled: if the package of the benchmark is missing.
    """
    module, colon, name = source.rpartition(":")
    benchmark = name.partition(".")[0]
    if colon:
        import_named(module, f"the environment browsergym:{source}")
    elif find_spec(f"browsergym.{benchmark}") is not None:
        import_named(f"browsergym.{benchmark}", f"the environment browsergym:{source}")
    ids = [key.removeprefix(_PREFIX) for key in gymnasium.registry if key.startswith(_PREFIX)]
    found = [each for each in ids if each == name or each.startswith(f"{name}.")]
    if found:
        return found
    if any(each.startswith(f"{benchmark}.") for each in ids):
        near = ", ".join(difflib.get_close_matches(name, ids, n=3, cutoff=0.3))
        raise ValueError(f"BrowserGym has no task {name!r}. Did you mean {near}?")
    raise DependencyNotInstalled(
        f"BrowserGym has no task or benchmark {name!r} in the packages that are installed here. The benchmarks are "
        f"packages of their own: {install(f'browsergym-{benchmark}')}. For a task that a module registers, write "
        "browsergym:MODULE:ID."
    )


def _messages(observation: Mapping[str, Any]) -> list[str]:
    """Return what the user has said in the chat."""
    return [str(message["message"]) for message in observation["chat_messages"] if message["role"] == "user"]


def _shown(observation: Mapping[str, Any]) -> str:
    """Return the tabs and the page's accessibility tree."""
    current = int(observation["active_page_index"][0])
    pages = zip(observation["open_pages_titles"], observation["open_pages_urls"], strict=True)
    tabs = [f"Tab {i}{' (current)' if i == current else ''}: {title} ({url})" for i, (title, url) in enumerate(pages)]
    # The lines of a text, which newer versions of Chromium list, repeat it.
    ignored = [*IGNORED_AXTREE_ROLES, "InlineTextBox"]
    tree = flatten_axtree_to_str(
        observation["axtree_object"], observation["extra_element_properties"], ignored_roles=ignored
    )
    most = MAX_OBSERVATION_CHARS // 2
    return "\n".join([*tabs, "", tree if len(tree) <= most else tree[:most] + _CUT])
