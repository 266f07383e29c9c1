"""An extension of vLLM's workers (`--worker-extension-cls`) with which they fetch new weights from a learner in place.

The server's Python must be able to import this module: either this package is installed there, or its `src` folder is
on the PYTHONPATH. Methods are called by name on all workers through vLLM's `/collective_rpc`; ours start with agentgym
to avoid clashes with the worker's hundreds of other methods.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from agentgym_trainer.engines.vllm.ipc_handles import decode_handle
from agentgym_trainer.engines.vllm.weight_transfer import fetch

if TYPE_CHECKING:
    from torch import Tensor

ADAPTER = 1
"""Number of the only adapter: the first that a vLLM server assigns."""
_HEAD = "lm_head.weight"


class WeightReceiver:
    """A mixin that vLLM adds to its worker class."""

    vllm_config: Any
    model_runner: Any
    reload_weights: Callable[..., None]
    update_weights: Callable[..., None]

    def agentgym_hello(self) -> dict[str, Any]:
        """Return the settings of this server that a learner must check.

        Raises:
            ValueError: when the server would fail in its first step.
        """
        model, lora = self.vllm_config.model_config, self.vllm_config.lora_config
        if self.vllm_config.device_config.device_type == "cpu":
            check_heads(model)
        transfer = self.vllm_config.weight_transfer_config
        return {
            "dtype": str(model.dtype).removeprefix("torch."),
            "logprobs_mode": model.logprobs_mode,
            "max_context": model.max_model_len,
            "lora_rank": lora.max_lora_rank if lora else 0,
            "weight_transfer": transfer.backend if transfer else "",
        }

    def agentgym_take_weights(self, host: str, port: int, secret: str) -> None:
        """Replace the model's weights with those offered at this address.

        Raises:
            ConnectionError: when not all of them arrived. The weights are then partly new, and can be replaced again.
        """
        failures: list[ConnectionError] = []

        def until_failure() -> Iterator[tuple[str, Tensor]]:
            # An error in the middle of the iteration would leave vLLM's model unusable for good.
            try:
                yield from fetch(host, port, secret)
            except ConnectionError as error:
                failures.append(error)

        tied = self.vllm_config.model_config.hf_text_config.tie_word_embeddings
        self.reload_weights(weights_iterator=untied(until_failure()) if tied else until_failure())
        if failures:
            raise failures[0]

    def agentgym_map_weights(self, update: Mapping[str, Any]) -> None:
        """Copy tensors out of memory that learners on the workers' GPUs share, through vLLM's backend `ipc`.

        Args:
            update: Names, types, shapes and sizes of the tensors in each buffer, as vLLM's `update_info`, and instead
                of its pickled handles `handles`: those of `encode_handle`, by the UUIDs of the GPUs.
        """
        handles = {device: decode_handle(handle) for device, handle in update["handles"].items()}
        tensors = {name: value for name, value in update.items() if name != "handles"}
        self.update_weights({**tensors, "ipc_handles": handles})

    def agentgym_take_adapter(self, host: str, port: int, secret: str, config: Mapping[str, Any]) -> None:
        """Replace the LoRA adapter with the one offered at this address."""
        put_adapter(self, fetch(host, port, secret), config)


def check_heads(model: Any) -> None:
    """Check the size of the attention heads, which vLLM on a CPU would only reject in its first step.

    Args:
        model: vLLM's model configuration.

    Raises:
        ValueError: when vLLM has no CPU kernel for attention heads of that size.
    """
    from vllm.v1.attention.backends.cpu_attn import CPUAttentionBackend

    if (size := model.get_head_size()) not in (known := CPUAttentionBackend.get_supported_head_sizes()):
        raise ValueError(
            f"The model's attention heads have a size of {size}, and vLLM on a CPU can do "
            f"{', '.join(map(str, known))}. Choose another model (for one from scratch, the size is scratch.hidden "
            "divided by scratch.heads), or the engine transformers."
        )


def untied(tensors: Iterable[tuple[str, Tensor]]) -> Iterator[tuple[str, Tensor]]:
    """Add a copy of the embedding as LM head, exactly once: vLLM may store a tied head separately."""
    for name, tensor in tensors:
        if name != _HEAD:
            yield name, tensor
        if name.endswith("embed_tokens.weight"):
            yield _HEAD, tensor


def put_adapter(worker: Any, tensors: Iterable[tuple[str, Tensor]], config: Mapping[str, Any]) -> None:
    """Set or replace the adapter `ADAPTER` of a worker.

    By default vLLM reads adapters from a folder, but not if one of that number is loaded already.

    Args:
        worker: The vLLM worker.
        tensors: Weights of the adapter under PEFT's names; they are copied.
        config: The adapter configuration in PEFT's format.
    """
    from vllm.lora.lora_model import LoRAModel
    from vllm.lora.peft_helper import PEFTHelper

    manager = worker.model_runner.lora_manager
    helper = PEFTHelper.from_dict(dict(config))
    helper.validate_legal(manager.lora_config)
    # Copied because vLLM multiplies alpha / rank into the tensors in place.
    own = {name: tensor.detach().clone() for name, tensor in tensors}
    options: Any = {"device": "cpu", "dtype": manager.lora_config.lora_dtype, "model_vocab_size": manager.vocab_size}
    adapter = LoRAModel.from_lora_tensors(ADAPTER, own, helper, **options)
    slots = manager._adapter_manager
    slots.remove_adapter(ADAPTER)
    slots.add_adapter(adapter)
    slots.activate_adapter(ADAPTER)
