"""The environment `agentgym/TextCraft-v0`: an inventory and the commands that change it. Independent of prompts."""

from __future__ import annotations

from typing import Any, Literal

from agentgym_envs.core.tasks import Task, TaskSet
from agentgym_envs.core.text_env import Feedback, TextEnv
from agentgym_envs.worlds.textcraft.commands import Command, Craft, Get, Look, Refusal
from agentgym_envs.worlds.textcraft.expert import Step, plan
from agentgym_envs.worlds.textcraft.reasons import outline, thought
from agentgym_envs.worlds.textcraft.recipes import load_table
from agentgym_envs.worlds.textcraft.scene import draw
from agentgym_envs.worlds.textcraft.simulator import craft, gather, understand
from agentgym_envs.worlds.textcraft.tasks import brief, task_set

DEPTHS = (1, 4)
_MOST_DISTRACTORS = 10_000  # more than the game has recipes


class TextCraft(TextEnv):
    """Craft a Minecraft 1.16 item from gathered materials by the game's recipes.

    Args:
        depth: Lowest and highest crafting depth of the goals. Task ids don't depend on it.
        distractors: The number of listed recipes that aren't required.
        layout: `task`: which recipes these are, and the order of all, is the same in all episodes of a goal; `episode`:
            it is drawn from the seed of `reset`.
        render_mode: `ansi` for the text.

    The first observation lists the required recipes mixed with distractors, and the goal. The agent gathers
    (`get 2 oak log`), crafts (`craft 4 stick using 2 oak planks`) and looks (`inventory`). All recipes of the game
    work, listed or not. The score is 1 once the goal item is in the inventory.

    Category and difficulty of a task are its crafting depth, from 1 to 4.

    TextCraft was introduced by Prasad et al. 2023, ADaPT, arXiv 2311.05772.
    """

    package = "agentgym_envs.worlds.textcraft"
    client_options = frozenset({"depth", "distractors", "layout"})
    step_seconds = 1e-5

    def __init__(
        self,
        *,
        depth: tuple[int, int] = DEPTHS,
        distractors: int = 10,
        layout: Literal["task", "episode"] = "task",
        render_mode: str | None = None,
    ) -> None:
        super().__init__(render_mode=render_mode)
        self._depth = _depths(depth)
        if isinstance(distractors, bool) or not isinstance(distractors, int) or distractors < 0:
            raise ValueError(f"distractors must be a non-negative integer, not {distractors!r}.")
        if layout not in ("task", "episode"):
            raise ValueError(f"layout is 'task' or 'episode', not {layout!r}.")
        self._distractors, self._layout = min(distractors, _MOST_DISTRACTORS), layout
        self._goal = ""
        self._held: dict[str, int] = {}
        self._actions: tuple[str, ...] = ()
        self._plan: list[Step] = []

    @property
    def tasks(self) -> TaskSet:
        """The goals of the depths this environment was created with."""
        return task_set(self._depth)

    def oracle(self) -> str:
        """Return the next command of a plan from the current inventory; the plan is shortest from an empty one."""
        steps = self._steps()
        return steps[0].command if steps else "inventory"

    def oracle_thought(self) -> str:
        """Return the purpose of the plan's next step, and how much of its ingredients is held."""
        return thought(self._goal, self._steps(), self._held)

    def oracle_plan(self) -> str:
        """Return the steps of the plan from the current inventory."""
        return outline(self._goal, self._steps(), self._held)

    def interchangeable_names(self) -> tuple[tuple[str, ...], ...]:
        """Return the items by how they are obtained: crafted, gathered, or both.

        Sets of alternatives and their members keep their names, which tell what belongs together.
        """
        return load_table().interchangeable

    def scene(self) -> dict[str, Any]:
        """Return the inventory and the crafting tree of the goal; see `textcraft.scene.draw`."""
        return draw(self._goal, self._steps(), self._held)

    def _steps(self) -> list[Step]:
        """Return the remaining steps of the plan; a new plan if another action was taken."""
        self._plan = self._plan or plan(self._goal, self._held)
        return self._plan

    def _choose(self, options: dict[str, Any]) -> Task:
        # Before the task: with the same seed, a task has the same layout whether it is drawn or given.
        self._drawn = int(self.np_random.integers(2**32)) if self._layout == "episode" else None
        return super()._choose(options)

    def _start(self, task: Task) -> str:
        self._goal = task.payload["goal"]
        self._held, self._plan = {}, []
        briefing = brief(self._goal, self._distractors, self._drawn)
        self._actions = briefing.actions
        return briefing.text

    def _act(self, action: str) -> Feedback:
        self._plan = self._plan[1:] if self._plan and self._plan[0].command == action else []
        try:
            answer = self._carry_out(understand(action))
        except Refusal as refusal:
            return Feedback(str(refusal), valid=False)
        return Feedback(answer, terminated=self._goal in self._held)

    def _carry_out(self, command: Command) -> str:
        match command:
            case Get():
                gather(command, self._held)
                return f"Got {command.amount} {command.item}"
            case Craft():
                craft(command, self._held)
                return f"Crafted {command.amount} {command.item}"
            case Look():
                listed = " ".join(f"[{item}] ({amount})" for item, amount in sorted(self._held.items()))
                return f"Inventory: {listed or 'You are not carrying anything.'}"

    def _standing(self) -> tuple[float, bool]:
        done = self._goal in self._held
        return float(done), done

    def _state(self) -> str:
        held = self._held
        return f"{self._goal}: {', '.join([f'{held[item]} {item}' for item in sorted(held)])}"

    def _available_actions(self) -> list[str]:
        return list(self._actions)

    def _raw(self) -> dict[str, Any]:
        return {"inventory": dict(self._held), "depth": self.task.difficulty}


def _depths(depth: Any) -> tuple[int, int]:
    match depth:
        case (int(lo), int(hi)) if DEPTHS[0] <= lo <= hi <= DEPTHS[1]:
            return lo, hi
        case _:
            raise ValueError(
                f"depth must be a pair (lo, hi) with {DEPTHS[0]} <= lo <= hi <= {DEPTHS[1]}, such as (1, 2), "
                f"not {depth!r}."
            )
