"""Conversations of episodes: when an agent acts, plans, reflects or summarizes, and what stays in its context.

A `ConversationBuilder` takes the environment's observations and the agent's replies, and builds the conversation for
the next reply. It depends neither on environments nor on policies; wrappers parse the replies.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Literal

from agentgym_envs.agents.call_parsing import spoken
from agentgym_envs.agents.scaffold import Scaffold
from agentgym_envs.episodes.episode import Episode, Kind, Turn
from agentgym_envs.util.screenshots import Picture

__all__ = ["Conversation", "ConversationBuilder", "Message", "Scaffold", "replay"]


@dataclass(frozen=True, slots=True)
class Message:
    """One message of a conversation."""

    role: Literal["system", "user", "assistant"]
    content: str
    picture: Picture | None = None
    """The screenshot of the observation in `content`, for agents with the habit `pictures`."""


Conversation = tuple[Message, ...]
"""Instructions (if any) as `system`, observations and questions as `user`, replies as `assistant`, in order. User and
assistant messages alternate, as chat templates require; the last message has the role `user`."""

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
"""Maximum number of reflections carried over to a new conversation, as in Reflexion (section 3). Without a limit, the
context would grow in spite of the window."""

LEAST_SUMMARIZED = 0.25
"""Least share of a conversation's tokens between its first message and the latest observation that a summary is asked
for. Otherwise an agent whose limit is below what always stays would summarize after every action."""


class ConversationBuilder:
    """Builds the conversation of one episode.

    `add_observation` and `add_reply` extend it, and `end_trial` ends a trial. Replies that are due at the same time
    come in this order: reflection, plan, summary, action. The builder can't count tokens: where the scaffold limits
    those of a context, its user does, and calls `shorten`.
    """

    def __init__(self, scaffold: Scaffold, instructions: str) -> None:
        """Start with the instructions; empty instructions add no message."""
        self._habits = scaffold
        self._instructions: Conversation = (Message("system", instructions),) if instructions else ()
        self._reflections: list[str] = []
        self._trial = 0
        self._begin()

    def _begin(self) -> None:
        self._messages = self._instructions
        self._observation = ""
        self._picture: Picture | None = None  # of the observation
        self._pending = ""  # content of the next user message
        self._pending_picture: Picture | None = None
        self._acts: list[tuple[Message, str]] = []  # (observation, reply) of each action
        self._acts_in_context = 0
        self._acts_since_summary = 0
        self._plan: str | None = None
        self._due: list[Kind] = []

    @property
    def needs_observation(self) -> bool:
        """Whether an observation is needed before the next reply."""
        return not self._due

    @property
    def kind(self) -> Kind:
        """Kind of the next reply."""
        return self._due[0]

    @property
    def trial(self) -> int:
        """Index of the trial, from 0. The reflection on a finished trial belongs to the next one."""
        return self._trial

    @property
    def acts(self) -> int:
        """Number of actions in this trial; 0 during the reflection on the previous one."""
        return len(self._acts)

    @property
    def conversation(self) -> Conversation:
        """The conversation for the next reply: it extends the previous one, or starts again with a summary."""
        whole = (*self._messages, Message("user", self._pending, self._pending_picture))
        return _with_newest_pictures(whole, self._habits.pictures)

    def add_observation(self, observation: str, picture: Picture | None = None) -> None:
        """Add an observation, at the start of a trial and after each action that didn't end it, with its picture for
        agents that get them.
        """
        self._observation = observation
        self._picture = self._pending_picture = picture
        self._due = [*self._due_before_action(), "act"]
        retry = (self._reflection_notes(), _BEGINS_AGAIN) if self._trial and not self._acts else ()
        self._pending = _joined(*retry, observation, self._question())

    def add_reply(self, text: str) -> None:
        """Add a reply of the agent."""
        kind = self._due.pop(0)
        self._messages = (*self.conversation, Message("assistant", text))
        self._pending_picture = None
        match kind:
            case "act":
                self._acts.append((Message("user", self._observation, self._picture), text))
                self._drop_old_pictures()
                self._acts_in_context += 1
                self._acts_since_summary += 1
            case "plan":
                self._plan = spoken(text)
                self._pending = self._question() or _GO_ON
            case "reflect":
                self._reflections.append(spoken(text))
                if self.needs_observation:
                    self._begin()
                else:
                    self._pending = self._question() or _GO_ON
            case _:
                self._restart_with_summary(spoken(text))

    @property
    def token_limit(self) -> int:
        """Number of tokens of the conversation beyond which `shorten` is to be called before the next reply, if a
        summary takes out enough (`stays`); 0: none, since it isn't an action, or none was taken since the last summary.
        """
        return self._habits.context_tokens if self._due == ["act"] and self._acts_since_summary else 0

    @property
    def stays(self) -> Conversation:
        """What a summary doesn't take out of the conversation: its first message and the latest observation, joined."""
        first = self.conversation[len(self._instructions)]
        picture = self._pending_picture or first.picture
        return (*self._instructions, Message("user", _joined(first.content, self._pending), picture))

    def shorten(self) -> None:
        """Have the agent write a summary before its next action, from which the conversation restarts."""
        self._due = ["summary", *self._due]
        self._pending = self._question() if self._pending == _GO_ON else _joined(self._pending, self._question())

    def add_talk(self, text: str) -> None:
        """Add a reply of kind "talk", which gets no response from the environment; see `Kind`."""
        self._messages = (*self.conversation, Message("assistant", text))
        self._due = []

    def end_trial(self, observation: str, picture: Picture | None = None) -> bool:
        """End a trial that failed, with its final observation.

        Returns:
            Whether there is another trial. If so, a reflection is due, and the environment is reset after it.
        """
        if self._trial >= self._habits.retry:
            return False
        self._trial += 1
        self._acts = []
        self._due = ["reflect"]
        self._pending, self._pending_picture = _joined(observation, _LOOK_BACK_AT_THE_END), picture
        return True

    def _due_before_action(self) -> Iterator[Kind]:
        habits, acts = self._habits, len(self._acts)
        if habits.reflect and acts and acts % habits.reflect == 0:
            yield "reflect"
        if habits.plan is not None and (not acts or (habits.plan and acts % habits.plan == 0)):
            yield "plan"
        if habits.window and self._acts_in_context > habits.window:
            yield "summary"

    def _question(self) -> str:
        """Return the question for the next reply; empty for an action."""
        plan = _PLAN if self._plan is None else _PLAN_ANEW
        return {"plan": plan, "reflect": _LOOK_BACK, "summary": _SUM_UP}.get(self.kind, "")

    def _restart_with_summary(self, summary: str) -> None:
        """Start the conversation again with the summary and the last actions."""
        self._acts_in_context = 0 if self._habits.compact else (self._habits.window or self._acts_in_context) // 2
        self._acts_since_summary = 0
        kept = self._acts[len(self._acts) - self._acts_in_context :]
        plan = f"Your plan:\n{self._plan}" if self._plan else ""
        begun = f"This is how it began:\n{self._acts[0][0].content}"
        since = f"What has happened since, in your words:\n{summary}"
        rest = "Your last steps, as they were:" if kept else "This is what you see now:"
        pending = _joined(self._reflection_notes(), begun, plan, since, rest)
        self._messages = self._instructions
        for observed, reply in kept:
            observed = replace(observed, content=_joined(pending, observed.content))
            self._messages += (observed, Message("assistant", reply))
            pending = ""
        self._pending, self._pending_picture = _joined(pending, self._observation), self._picture

    def _drop_old_pictures(self) -> None:
        """Free the picture that no conversation shows any more."""
        if len(self._acts) > self._habits.pictures:
            observed, reply = self._acts[-1 - self._habits.pictures]
            self._acts[-1 - self._habits.pictures] = replace(observed, picture=None), reply

    def _reflection_notes(self) -> str:
        """Return the last reflections as a numbered list; empty if there are none."""
        if not self._reflections:
            return ""
        tried = "You have tried this task before, without success. " if self._trial else ""
        notes = list(enumerate(self._reflections, 1))
        listed = "\n".join(f"{number}. {note}" for number, note in notes[-_MOST_NOTES:])
        return f"{tried}What you noted when you looked back:\n{listed}"


