"""An engine for Hugging Face models, with a KV cache that persists across turns and shares common prefixes.

It samples either from the very module that trains, so that no weights are copied and the log-probabilities are the
learner's own, or from a copy, so that it can sample while the learner works. Of the learner it only sees its weights.

Why not the continuous batching of transformers (5.19)? `benchmarks/continuous_batching.py` measures it: per second of
CPU time it samples 0.7 times as many tokens with 8 concurrent requests and 0.11 times as many with 64, because its
attention without flash-attn is a dense mask over the tokens of all requests. It also draws all tokens from torch's
global random generator, so that a sample would depend on the other requests of its batch and a run couldn't be resumed
exactly, and it keeps the KV cache when weights change.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Collection, Generator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from peft import PeftModel, set_peft_model_state_dict
from torch import Tensor

from agentgym_trainer.engines.base import Completion, EngineUsage, SamplingParams, Weights
from agentgym_trainer.engines.batching import Batching
from agentgym_trainer.engines.factory import EngineContext
from agentgym_trainer.engines.hf.forward_plan import Reading
from agentgym_trainer.engines.hf.kv_cache import RAGGED
from agentgym_trainer.engines.hf.scheduler import Row, Rows
from agentgym_trainer.models.attention import partial_attention
from agentgym_trainer.models.lm_head import unrounded_logits
from agentgym_trainer.models.memory import idle_cache_bytes, kept_rows, trim_heap


def transformers_engine(
    model: Any,
    *,
    end_id: int,
    own_copy: bool = False,
    autocast: Callable[[], AbstractContextManager[Any]] = nullcontext,
    keep: int | None = None,
    concurrent: int | None = None,
) -> Batching:
    """Return an engine that samples from `model`, a causal language model or a PEFT model of one, on its device.

    Args:
        model: The model. It must not be sharded.
        end_id: The token that ends a completion.
        own_copy: Whether to sample from a copy of the model, made immediately. Otherwise the model must not be trained
            while the engine samples, and `load` only updates the version, because the weights are shared.
        autocast: Returns a context manager for each forward pass, such as accelerate's `autocast`.
        keep: The maximum number of tokens in the cache of trajectories that aren't being sampled; None: as many as fit
            into 2 GiB on a CPU, or a tenth of a GPU's memory.
        concurrent: The number of trajectories that are sampled at a time, including those whose environment has the
            turn. Beyond a quarter more, the cache keeps no others; None: as many as `keep` allows.

    Raises:
        ValueError: when the model has layers with another attention than full causal attention.
    """
    if kinds := partial_attention(model.config):
        raise ValueError(
            f"{model.config.model_type} has layers of {', '.join(kinds)}, which the transformers engine "
            "can't cache across turns; choose a model with full attention, such as Qwen2.5 or Llama 3."
        )
    sampled = copy.deepcopy(model).requires_grad_(False).eval() if own_copy else model

    kept = _kept_tokens(model.config, sampled.device) if keep is None else keep
    # Trajectories that have ended stay until others have been idle for as long.
    most = math.inf if concurrent is None else concurrent + kept_rows(concurrent)

    def make(usage: EngineUsage) -> _Core:
        return _Core(sampled, usage, end_id=end_id, own=own_copy, autocast=autocast, keep=kept, most=most)

    return Batching(make, in_thread=False)


def open_engine(context: EngineContext) -> Batching:
    """Return the engine `transformers` for a run.

    Raises:
        ValueError: when the model has layers with another attention than full causal attention.
    """
    return transformers_engine(
        context.model(),
        end_id=context.end_id,
        own_copy=context.own_copy,
        autocast=context.autocast,
        concurrent=context.concurrent,
    )


def _kept_tokens(config: Any, device: torch.device) -> int:
    """Return how many tokens of idle rows to keep, for keys and values of at most 4 bytes."""
    width = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    key_heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads  # GPT-2 has only the latter
    token = 2 * 4 * config.num_hidden_layers * key_heads * width
    on_gpu = device.type == "cuda"
    return int(idle_cache_bytes(torch.cuda.get_device_properties(device).total_memory if on_gpu else 0) / token)


@dataclass(slots=True)
class _Draft:
    """An unfinished completion."""

    row: Row
    context: int
    """Number of the row's ids that are the context of the request."""
    sampling: SamplingParams
    chances: list[float]
    """One random number in [0, 1) for each token of the budget."""
    logprobs: list[float] = field(default_factory=list[float])
    versions: list[int] = field(default_factory=list[int])
    """Version of the weights that sampled each token."""

    @property
    def chance(self) -> float:
        return self.chances[len(self.logprobs)]


