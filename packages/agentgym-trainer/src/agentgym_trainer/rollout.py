"""Plays with an engine: the policy that turns conversations into token requests and samples into replies.

Knows engines and `chat`; knows neither learners nor algorithms.
"""

from __future__ import annotations

from collections.abc import Sequence

from agentgym_envs import Reply, Sample, Seat

from agentgym_trainer.chat import Chat, Context
from agentgym_trainer.engines import Engine, Request, Sampling


class EnginePolicy:
    """A language model as a player."""

    def __init__(self, engine: Engine, chat: Chat, sampling: Sampling, *, name: str) -> None:
        self.name = name
        self.engine = engine
        self.chat = chat
        self.sampling = sampling
        self._contexts: dict[int, Context] = {}

    def reply(self, seats: Sequence[Seat]) -> list[Reply]:
        """Sample all replies in one call of the engine. Trajectories that have left their seats are released."""
        self.release(keep={seat.key for seat in seats})
        requests: list[Request] = []
        for seat in seats:
            context = self._contexts.setdefault(seat.key, Context(self.chat))
            ids, fresh = context.prompt(seat.conversation)
            requests.append(Request(seat.key, tuple(ids), fresh, seat.rng))
        replies: list[Reply] = []
        for request, completion in zip(requests, self.engine.generate(requests, self.sampling), strict=True):
            self._contexts[request.key].said(completion.ids)
            sample = Sample(
                prompt=request.ids,
                ids=completion.ids,
                logprobs=completion.logprobs,
                version=self.engine.version,
                fresh=request.fresh,
            )
            replies.append(Reply(self.chat.reply_text(completion.ids), completion.finish, sample))
        return replies

    def release(self, keep: set[int] | frozenset[int] = frozenset()) -> None:
        """Forget every trajectory but these. Cached keys and values must not outlive an update of the weights."""
        gone = [key for key in self._contexts if key not in keep]
        self.engine.release(gone)
        for key in gone:
            del self._contexts[key]
