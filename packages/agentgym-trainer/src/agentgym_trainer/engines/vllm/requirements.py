"""What the engine requires of a running vLLM server: the flags it is started with, and the settings that it reports."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from agentgym_trainer.engines.vllm.process import EXTENSION, supported_rank

COMMAND = (
    f"VLLM_SERVER_DEV_MODE=1 vllm serve MODEL --worker-extension-cls {EXTENSION} --enable-scale-out "
    "--logprobs-mode processed_logprobs --generation-config vllm --enable-prompt-tokens-details"
)
"""Starts a server that meets them."""


def find_problem(hello: Mapping[str, Any], *, max_context: int, rank: int, hint: str) -> str:
    """Return why a server with these settings can't be used, with the server as the subject; empty if it can."""
    if hello["logprobs_mode"] != "processed_logprobs":
        return (
            f"returns {hello['logprobs_mode']}, not the log-probabilities of the distribution it samples from "
            f"(processed_logprobs). {hint}"
        )
    if hello["max_context"] < max_context:
        return (
            f"takes contexts of {hello['max_context']} tokens, but generation.max_context is {max_context}. Start the "
            f"server with --max-model-len {max_context}, or lower generation.max_context."
        )
    if hello["lora_rank"] < rank:
        return (
            f"takes adapters up to rank {hello['lora_rank']}, not {rank}. Start it with "
            f"VLLM_ALLOW_RUNTIME_LORA_UPDATING=1, --enable-lora and --max-lora-rank {supported_rank(rank)}."
        )
    return ""
