"""Someone who plays with any agent and remembers what was asked, and what every conversation has to be like."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from agentgym_envs import Conversation, EnvFault, Episode, Message, Reply, WorldSeat
from agentgym_envs.episodes.conversation import replay
from agentgym_envs.episodes.episode import Kind


@dataclass
class Talker:
    """Chooses actions with `act`; whatever else it says has a number."""

    act: Callable[[WorldSeat], str | Reply | EnvFault]
    name: str = "talker"
    seen: list[tuple[Conversation, Kind]] = field(default_factory=list[tuple[Conversation, Kind]])

    def reply(self, seats: Sequence[WorldSeat]) -> list[Reply | EnvFault]:
        return [self._one(seat) for seat in seats]

    def _one(self, seat: WorldSeat) -> Reply | EnvFault:
        self.seen.append((seat.conversation, seat.kind))
        said = self.act(seat) if seat.kind == "act" else f"{seat.kind} {len(self.seen)}"
        return Reply(said) if isinstance(said, str) else said


def check_conversations(episode: Episode, seen: Sequence[tuple[Conversation, Kind]]) -> None:
    """The turns of the episode are those that were asked for, in the conversations in which they were, and these are
    such as chat templates need: they grow at their ends, but after a summary and with a new trial.
    """
    recorded = list(replay(episode))
    assert [(conversation, turn.kind) for conversation, turn in recorded] == list(seen)
    assert list(replay(Episode.from_json(episode.to_json()))) == recorded
    trial = 0
    for (conversation, turn), (following, _) in pairwise(recorded):
        check_roles(conversation, episode.instructions)
        grows = following[:-1] == (*conversation, Message("assistant", turn.reply.text))
        assert grows != (turn.kind == "summary" or turn.trial > trial)
        trial = turn.trial


def check_roles(conversation: Conversation, instructions: str) -> None:
    """Instructions, if any, and then users and assistants in turn, a user first and last."""
    roles = [message.role for message in conversation]
    if instructions:
        assert (roles.pop(0), conversation[0].content) == ("system", instructions)
    assert roles == ["user", *["assistant", "user"] * (len(roles) // 2)]
