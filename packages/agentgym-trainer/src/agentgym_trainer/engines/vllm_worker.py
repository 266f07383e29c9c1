"""What we add to the workers of a vLLM server, through vLLM's own `--worker-extension-cls`: they fetch new weights from
a learner, in place.

The server's Python must be able to import this module: with this package installed there, or its `src` folder on the
PYTHONPATH. A method is called on all workers at once, by name, through vLLM's `/collective_rpc`; names of ours begin
with agentgym, as a worker has hundreds of others.
"""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agentgym_trainer.engines.wire import fetch

if TYPE_CHECKING:
    from torch import Tensor

_HEAD = "lm_head.weight"


class WeightReceiver:
    """Mixed into vLLM's worker class by vLLM."""

    vllm_config: Any
    reload_weights: Callable[..., None]

    def agentgym_hello(self) -> dict[str, Any]:
        """What a learner must know about this server."""
        model, lora = self.vllm_config.model_config, self.vllm_config.lora_config
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

    def agentgym_take_adapter(self, host: str, port: int, secret: str, config: Mapping[str, Any]) -> dict[str, str]:
        """Lay the adapter offered there where this machine's vLLM loads it from: it takes adapters as folders only."""
        from safetensors.torch import save_file

        folder = Path(tempfile.gettempdir(), f"agentgym-adapter-{secret[:8]}")
        folder.mkdir(exist_ok=True)
        # Workers on one machine lay the same files into the same place.
        with tempfile.TemporaryDirectory(dir=folder) as own:
            save_file(dict(fetch(host, port, secret)), Path(own, "adapter_model.safetensors"))
            Path(own, "adapter_config.json").write_text(json.dumps(config), encoding="utf-8")
            for file in Path(own).iterdir():
                file.replace(folder / file.name)
        return {"folder": str(folder)}

    def agentgym_drop_adapter(self, folder: str) -> None:
        """Delete what `agentgym_take_adapter` laid there, once it is loaded."""
        shutil.rmtree(folder, ignore_errors=True)


def untied(tensors: Iterable[tuple[str, Tensor]]) -> Iterator[tuple[str, Tensor]]:
    """Also a head that is one with the embedding, once: vLLM may have packed it on its own."""
    for name, tensor in tensors:
        if name != _HEAD:
            yield name, tensor
        if name.endswith("embed_tokens.weight"):
            yield _HEAD, tensor
