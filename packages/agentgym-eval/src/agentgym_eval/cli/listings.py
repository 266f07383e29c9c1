"""The section of `agentgym list` for policies."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.metadata import entry_points

from agentgym_envs.util.listing import Listed

from agentgym_eval.policies.policies import GROUP, POLICIES

_OF_TRAINER = {
    "hf": Listed("hf:PATH", "A local model, by folder, GGUF file or name, with transformers."),
    "vllm": Listed("vllm:PATH", "A local model in vLLM."),
}


def policies() -> Iterator[Listed]:
    """Yield the policies of this package, and those of installed packages without importing them."""
    for written, about in POLICIES.items():
        yield Listed(written, about)
    for entry in entry_points(group=GROUP):
        package = entry.dist.name if entry.dist else "another package"
        yield _OF_TRAINER.get(entry.name) or Listed(f"{entry.name}:ARGUMENT", f"Of {package}: {entry.value}.")
