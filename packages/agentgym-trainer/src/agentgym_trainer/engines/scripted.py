"""An engine that says what it is told to: for tests of everything around an engine."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from agentgym_trainer.engines import Completion, Request, Sampling


class ScriptedEngine:
    """Completes each request with what a function of its whole context says."""

    def __init__(self, script: Callable[[tuple[int, ...]], Sequence[int]], *, end_id: int) -> None:
        self.version = 0
        self.contexts: dict[int, tuple[int, ...]] = {}
        """The whole context of every live trajectory."""
        self._script = script
        self._end_id = end_id

    def generate(self, requests: Sequence[Request], sampling: Sampling) -> list[Completion]:
        """What the script says, cut at the budget; each id with log-probability -1."""
        return [self._complete(request, sampling) for request in requests]

    def release(self, keys: Sequence[int]) -> None:
        """Forget these trajectories."""
        for key in keys:
            self.contexts.pop(key, None)

    def _complete(self, request: Request, sampling: Sampling) -> Completion:
        context = request.ids if request.fresh else self.contexts[request.key] + request.ids
        budget = max(0, min(sampling.max_tokens, sampling.max_context - len(context)))
        ids = tuple(self._script(context))[:budget]
        self.contexts[request.key] = context + ids
        return Completion(ids, (-1.0,) * len(ids), "stop" if ids[-1:] == (self._end_id,) else "length")
