"""How a conversation is made: what an agent is asked, what it remembers, and when it does something else than act.

A `Dialogue` is fed with what the world shows and what the agent says, and has the conversation that the next reply is
to be given in. It knows neither worlds nor players; the form of a reply is a wrapper's part.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from agentgym_envs.agents.call_parsing import spoken
from agentgym_envs.agents.scaffold import Scaffold
from agentgym_envs.episodes.episode import Episode, Kind, Turn

__all__ = ["Conversation", "ConversationBuilder", "Message", "Scaffold", "replay"]


@dataclass(frozen=True, slots=True)
class Message:
    """One thing said."""

    role: Literal["system", "user", "assistant"]
    content: str


Conversation = tuple[Message, ...]
"""Instructions (where there are any) as `system`, observations and questions as `user`, replies as `assistant`, in
order. Users and assistants take turns, as chat templates demand; the last is of the user."""

_PLAN = "Before you act, write down your plan: a few short lines, and no action yet."
_PLAN_ANEW = "Write down your plan anew, as it is from here on: a few short lines, and no action yet."
_LOOK_BACK = (
    "Look back on what you have done so far. What helped, what did not, and what will you do differently? "
    "Answer in a few sentences, and with no action yet."
)
_LOOK_BACK_AT_THE_END = (
    "This attempt is over, and the goal was not reached. You will begin the task again from the start. "
    "What went wrong, and what will you do differently? Answer in a few sentences."
)
_SUM_UP = (
    "Most of what stands above will be taken out of your sight. Sum up what has happened and what you need to know "
    "to go on. Answer in a few sentences, and with no action yet."
)
_GO_ON = "Now go on with your next action."
_BEGINS_AGAIN = "Now it begins again."
_MOST_NOTES = 3
"""How many looks back are kept beyond the conversation they were said in, as in Reflexion (section 3): with all of them
no window would bound what is in sight."""


class ConversationBuilder:
    """The conversation of one episode as it grows.

    `saw` tells it what the world shows, `said` what the agent replied, `over` that a trial has ended. Of what is due at
    the same time the look back comes first, then the plan, then the summary, and then the action.
    """

    def __init__(self, scaffold: Scaffold, instructions: str) -> None:
        """Nothing is said yet but the instructions; empty ones aren't."""
        self._habits = scaffold
        self._instructions: Conversation = (Message("system", instructions),) if instructions else ()
        self._reflections: list[str] = []
        self._trial = 0
        self._begin()

    def _begin(self) -> None:
        self._said = self._instructions
        self._observation = self._pending = ""  # the latter: what the next message of the user holds
        self._acts: list[tuple[str, str]] = []  # each with the observation that it answered
        self._in_sight = 0  # how many of them stand in the conversation
        self._plan: str | None = None
        self._due: list[Kind] = []

    @property
    def listens(self) -> bool:
        """Whether it is for the world to show something before the agent is asked."""
        return not self._due

    @property
    def kind(self) -> Kind:
        """What the next reply is for."""
        return self._due[0]

    @property
    def trial(self) -> int:
        """Which try at the task this is, from 0. The look back at one that has ended belongs to the next."""
        return self._trial

    @property
    def acts(self) -> int:
        """How many actions were played in this trial; none yet at the look back that belongs to it."""
        return len(self._acts)

    @property
    def conversation(self) -> Conversation:
        """What the next reply is given in: what it was before with more at its end, or a new beginning."""
        return (*self._said, Message("user", self._pending))

    def saw(self, observation: str) -> None:
        """The world shows this: at the beginning of a trial, and after each action that didn't end it."""
        self._observation = observation
        self._due = [*self._beside_acting(), "act"]
        anew = (self._lessons(), _BEGINS_AGAIN) if self._trial and not self._acts else ()
        self._pending = _joined(*anew, observation, self._question())

    def said(self, text: str) -> None:
        """The agent replied."""
        kind = self._due.pop(0)
        self._said = (*self.conversation, Message("assistant", text))
        match kind:
            case "act":
                self._acts.append((self._observation, text))
                self._in_sight += 1
            case "plan":
                self._plan = spoken(text)
                self._pending = self._question() or _GO_ON
            case "reflect":
                self._reflections.append(spoken(text))
                if self.listens:
                    self._begin()
                else:
                    self._pending = self._question() or _GO_ON
            case _:
                self._look_away(spoken(text))

    def talked(self, text: str) -> None:
        """The agent said something to which the world says nothing; see `Kind`."""
        self._said = (*self.conversation, Message("assistant", text))
        self._due = []

    def over(self, observation: str) -> bool:
        """The trial ended without success, and this is the last that the world showed.

        Returns:
            Whether there is another one: then a look back is due, and after it the world begins again.
        """
        if self._trial >= self._habits.retry:
            return False
        self._trial += 1
        self._acts = []
        self._due = ["reflect"]
        self._pending = _joined(observation, _LOOK_BACK_AT_THE_END)
        return True

    def _beside_acting(self) -> Iterator[Kind]:
        habits, acts = self._habits, len(self._acts)
        if habits.reflect and acts and acts % habits.reflect == 0:
            yield "reflect"
        if habits.plan is not None and (not acts or (habits.plan and acts % habits.plan == 0)):
            yield "plan"
        if habits.window and self._in_sight > habits.window:
            yield "summary"

    def _question(self) -> str:
        """What is asked now; nothing where an observation is to be answered with an action."""
        plan = _PLAN if self._plan is None else _PLAN_ANEW
        return {"plan": plan, "reflect": _LOOK_BACK, "summary": _SUM_UP}.get(self.kind, "")

    def _look_away(self, summary: str) -> None:
        """Begin the conversation anew with the summary and the last exchanges."""
        self._in_sight = self._habits.window // 2
        kept = self._acts[len(self._acts) - self._in_sight :]
        plan = f"Your plan:\n{self._plan}" if self._plan else ""
        begun = f"This is how it began:\n{self._acts[0][0]}"
        since = f"What has happened since, in your words:\n{summary}"
        rest = "Your last steps, as they were:" if kept else "This is what you see now:"
        pending = _joined(self._lessons(), begun, plan, since, rest)
        self._said = self._instructions
        for observation, reply in kept:
            self._said += (Message("user", _joined(pending, observation)), Message("assistant", reply))
            pending = ""
        self._pending = _joined(pending, self._observation)

    def _lessons(self) -> str:
        """What the last looks back have brought."""
        if not self._reflections:
            return ""
        tried = "You have tried this task before, without success. " if self._trial else ""
        notes = list(enumerate(self._reflections, 1))
        listed = "\n".join(f"{number}. {note}" for number, note in notes[-_MOST_NOTES:])
        return f"{tried}What you noted when you looked back:\n{listed}"


