"""Samples from a Hugging Face model with a cache kept over the turns.

In training it is the very module that trains: no weights are copied, and the sampled log-probabilities are the
learner's own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from agentgym_trainer.engines import Completion, Request, Sampling
from agentgym_trainer.engines.ragged_cache import RaggedCache


class TransformersEngine:
    """Batched sampling over ragged trajectories on one device."""

    def __init__(self, model: Any, *, end_id: int, pad_id: int) -> None:
        """Sample from `model`.

        Raises:
            ValueError: when the model attends in another way than causally over everything.
        """
        kinds = set(getattr(model.config, "layer_types", None) or []) - {"full_attention"}
        if kinds:
            raise ValueError(
                f"{model.config.model_type} has layers of {', '.join(sorted(kinds))}, which the transformers engine "
                "can't keep over turns; choose a model with full attention, such as Qwen2.5 or Llama 3."
            )
        self.model = model
        self.version = 0
        self._end_id = end_id
        self._pad_id = pad_id
        self._cache = RaggedCache(model.config.num_hidden_layers)
        self._unread: dict[int, list[int]] = {}

    def release(self, keys: Sequence[int]) -> None:
        """Free the rows of trajectories that have ended."""
        self._cache.forget(keys)
        for key in keys:
            self._unread.pop(key, None)

    @torch.no_grad()
    def generate(self, requests: Sequence[Request], sampling: Sampling) -> list[Completion]:
        """Sample until every request has its end-of-turn token or has used up its budget."""
        self.model.eval()
        self.release([request.key for request in requests if request.fresh])
        drafts = {request.key: self._draft(request, sampling) for request in requests}
        going = self._cache.bring_to_front(key for key, draft in drafts.items() if not draft.done)
        while going:
            logits = self._forward([drafts[key].unread for key in going])
            ids, logprobs = _draw(logits, sampling.temperature, [drafts[key].rng for key in going])
            for key, token, logprob in zip(going, ids.tolist(), logprobs.tolist(), strict=True):
                drafts[key].add(token, logprob, self._end_id)
            going = self._cache.bring_to_front(key for key in going if not drafts[key].done)
        for key, draft in drafts.items():
            self._unread[key] = draft.unread
        return [drafts[request.key].completion() for request in requests]

    def _draft(self, request: Request, sampling: Sampling) -> _Draft:
        unread = [*self._unread.get(request.key, ()), *request.ids]
        context = self._cache.length(request.key) + len(unread)
        budget = max(0, min(sampling.max_tokens, sampling.max_context - context))
        return _Draft(unread, budget, request.rng)

    def _forward(self, feed: Sequence[Sequence[int]]) -> Tensor:
        """Read these ids into the rows in front and return the logits behind each row's last one, float32 [rows, V]."""
        device = self.model.device
        n, new = len(feed), max(map(len, feed))
        ids = torch.full((n, new), self._pad_id)
        for row, more in enumerate(feed):
            ids[row, : len(more)] = torch.tensor(more)
        position, mask = self._cache.prepare([len(more) for more in feed], device)
        last = torch.tensor([len(more) - 1 for more in feed], device=device)
        wanted, which = last.unique(return_inverse=True)
        logits = self.model(
            input_ids=ids.to(device),
            position_ids=position,
            attention_mask=mask,
            past_key_values=self._cache,
            use_cache=True,
            logits_to_keep=wanted,
        ).logits
        return logits[torch.arange(n, device=device), which].float()


def _draw(logits: Tensor, temperature: float, rngs: Sequence[np.random.Generator]) -> tuple[Tensor, Tensor]:
    """One token per row, by inversion of the row's cumulative distribution, and its log-probability."""
    if temperature == 0:
        ids = logits.argmax(-1)
        return ids, torch.zeros_like(ids, dtype=torch.float32)
    logp = torch.log_softmax(logits / temperature, -1)
    cumulative = logp.double().exp().cumsum(-1)
    chance = torch.tensor([rng.random() for rng in rngs], dtype=torch.float64, device=logits.device)
    # Rounding leaves the sum a little off 1.
    ids = torch.searchsorted(cumulative, (chance * cumulative[:, -1])[:, None], right=True)
    ids = ids.clamp(max=logits.shape[1] - 1)
    return ids[:, 0], logp.gather(1, ids)[:, 0]


@dataclass(slots=True)
class _Draft:
    """A completion in the making."""

    unread: list[int]
    """Ids that the cache doesn't hold yet; at the end the last sampled one, for the next turn to read first."""
    budget: int
    rng: np.random.Generator
    ids: list[int] = field(default_factory=list[int])
    logprobs: list[float] = field(default_factory=list[float])
    stopped: bool = False

    @property
    def done(self) -> bool:
        return self.stopped or len(self.ids) >= self.budget

    def add(self, token: int, logprob: float, end_id: int) -> None:
        self.ids.append(token)
        self.logprobs.append(logprob)
        self.unread = [token]
        self.stopped = token == end_id

    def completion(self) -> Completion:
        return Completion(tuple(self.ids), tuple(self.logprobs), "stop" if self.stopped else "length")