class _Core:
    """A `Core` that computes on the device of the model."""

    def __init__(
        self,
        model: Any,
        usage: EngineUsage,
        *,
        end_id: int,
        own: bool,
        autocast: Callable[[], AbstractContextManager[Any]],
        keep: int,
        most: float,
    ) -> None:
        self.max_context: int = model.config.max_position_embeddings
        self.version = 0
        self._model = model
        self._causal_lm: Any = model.get_base_model() if isinstance(model, PeftModel) else model
        self._usage = usage
        self._end_id = end_id
        self._own = own
        self._autocast = autocast
        self._keep, self._most = keep, most
        self._drafts: dict[int, _Draft] = {}
        self._numbers: dict[Row, int] = {}
        self._rows: Rows | None = None

    def admit(self, number: int, ids: Sequence[int], sampling: SamplingParams) -> None:
        """Assign a row of the cache to a request."""
        chances = np.random.default_rng(sampling.seed).random(sampling.max_tokens).tolist()
        self._drafts[number] = _Draft(self._join(number, ids), len(ids), sampling, chances)

    def abort(self, numbers: Collection[int]) -> None:
        """Release the rows of requests."""
        for number in numbers:
            if number in self._drafts:
                self._leave(number)

    def _join(self, number: int, ids: Sequence[int]) -> Row:
        """Return the row for a request with these ids."""
        if self._rows is None:
            self._rows = Rows(self._causal_lm.device, self._usage, keep=self._keep, most=self._most)
        row = self._rows.join(ids)
        self._numbers[row] = number
        return row

    @torch.no_grad()
    def step(self) -> list[tuple[int, Completion]]:
        """Run one forward pass for all requests, and sample a token for each whose context is prefilled."""
        assert self._rows is not None
        rows, reading = self._rows.read([draft.row for draft in self._drafts.values()])
        logits = self._forward(rows, reading)
        read = [i for i, row in enumerate(rows) if row.read == len(row.ids)]
        if not read:
            return []
        if len(read) < len(rows):
            logits = logits[torch.tensor(read, device=logits.device)]
        numbers = [self._numbers[rows[i]] for i in read]
        drafts = [self._drafts[number] for number in numbers]
        temperatures = [draft.sampling.temperature for draft in drafts]
        ids, logprobs = draw(logits, temperatures, [draft.chance for draft in drafts])
        self._usage.generated += len(drafts)
        done: list[tuple[int, Completion]] = []
        for number, draft, token, logprob in zip(numbers, drafts, ids, logprobs, strict=True):
            draft.row.ids.append(token)
            draft.logprobs.append(logprob)
            draft.versions.append(self.version)
            if token == self._end_id or len(draft.logprobs) == draft.sampling.max_tokens:
                finish = "stop" if token == self._end_id else "length"
                sampled = self._leave(number)
                done.append((number, Completion.sampled(sampled, draft.logprobs, finish, draft.versions)))
        return done

    def _forward(self, rows: Sequence[Row], reading: Reading) -> Tensor:
        """Return the logits after the last token that each row has read now, float32 [rows, V]."""
        model = self._causal_lm
        if model.training:
            model.eval()
        assert self._rows is not None
        ids = [row.ids[span.start : span.stop] for row, span in zip(rows, reading.spans, strict=True)]
        head = model.get_output_embeddings()
        with _current(model.device), self._autocast(), _attention(model.config, RAGGED), unrounded_logits(head):
            logits = model(
                input_ids=reading.listed(ids)[None],
                position_ids=reading.position_T[None],
                # Prevents transformers from creating a mask.
                attention_mask=torch.ones(1, 1, 0, 0, dtype=torch.bool, device=reading.position_T.device),
                use_cache=False,
                logits_to_keep=torch.arange(len(rows), device=reading.position_T.device),
                ragged=self._rows.cache,
            ).logits
        return logits[0].float()

    def _leave(self, number: int) -> list[int]:
        """Remove a request and return its completion tokens."""
        draft = self._drafts.pop(number)
        del self._numbers[draft.row]
        if self._rows is not None:
            self._rows.leave(draft.row)
        return draft.row.ids[draft.context :]

    def load(self, weights: Weights) -> None:
        """Load new weights, drop the cache of the old ones, and prefill running requests again."""
        self._drop_cache()
        if self._own:
            _copy_weights(self._model, weights)
        self.version = weights.version
        self._numbers = {}
        for number, draft in self._drafts.items():
            draft.row = self._join(number, draft.row.ids)

    def sleep(self) -> bool:
        """Drop the cache."""
        self._drop_cache()
        return False

    def _drop_cache(self) -> None:
        self._rows = None
        if self._causal_lm.device.type == "cpu":
            trim_heap()

    def close(self) -> None:
        """Drop everything."""
        self._rows, self._drafts, self._numbers = None, {}, {}