def _joined(*parts: str) -> str:
    return "\n\n".join(part for part in parts if part)


def replay(episode: Episode) -> Iterator[tuple[Conversation, Turn]]:
    """Each turn of a recorded episode with the conversation it was given in, exactly as while it was played.

    Raises:
        ValueError: when the episode's agent has a habit that there isn't, or would not have come to such turns.
    """
    return _replay(episode, ConversationBuilder(Scaffold.parse(episode.agent), episode.instructions))


def continued(episode: Episode) -> tuple[Conversation, Conversation]:
    """The conversation that the last reply of a recorded episode was given in, and that of the next reply, had the
    episode gone on with what the world showed last.

    Raises:
        ValueError: as `replay`, and for an episode without an action at its end.
    """
    dialogue = ConversationBuilder(Scaffold.parse(episode.agent), episode.instructions)
    last = [(before, turn) for before, turn in _replay(episode, dialogue)][-1:]
    if not last or last[0][1].kind != "act" or last[0][1].reply.finish != "stop":
        raise ValueError(f"The episode of {episode.task_id} doesn't end with an action, and so can't go on.")
    dialogue.saw(episode.final_observation)
    return last[0][0], dialogue.conversation


def _replay(episode: Episode, dialogue: ConversationBuilder) -> Iterator[tuple[Conversation, Turn]]:
    for number, turn in enumerate(episode.turns):
        if dialogue.listens and not (turn.trial > dialogue.trial and dialogue.over(turn.observation)):
            dialogue.saw(turn.observation)
        if turn.trial != dialogue.trial or turn.kind not in (dialogue.kind, "talk"):
            raise ValueError(
                f"Turn {number} of {episode.task_id} is for {turn.kind!r} in trial {turn.trial}, where the agent "
                f"{episode.agent!r} is asked for {dialogue.kind!r} in trial {dialogue.trial}: another one played this."
            )
        yield dialogue.conversation, turn
        if turn.kind == "talk":
            dialogue.talked(turn.reply.text)
        else:
            dialogue.said(turn.reply.text)
