"""The environment `agentgym/BabyAI-v0`: Minigrid's levels as a `TextEnv`."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, ClassVar

from agentgym_envs.core.tasks import Task, TaskSet
from agentgym_envs.core.text_env import Feedback, TextEnv
from agentgym_envs.worlds.babyai.actions import menu, normalise, refusal
from agentgym_envs.worlds.babyai.expert import Expert, Intent
from agentgym_envs.worlds.babyai.scene import draw
from agentgym_envs.worlds.babyai.simulator import COLOR_NAMES, Cell, Simulator
from agentgym_envs.worlds.babyai.tasks import all_levels, choose, task_set
from agentgym_envs.worlds.babyai.view import View


class BabyAI(TextEnv):
    """Grid rooms with doors, keys, balls and boxes, and a mission in natural language.

    Args:
        levels: One level or several, such as `"GoToRedBall"` or `["BabyAI-GoToLocal-v0", "PickupLoc"]`; default all.
        time_discount: Score a success with Minigrid's `1 - 0.9 * moves / max_steps` rather than with 1.
        available_actions_in_text: Append the list of available actions to each observation.
        render_mode: `ansi` for the text, `rgb_array` for Minigrid's image.

    The score is 0 until the mission is accomplished. Episodes end as in Minigrid: success or failure terminates, and
    the limit on primitive moves truncates, even in the middle of a macro action.
    `info["raw"]` has the `moves` made and `max_moves`. A task's difficulty is the number of turns the oracle takes.
    """

    metadata: dict[str, Any] = {"render_modes": ["ansi", "rgb_array"], "render_fps": 4}  # noqa: RUF012
    package: ClassVar[str] = __package__ or ""
    client_options = frozenset({"levels", "time_discount", "available_actions_in_text"})
    step_seconds = 2e-4

    def __init__(
        self,
        *,
        levels: str | Sequence[str] | None = None,
        time_discount: bool = False,
        available_actions_in_text: bool = True,
        render_mode: str | None = None,
    ) -> None:
        super().__init__(render_mode=render_mode)
        for name, flag in (("time_discount", time_discount), ("available_actions_in_text", available_actions_in_text)):
            if not isinstance(flag, bool):
                raise ValueError(f"{name} must be true or false, not {flag!r}.")
        self._levels = choose(levels)
        self._time_discount = time_discount
        self._list_actions = available_actions_in_text
        self._simulators: dict[str, Simulator] = {}

    @property
    def tasks(self) -> TaskSet:
        """The tasks of the levels this environment was created with."""
        return task_set(self._levels)

    def _start(self, task: Task) -> str:
        level = task.payload["level"]
        if level not in self._simulators:
            self._simulators[level] = Simulator(all_levels()[level].id)
        self._simulator = self._simulators[level]
        self._simulator.reset(task.payload["seed"])
        self._seen: set[Cell] = set()
        return f"Your goal: {self._simulator.mission}\n{self._look()}"

    def _act(self, action: str) -> Feedback:
        normalised = normalise(action)
        plan = self._menu.get(normalised)
        if plan is None:
            return Feedback(refusal(normalised, self._view) + self._listing(), valid=False)
        simulator = self._simulator
        for move in plan.moves(self._view):
            if not simulator.do(move):
                break
        return Feedback(self._look(), terminated=simulator.terminated, truncated=simulator.truncated)

    def _look(self) -> str:
        self._view = View(self._simulator)
        self._menu = menu(self._view)
        self._seen.update(self._view.cells)
        self._intent: Intent | None = None
        return self._view.text() + self._listing()

    def _listing(self) -> str:
        return f"\nAvailable actions: {json.dumps(list(self._menu))}" if self._list_actions else ""

    def _standing(self) -> tuple[float, bool]:
        success = self._simulator.terminated and self._simulator.reward > 0
        return (self._simulator.reward if self._time_discount else 1.0) if success else 0.0, success

    def _state(self) -> str:
        return self._simulator.state()

    def _available_actions(self) -> list[str]:
        return list(self._menu)

    def _raw(self) -> dict[str, Any]:
        return {"moves": self._simulator.level.step_count, "max_moves": self._simulator.level.max_steps}

    def oracle(self) -> str:
        """Return the next action of an expert that uses the cells seen so far; see `Expert`."""
        return self._decision().action

    def oracle_thought(self) -> str:
        """Return the goal, the obstacles, and what the expert has seen of them."""
        return self._decision().thought

    def oracle_plan(self) -> str:
        """Return the remaining subgoals, and what the first requires as far as the expert has seen."""
        return Expert(self._simulator, self._view, self._menu, self._seen).plan()

    def _decision(self) -> Intent:
        """Return the expert's decision, computed once per state since it takes as long as a step."""
        self._intent = self._intent or Expert(self._simulator, self._view, self._menu, self._seen).intent()
        return self._intent

    def interchangeable_names(self) -> tuple[tuple[str, ...], ...]:
        """Return the colors. Kinds are not interchangeable: only keys open doors."""
        return (tuple(COLOR_NAMES),)

    def scene(self) -> dict[str, Any]:
        """Return the grid, its objects, and the cells that the agent sees and has seen; see `babyai.scene.draw`."""
        return draw(self._simulator, self._view.cells, self._seen)

    def render(self) -> Any:
        """Return the last observation as text, or Minigrid's image of the whole grid, (height, width, 3) uint8."""
        if self.render_mode != "rgb_array":
            return super().render()
        level = self._simulator.level
        return level.get_frame(level.highlight, level.tile_size, level.agent_pov)

    def close(self) -> None:
        """Drop the cached levels."""
        self._simulators.clear()
