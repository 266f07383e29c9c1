"""Inference engines: token ids in, sampled token ids and their log-probabilities out.

Engines depend on neither text nor environments. All implement one protocol (`base.Engine`): a Hugging Face model in
this process (`hf`), and vLLM in this process or behind a server (`vllm`). Importing this package imports none of them.
"""

from agentgym_trainer.engines.base import Completion, Engine, EngineGone, EngineUsage, SamplingParams, Weights

__all__ = ["Completion", "Engine", "EngineGone", "EngineUsage", "SamplingParams", "Weights"]