def _current(device: torch.device) -> AbstractContextManager[Any]:
    """Make a GPU the calling thread's current one, on which Triton launches kernels such as Liger's, wherever their
    tensors are. In a new thread it is the first one.
    """
    return torch.cuda.device(device) if device.type == "cuda" else nullcontext()


@contextmanager
def _attention(config: Any, name: str) -> Generator[None]:
    """Use this attention implementation within the block."""
    before, config._attn_implementation = config._attn_implementation, name
    try:
        yield
    finally:
        config._attn_implementation = before


def draw(logits: Tensor, temperatures: Sequence[float], chances: Sequence[float]) -> tuple[list[int], list[float]]:
    """Sample one token per row by inverting the row's cumulative distribution; return ids and log-probabilities.

    Args:
        logits: float32 [rows, V].
        temperatures: One per row; at 0 the most likely token is taken, with log-probability 0.
        chances: A number in [0, 1) for each row.
    """
    by_row = torch.tensor([temperatures, chances], dtype=torch.float64, device=logits.device)[..., None]
    temperature, chance = by_row
    if set(temperatures) != {1.0}:
        logits = logits / torch.where(temperature > 0, temperature, 1.0).float()
    logp = torch.log_softmax(logits, -1)
    cumulative = logp.double().exp().cumsum(-1)
    # Because of rounding the probabilities may not sum to exactly 1.
    ids = torch.searchsorted(cumulative, chance * cumulative[:, -1:], right=True).clamp(max=logits.shape[1] - 1)
    if 0 in temperatures:
        greedy = temperature == 0
        ids = torch.where(greedy, logits.argmax(-1, keepdim=True), ids)
        drawn = logp.gather(1, ids).masked_fill(greedy, 0.0)
    else:
        drawn = logp.gather(1, ids)
    # A single device-to-host transfer; doubles represent ids exactly.
    tokens, logprobs = torch.cat([ids.double(), drawn.double()], 1).T.tolist()
    return [int(token) for token in tokens], logprobs


def _copy_weights(model: Any, weights: Weights) -> None:
    """Copy tensors in place: those of an adapter into the adapter, those of a whole model into the model."""
    if weights.adapter is not None:
        set_peft_model_state_dict(model, dict(weights.tensors()))
        return
    own = model.state_dict()
    with torch.no_grad():
        for name, tensor in weights.tensors():
            if name not in own:
                raise ValueError(
                    f"The weights have {name}, which the engine's model doesn't have; they belong to another model."
                )
            own[name].copy_(tensor)
