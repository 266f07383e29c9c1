"""Why the next step of a plan is taken on this page, and what is left of the plan, in words.

Names only what the objective names or the page shows: the plan knows of later pages what an agent can't know yet.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from agentgym_envs.worlds.webarena.page.snapshot import Snapshot

Step = Mapping[str, Any]
_TELLING, _LONGEST = 4, 200
"""How many characters a text on a page has that is quoted; a bare 5 may be any 5."""
_MARKS = ".,:;!?()[]'\"“”"


@dataclass(frozen=True, slots=True)
class Situation:
    """What the expert goes by."""

    objective: str
    title: str
    """Of the current tab."""
    page: Snapshot
    left: Sequence[Step]
    """The steps of the plan that are still to come; see `agentgym_envs.worlds.webarena.sites.tasks`."""
    action: str
    """What the expert does about the first of them."""

    def thought(self) -> str:
        """Why `action` comes next. On one line."""
        if not self.left:
            return "I have no plan for this objective, so I stop with the reference answer, if there is one."
        return f"I am on '{self.title}'. {self._reason(self.left[0])}"

    def outline(self) -> str:
        """The objective, and the steps that are left as far as they can be told."""
        if not self.left:
            return f"The objective: {self.objective}\nI have no plan for it."
        return "\n".join(
            [f"The objective: {self.objective}", *(f"{i}. {self._told(s)}" for i, s in enumerate(self.left, 1))]
        )

    def _reason(self, step: Step) -> str:
        if step["do"] == "stop":
            return self._end(step["answer"])
        if step["do"] == "back":
            return "I have seen here what I wanted to see, so I go back to where I came from."
        if step["do"] == "press":
            return f"It takes the keys {step['keys']} here."
        if step["do"] == "goto":
            return f"What is to be done next is to be done at {step['url']}."
        if self.action.startswith("scroll ["):
            what = self._named(step) or "What I look for"
            return f"{what} isn't in sight, so I scroll."
        if self.action.startswith("goto ["):
            return "What I look for isn't on this page, so I begin again from the first one."
        if step["name"] not in self._texts():
            return "What I need is on this page, though not in sight."
        return " ".join(filter(None, (self._use(step), self._purpose())))

    def _use(self, step: Step) -> str:
        what = f"the {step['role']} '{step['name']}'"
        match step["do"]:
            case "type":
                words = _stems(step["text"])
                told = self._in_objective(step["text"]) or (bool(words) and words <= _stems(self.objective))
                known = "words of the objective" if told else "what I know by now"
                return f"There is {what}; I put {known} there: '{step['text']}'."
            case "select":
                asked = ", as the objective has it" if self._in_objective(step["option"]) else ""
                return f"There is {what}; of its options I need '{step['option']}'{asked}."
            case _:
                return f"There is {what}, {self._bearing(step['name'])}."

    def _bearing(self, name: str) -> str:
        """What a name has to do with the objective."""
        if self._in_objective(name):
            return "which the objective names"
        wanted = _stems(self.objective)
        shared = next((word for word in name.split() if _stems(word) & wanted), None)
        return f"and the objective has to do with '{shared.strip(_MARKS)}'" if shared else "which should lead on"

    def _purpose(self) -> str:
        """What the step leads to, if that can be said."""
        if len(self.left) < 2:
            return ""
        after = self.left[1]
        if after["do"] == "stop":
            return "It should show me the answer." if after["answer"] else "That should be all that is asked for."
        named = self._named(after)
        return f"{named} comes after that." if named else ""

    def _end(self, answer: str) -> str:
        if not answer:
            return "All that the objective asks for is done, so I stop."
        whole = re.compile(rf"(?<!\w){re.escape(answer)}(?!\w)")
        shown = [text for text in self._texts() if whole.search(text) and _TELLING <= len(text) <= _LONGEST]
        if not shown:
            return f"From all that I have seen, the answer is '{answer}'."
        return f"The page says '{min(shown, key=len)}', so the answer is '{answer}'."

    def _told(self, step: Step) -> str:
        """One step of the plan without what can't be known yet."""
        match step["do"]:
            case "stop":
                return "Stop with the answer that I find." if step["answer"] else "Stop."
            case "back":
                return "Go back."
            case "goto":
                return f"Go to {step['url']}."
            case "press":
                return f"Press {step['keys']}."
            case "type":
                text = f"'{step['text']}'" if self._in_objective(step["text"]) else "what I find"
                return f"Type {text} into {self._of(step)}."
            case "select":
                option = f"'{step['option']}'" if self._in_objective(step["option"]) else "what fits"
                return f"Choose {option} in {self._of(step)}."
            case _:
                return f"Click {self._of(step)}."

    def _of(self, step: Step) -> str:
        return f"the {step['role']} '{step['name']}'" if self._named(step) else f"a {step['role']}"

    def _named(self, step: Step) -> str:
        """The step's element by its name, if that is in the objective or in sight; else nothing."""
        name = step.get("name", "")
        known = name and (self._in_objective(name) or name in self._texts())
        return f"The {step['role']} '{name}'" if known else ""

    def _in_objective(self, text: str) -> bool:
        return text.lower() in self.objective.lower()

    def _texts(self) -> list[str]:
        """The names of what is in sight."""
        return [node.name for node in self.page.nodes if node.visible]


def _stems(text: str) -> set[str]:
    """The words that carry some meaning, singular and plural alike."""
    return {word for bare in re.findall(r"\w+", text.lower()) if len(word := bare.removesuffix("s")) > 3}
