"""The module that trains: a causal language model, and maybe a critic, as one forward pass over packed segments.

One module with one forward, so that whatever distributes it (DDP, FSDP2) sees everything that happens in it. Knows
neither losses nor optimizers.
"""

from __future__ import annotations

import copy
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

import torch
from peft import PeftModel
from torch import Tensor, nn

from agentgym_trainer.algorithms.types import ModelOutputs
from agentgym_trainer.models.attention import SDPA, Segments, packed_inputs, use_attention
from agentgym_trainer.models.lm_head import CHUNK, token_scores


class ValueHead(nn.Module):
    """A critic on the policy's trunk: a linear map of its hidden states, zero to begin with."""

    def __init__(self, width: int) -> None:
        """Read hidden states of this many numbers."""
        super().__init__()
        self.linear = nn.Linear(width, 1)
        nn.init.zeros_(self.linear.weight)
        nn.init.zeros_(self.linear.bias)

    def forward(self, hidden_MD: Tensor) -> Tensor:
        """Values, float32 [M]."""
        # A sum over one number: FSDP2 warns of views that a module gives away.
        return self.linear(hidden_MD).float().sum(1)


class SeparateCritic(nn.Module):
    """A critic with a trunk of its own."""

    def __init__(self, trunk: Any) -> None:
        """Put a value head on a transformers model without a language-model head."""
        super().__init__()
        self.trunk = trunk
        self.head = ValueHead(trunk.config.hidden_size)

    def forward(self, inputs: dict[str, Any], before_M: Tensor) -> Tensor:
        """Values read off at `before_M`, float32 [M]."""
        return self.head(self.trunk(**inputs).last_hidden_state[0].index_select(0, before_M))


class PolicyModel(nn.Module):
    """A policy that says how likely tokens were, and what its critic expects before they are said."""

    def __init__(
        self,
        policy: Any,
        *,
        temperature: float = 1.0,
        critic: ValueHead | SeparateCritic | None = None,
        attention: str = SDPA,
        chunk: int = CHUNK,
    ) -> None:
        """Let `policy` read packed segments.

        Args:
            policy: A Hugging Face causal language model, or a peft model of one.
            temperature: The one that replies are sampled with; log-probabilities are taken at it.
            critic: Expects returns; None without.
            attention: One of `attention.KERNELS`.
            chunk: Tokens that go through the language-model head at once.

        Raises:
            ValueError: when the model can't read packed segments, or does more to its logits than the head does.
        """
        super().__init__()
        self.policy = policy
        self.critic = critic
        self.temperature = temperature
        self._chunk = chunk
        # What accelerate shards piece by piece: where a model says it, it must be said of the whole.
        self._no_split_modules = self.causal_lm._no_split_modules
        use_attention(self.causal_lm, attention)
        if isinstance(critic, SeparateCritic):
            use_attention(critic.trunk, attention)
        _check_head(self.causal_lm)

    @property
    def causal_lm(self) -> Any:
        """The Hugging Face model, whose layers may have adapters."""
        return self.policy.get_base_model() if isinstance(self.policy, PeftModel) else self.policy

    def forward(
        self, ids_T: Tensor, position_T: Tensor, lengths: tuple[int, ...], before_M: Tensor, target_M: Tensor
    ) -> ModelOutputs:
        """Score the said tokens of one pack.

        Args:
            ids_T: Token ids of all segments end to end.
            position_T: Position of each token in its segment.
            lengths: Tokens of each segment; no segment sees another.
            before_M: Where the token before each said token stands. There may be none: what comes back then still
                hangs on every weight, with gradients of zero.
            target_M: Token id of each said token.
        """
        inputs = packed_inputs(ids_T, position_T, Segments(lengths, ids_T.device))
        hidden_MD = self.causal_lm.base_model(**inputs).last_hidden_state[0].index_select(0, before_M)
        head = self.causal_lm.get_output_embeddings().weight
        logp_M, entropy_M = token_scores(hidden_MD, head, target_M, temperature=self.temperature, chunk=self._chunk)
        value_M = None
        if isinstance(self.critic, ValueHead):
            value_M = self.critic(hidden_MD)
        elif self.critic is not None:
            value_M = self.critic(inputs, before_M)
        return ModelOutputs(logp_M, entropy_M, value_M)

    @property
    def has_adapter(self) -> bool:
        """Whether a LoRA adapter trains instead of the model's own weights."""
        return isinstance(self.policy, PeftModel)

    @contextmanager
    def without_adapter(self) -> Generator[None]:
        """Meanwhile the model is the one that it was before the adapter: the reference."""
        with self.policy.disable_adapter():
            yield

    def frozen(self) -> PolicyModel:
        """A copy of the policy as it is now, for a reference; without critic."""
        policy = copy.deepcopy(self.policy).requires_grad_(False).eval()
        attention = self.causal_lm.config._attn_implementation
        return PolicyModel(policy, temperature=self.temperature, attention=attention, chunk=self._chunk)


def separate_critic(model: Any) -> SeparateCritic:
    """A critic that begins as a copy of a causal language model's trunk; make it before the model gets an adapter."""
    return SeparateCritic(copy.deepcopy(model.base_model))


@torch.no_grad()
def _check_head(model: Any) -> None:
    """See that logits are what the head's weight makes of the last hidden states, and nothing more."""
    was_training = model.training
    model.eval()
    # Not token ids: the embedding of a padding token is 0, and so is all that comes of it.
    width = model.get_input_embeddings().weight.shape[1]
    embedded = torch.linspace(-1, 1, 2 * width, dtype=model.dtype, device=model.device).view(1, 2, width)
    hidden = model.base_model(inputs_embeds=embedded, use_cache=False).last_hidden_state
    plain = torch.nn.functional.linear(hidden, model.get_output_embeddings().weight)
    same = torch.equal(model(inputs_embeds=embedded, use_cache=False).logits, plain)
    model.train(was_training)
    if not same:
        raise ValueError(
            f"{model.config.model_type} does more to its logits than its head's weight does, such as a scale, a bias "
            "or a soft cap, which the chunked head leaves out; choose a model such as Qwen2.5 or Llama 3."
        )
