"""Engines: token ids in, sampled token ids and their log-probabilities out. They know neither text nor environments.

One protocol for all (`base.Engine`): a Hugging Face model in this process (`hf`), vLLM in this process and vLLM servers
(`vllm`). Importing this imports none of them.
"""

from agentgym_trainer.engines.base import Completion, Engine, EngineGone, EngineUsage, SamplingParams, Weights

__all__ = ["Completion", "Engine", "EngineGone", "EngineUsage", "SamplingParams", "Weights"]
