"""The expert's thoughts and plans: why it takes the next step on this page, and what remains of the plan.

They mention only names from the objective or the current page: the plan also contains names from later pages, which an
agent can't know yet.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from agentgym_envs.worlds.webarena.page.snapshot import Snapshot

Step = Mapping[str, Any]
_SHORTEST, _LONGEST = 4, 200
"""Minimum and maximum length of a quoted page text, in characters; a bare 5 could be any number on the page."""
_MARKS = ".,:;!?()[]'\"“”"


@dataclass(frozen=True, slots=True)
class Situation:
    """The input of the expert's thought: objective, page, remaining plan and next action."""

    objective: str
    title: str
    """The title of the current tab."""
    page: Snapshot
    remaining: Sequence[Step]
    """The remaining steps of the plan; see `agentgym_envs.worlds.webarena.sites.tasks`."""
    action: str
    """The expert's action for the first of them."""
    detour: str = ""
    """Why the action is not yet the first of them, as a sentence; empty if it is."""

    def thought(self) -> str:
        """Explain on one line why `action` comes next."""
        if not self.remaining:
            return "I have no plan for this objective, so I stop with the reference answer, if there is one."
        return f"I am on '{self.title}'. {self._reason(self.remaining[0])}"

    def outline(self) -> str:
        """Return the objective and the remaining steps, without names that only later pages show."""
        if not self.remaining:
            return f"The objective: {self.objective}\nI have no plan for it."
        return "\n".join(
            [
                f"The objective: {self.objective}",
                *(f"{i}. {self._outlined(s)}" for i, s in enumerate(self.remaining, 1)),
            ]
        )

    def _reason(self, step: Step) -> str:
        if self.detour:
            return self.detour
        if step["do"] == "stop":
            return self._final(step["answer"])
        if step["do"] == "back":
            return "I have seen here what I wanted to see, so I go back to where I came from."
        if step["do"] == "tab":
            return f"What I look for may be in tab {step['index']}, so I go there."
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
        return " ".join(filter(None, (self._element_reason(step), self._purpose())))

    def _element_reason(self, step: Step) -> str:
        what = f"the {step['role']} '{step['name']}'"
        match step["do"]:
            case "type":
                words = _stems(step["text"])
                given = self._in_objective(step["text"]) or (bool(words) and words <= _stems(self.objective))
                known = "words of the objective" if given else "what I know by now"
                return f"There is {what}; I put {known} there: '{step['text']}'."
            case "select":
                addition = ", as the objective has it" if self._in_objective(step["option"]) else ""
                return f"There is {what}; of its options I need '{step['option']}'{addition}."
            case _:
                return f"There is {what}, {self._relevance(step['name'])}."

    def _relevance(self, name: str) -> str:
        """Relate a name to the objective."""
        if self._in_objective(name):
            return "which the objective names"
        wanted = _stems(self.objective)
        shared = next((word for word in name.split() if _stems(word) & wanted), None)
        return f"and the objective has to do with '{shared.strip(_MARKS)}'" if shared else "which should lead on"

    def _purpose(self) -> str:
        """Return what follows the step, if it can be named."""
        if len(self.remaining) < 2:
            return ""
        after = self.remaining[1]
        if after["do"] == "stop":
            return "It should show me the answer." if after["answer"] else "That should be all that is asked for."
        named = self._named(after)
        return f"{named} comes after that." if named else ""

    def _final(self, answer: str) -> str:
        if not answer:
            return "All that the objective asks for is done, so I stop."
        if answer == "N/A":
            return "From all that I have seen, this can't be done, so the answer is 'N/A'."
        whole = re.compile(rf"(?<!\w){re.escape(answer)}(?!\w)")
        shown = [text for text in self._texts() if whole.search(text) and _SHORTEST <= len(text) <= _LONGEST]
        if not shown:
            return f"From all that I have seen, the answer is '{answer}'."
        return f"The page says '{min(shown, key=len)}', so the answer is '{answer}'."

    def _outlined(self, step: Step) -> str:
        """Describe a step of the plan without names that only later pages show."""
        match step["do"]:
            case "stop":
                return "Stop with the answer that I find." if step["answer"] else "Stop."
            case "back":
                return "Go back."
            case "goto":
                return f"Go to {step['url']}."
            case "tab":
                return f"Go to tab {step['index']}."
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
        """Return the step's element with its name if the objective or the page shows it; else an empty string."""
        name = step.get("name", "")
        known = name and (self._in_objective(name) or name in self._texts())
        return f"The {step['role']} '{name}'" if known else ""

    def _in_objective(self, text: str) -> bool:
        return text.lower() in self.objective.lower()

    def _texts(self) -> list[str]:
        """Return the names of the visible nodes."""
        return [node.name for node in self.page.nodes if node.visible]


def _stems(text: str) -> set[str]:
    """Return the words of more than 3 letters, with plural endings removed."""
    return {word for bare in re.findall(r"\w+", text.lower()) if len(word := bare.removesuffix("s")) > 3}
