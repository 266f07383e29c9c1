"""What we add to the workers of a vLLM server, through vLLM's own `--worker-extension-cls`: they fetch new weights from
a learner, in place.

The server's Python must be able to import this module: with this package installed there, or its `src` folder on the
PYTHONPATH. A method is called on all workers at once, by name, through vLLM's `/collective_rpc`; names of ours begin
with agentgym, as a worker has hundreds of others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from agentgym_trainer.engines.vllm.weight_transfer import fetch

if TYPE_CHECKING:
    from torch import Tensor

ADAPTER = 1
"""Number of the one adapter there is: the first that a server of vLLM's gives."""
_HEAD = "lm_head.weight"


class WeightReceiver:
    """Mixed into vLLM's worker class by vLLM."""

    vllm_config: Any
    model_runner: Any
    reload_weights: Callable[..., None]

    def agentgym_hello(self) -> dict[str, Any]:
        """What a learner must know about this server.

        Raises:
            ValueError: when the server would fail at its first token.
        """
        model, lora = self.vllm_config.model_config, self.vllm_config.lora_config
        if self.vllm_config.device_config.device_type == "cpu":
            check_heads(model)
        return {
            "dtype": str(model.dtype).removeprefix("torch."),
            "logprobs_mode": model.logprobs_mode,
            "max_context": model.max_model_len,
            "lora_rank": lora.max_lora_rank if lora else 0,
        }

    def agentgym_take_weights(self, host: str, port: int, secret: str) -> None:
        """Replace the model's weights by those offered there.

        Raises:
            ConnectionError: when not all of them came. The weights are then partly new, and can be replaced again.
        """
        torn: list[ConnectionError] = []

        def as_far_as_it_goes() -> Iterator[tuple[str, Tensor]]:
            # An error in its midst would leave vLLM's model in pieces for good.
            try:
                yield from fetch(host, port, secret)
            except ConnectionError as error:
                torn.append(error)

        tied = self.vllm_config.model_config.hf_text_config.tie_word_embeddings
        self.reload_weights(weights_iterator=untied(as_far_as_it_goes()) if tied else as_far_as_it_goes())
        if torn:
            raise torn[0]

    def agentgym_take_adapter(self, host: str, port: int, secret: str, config: Mapping[str, Any]) -> None:
        """Put the LoRA adapter offered there into the place of the last one."""
        put_adapter(self, fetch(host, port, secret), config)


def check_heads(model: Any) -> None:
    """Refuse now what vLLM would refuse on a CPU in its first step.

    Args:
        model: Of vLLM's configurations, the one of the model.

    Raises:
        ValueError: when it has no kernel for attention heads of that size.
    """
    from vllm.v1.attention.backends.cpu_attn import CPUAttentionBackend

    if (size := model.get_head_size()) not in (known := CPUAttentionBackend.get_supported_head_sizes()):
        raise ValueError(
            f"The model's attention heads have a size of {size}, and vLLM on a CPU can do "
            f"{', '.join(map(str, known))}; choose another model (scratch.hidden divided by scratch.heads is the size "
            "of one from scratch), or the engine transformers."
        )


def untied(tensors: Iterable[tuple[str, Tensor]]) -> Iterator[tuple[str, Tensor]]:
    """Also a head that is one with the embedding, once: vLLM may have packed it on its own."""
    for name, tensor in tensors:
        if name != _HEAD:
            yield name, tensor
        if name.endswith("embed_tokens.weight"):
            yield _HEAD, tensor


def put_adapter(worker: Any, tensors: Iterable[tuple[str, Tensor]], config: Mapping[str, Any]) -> None:
    """Give a worker the adapter number `ADAPTER`, or another in its place. By itself vLLM would read it from a folder;
    once it is there, it doesn't.

    Args:
        worker: Of vLLM's.
        tensors: Are copied; names as peft writes them.
        config: In peft's layout.
    """
    from vllm.lora.lora_model import LoRAModel
    from vllm.lora.peft_helper import PEFTHelper

    manager = worker.model_runner.lora_manager
    helper = PEFTHelper.from_dict(dict(config))
    helper.validate_legal(manager.lora_config)
    # vLLM multiplies alpha / rank into what it is given.
    own = {name: tensor.detach().clone() for name, tensor in tensors}
    how: Any = {"device": "cpu", "dtype": manager.lora_config.lora_dtype, "model_vocab_size": manager.vocab_size}
    adapter = LoRAModel.from_lora_tensors(ADAPTER, own, helper, **how)
    slots = manager._adapter_manager
    slots.remove_adapter(ADAPTER)
    slots.add_adapter(adapter)
    slots.activate_adapter(ADAPTER)
