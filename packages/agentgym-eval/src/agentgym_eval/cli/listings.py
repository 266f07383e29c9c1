"""The sections of `agentgym list` for policies and protocols."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.metadata import entry_points

from agentgym_envs.util.listing import Listed

from agentgym_eval.policies.names import GROUP, POLICIES
from agentgym_eval.runs.protocols import PROTOCOLS, EnvSettings

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


def protocols() -> Iterator[Listed]:
    """Yield the protocols of `evaluate`, with their settings in each environment."""
    for name, protocol in PROTOCOLS.items():
        common = {"source": protocol.source, "split": protocol.split, "samples": protocol.samples}
        envs = {env: _shown(settings) for env, settings in protocol.envs.items()}
        note = ", ".join(protocol.envs)
        yield Listed(name, protocol.about, note, common | {"temperature": protocol.temperature} | envs)


def _shown(settings: EnvSettings) -> dict[str, int]:
    return {"tasks": settings.tasks, "turns": settings.horizon, "tokens per reply": settings.max_tokens}
