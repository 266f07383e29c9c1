"""The module that trains: a causal language model and an optional critic, with one forward pass over packed segments.

It is a single module with a single forward, as distributed wrappers (DDP, FSDP2) need. It does not depend on losses or
optimizers.
"""

from __future__ import annotations

import copy
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

import torch
from peft import PeftModel
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor
from torch.nn.functional import linear

from agentgym_trainer.algorithms.types import ModelOutputs
from agentgym_trainer.models.attention import SDPA, Segments, UnsupportedAttention, packed_inputs, use_attention
from agentgym_trainer.models.lm_head import token_scores


class ValueHead(nn.Module):
    """A critic on the policy's trunk: a linear map of its hidden states, initialized to zero."""

    def __init__(self, width: int) -> None:
        """Create a head for hidden states of size `width`."""
        super().__init__()
        self.linear = nn.Linear(width, 1)
        nn.init.zeros_(self.linear.weight)
        nn.init.zeros_(self.linear.bias)

    def forward(self, hidden_MD: Tensor) -> Tensor:
        """Values, float32 [M]."""
        # In float32 also under autocast and FSDP2's mixed precision, which would round values to bfloat16.
        with torch.autocast(hidden_MD.device.type, enabled=False):
            weight_1D, bias_1 = self.linear.weight.float(), self.linear.bias.float()
            # A sum over one element instead of a view: FSDP2 warns about views as module outputs.
            return linear(hidden_MD.float(), weight_1D, bias_1).sum(1)


class SeparateCritic(nn.Module):
    """A critic with a trunk of its own."""

    def __init__(self, trunk: Any) -> None:
        """Add a value head to a transformers model without a language-model head."""
        super().__init__()
        self.trunk = trunk
        self.head = ValueHead(trunk.config.hidden_size)

    def forward(self, inputs: dict[str, Any], before_M: Tensor) -> Tensor:
        """Values at the positions `before_M`, float32 [M]."""
        return self.head(self.trunk(**inputs).last_hidden_state[0].index_select(0, before_M))


class PolicyModel(nn.Module):
    """A policy, with an optional critic, that computes log-probabilities, entropies and values of given tokens."""

    def __init__(
        self,
        policy: Any,
        *,
        temperature: float = 1.0,
        critic: ValueHead | SeparateCritic | None = None,
        attention: str = SDPA,
        chunk: int | None = None,
    ) -> None:
        """Prepare `policy` for packed segments.

        Args:
            policy: A Hugging Face causal language model, or a peft model of one.
            temperature: Sampling temperature, at which log-probabilities are computed.
            critic: Predicts returns; None without a critic.
            attention: One of `attention.KERNELS`.
            chunk: Tokens per application of the language-model head, see `token_scores`.

        Raises:
            ValueError: The model can't read packed segments, or transforms its logits after the head.
        """
        super().__init__()
        self.policy = policy
        self.critic = critic
        self.temperature = temperature
        self._chunk = chunk
        # accelerate shards these layers one by one, and reads the attribute from the outermost module.
        self._no_split_modules = self.causal_lm._no_split_modules
        _disable_dropout(self)
        # Weights may be float32 where the other kernels need autocast.
        use_attention(self.causal_lm, SDPA)
        _check_model(self.causal_lm)
        for trunk in self.trunks:
            use_attention(trunk, attention)

    @property
    def causal_lm(self) -> Any:
        """The Hugging Face model, whose layers may have adapters."""
        return self.policy.get_base_model() if isinstance(self.policy, PeftModel) else self.policy

    @property
    def trunks(self) -> list[Any]:
        """The models with decoder layers: the Hugging Face model, and that of a separate critic."""
        return [self.causal_lm, *([self.critic.trunk] if isinstance(self.critic, SeparateCritic) else [])]

    def forward(
        self,
        ids_T: Tensor,
        position_T: Tensor,
        lengths: tuple[int, ...],
        before_M: Tensor,
        target_M: Tensor,
        place_F: Tensor | None = None,
    ) -> ModelOutputs:
        """Score the completion tokens of one pack.

        Args:
            ids_T: Token ids of all segments, with tokens of common prefixes once.
            position_T: Position of each token in its segment.
            lengths: Number of tokens of each segment; segments don't attend to each other.
            before_M: Index of the token before each completion token. It may be empty; the outputs then still depend on
                every weight, with zero gradients.
            target_M: Token id of each completion token.
            place_F: Index into T of each token of the concatenated segments; None if no tokens are shared.
        """
        inputs = packed_inputs(ids_T, position_T, Segments(lengths, ids_T.device, place_F))
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
        """Disable the adapter in the context, which gives the reference model."""
        with self.policy.disable_adapter():
            yield

    def tie_weights(self) -> None:
        """Make the embedding and the head share their weight again, if they are tied. accelerate calls this after it
        has replaced parameters.
        """
        self.causal_lm.tie_weights()

    def allocate(self) -> None:
        """Allocate parameters that are on the meta device in CPU memory, without values.

        accelerate tells parameters apart by their addresses, and fills them with those of the main process.
        """

        def allocated(tensor: Tensor) -> Tensor:
            return torch.empty_like(tensor, device="cpu") if tensor.is_meta else tensor

        self._apply(allocated)
        self.tie_weights()


def separate_critic(model: Any) -> SeparateCritic:
    """Return a critic with a copy of a causal language model's trunk. Call this before adding an adapter."""
    return SeparateCritic(copy.deepcopy(model.base_model))


def _disable_dropout(model: nn.Module) -> None:
    """Turn off all dropout, with which the ratio of the trained policy to the one that sampled would be noisy even
    without an update. In some models it is a number of a layer, such as OPT's `dropout` and `layerdrop`.
    """
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
        for name, value in vars(module).items():
            if "drop" in name and isinstance(value, float):
                setattr(module, name, 0.0)


@torch.no_grad()
def _check_model(model: Any) -> None:
    """Check that a model with the attention `SDPA` reads packed segments, and that the logits are exactly the head's
    weight applied to the last hidden states.

    Models on the meta device can't be checked; the process that has their weights does it. Nor can models whose memory
    is planned.
    """
    if model.device.type == "meta" or isinstance(model.get_output_embeddings().weight, FakeTensor):
        return
    was_training = model.training
    model.eval()
    two = torch.zeros(2, dtype=torch.long, device=model.device)
    try:
        model.base_model(**packed_inputs(two, two, Segments((1, 1), model.device)))
    except (torch.OutOfMemoryError, UnsupportedAttention):
        raise
    except (RuntimeError, TypeError, ValueError) as error:
        reason = str(error).partition("\n")[0]
        raise ValueError(
            f"{model.config.model_type} can't read packed segments, since it doesn't pass them on to its attention "
            f"({reason}); choose a model such as Qwen2.5 or Llama 3."
        ) from error
    # Embeddings instead of token ids, since the embedding of a padding token is 0 and gives logits of 0.
    width = model.get_input_embeddings().weight.shape[1]
    embedded = torch.linspace(-1, 1, 2 * width, dtype=model.dtype, device=model.device).view(1, 2, width)
    hidden = model.base_model(inputs_embeds=embedded, use_cache=False).last_hidden_state
    plain = linear(hidden, model.get_output_embeddings().weight)
    same = torch.equal(model(inputs_embeds=embedded, use_cache=False).logits, plain)
    model.train(was_training)
    if not same:
        raise ValueError(
            f"{model.config.model_type} transforms its logits after the head's weight, such as by a scale, a bias or a "
            "soft cap, which the chunked head doesn't support; choose a model such as Qwen2.5 or Llama 3."
        )