def _with_newest_pictures(conversation: Conversation, most: int) -> Conversation:
    """Remove the pictures of older messages, so that at most `most` are left."""
    pictured = [at for at, message in enumerate(conversation) if message.picture is not None]
    old = set(pictured[: max(0, len(pictured) - most)])
    if not old:
        return conversation
    return tuple(replace(message, picture=None) if at in old else message for at, message in enumerate(conversation))


def _joined(*parts: str) -> str:
    return "\n\n".join(part for part in parts if part)


def replay(episode: Episode, *, pictures: bool = False) -> Iterator[tuple[Conversation, Turn]]:
    """Yield each turn of a recorded episode with its conversation, exactly as the policy received it.

    Args:
        episode: The episode.
        pictures: Whether messages have their pictures, of which an episode has only the digests. Without them, the
            conversation is text, as for training.

    Raises:
        ValueError: if the episode's agent has an unknown habit, or could not have produced these turns.
    """
    builder = ConversationBuilder(Scaffold.parse(episode.agent), episode.instructions)
    return _replay(episode, builder, pictures=pictures)


def continued(episode: Episode) -> tuple[Conversation, Conversation]:
    """Return the conversation before the last reply of a recorded episode, and the one after its final observation,
    as if the episode continued.

    Raises:
        ValueError: as `replay`, and if the last turn isn't a complete action.
    """
    builder = ConversationBuilder(Scaffold.parse(episode.agent), episode.instructions)
    last = [(before, turn) for before, turn in _replay(episode, builder)][-1:]
    if not last or last[0][1].kind != "act" or last[0][1].reply.finish != "stop":
        raise ValueError(f"The episode of {episode.task_id} doesn't end with an action, and so can't be continued.")
    builder.add_observation(episode.final_observation)
    return last[0][0], builder.conversation


def _replay(
    episode: Episode, builder: ConversationBuilder, *, pictures: bool = False
) -> Iterator[tuple[Conversation, Turn]]:
    for number, turn in enumerate(episode.turns):
        seen = turn.observation, Picture(turn.picture) if pictures and turn.picture else None
        if builder.needs_observation and not (turn.trial > builder.trial and builder.end_trial(*seen)):
            builder.add_observation(*seen)
        if turn.kind == "summary" and builder.token_limit:
            builder.shorten()
        if turn.trial != builder.trial or turn.kind not in (builder.kind, "talk"):
            raise ValueError(
                f"Turn {number} of {episode.task_id} has kind {turn.kind!r} in trial {turn.trial}, but the agent "
                f"{episode.agent!r} expects {builder.kind!r} in trial {builder.trial}: the episode was played by a "
                "different agent."
            )
        yield builder.conversation, turn
        if turn.kind == "talk":
            builder.add_talk(turn.reply.text)
        else:
            builder.add_reply(turn.reply.text)
