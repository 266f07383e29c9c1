"""Local models as policies for `evaluate` and `collect`, registered as entry points `agentgym.policies`."""

from __future__ import annotations

from typing import Any, Literal, overload

import torch
from agentgym_envs import Reply, TurnContext
from agentgym_eval.util.errors import RunStopped, UsageError

from agentgym_trainer.engines.base import Engine, EngineGone
from agentgym_trainer.engines.hf.engine import transformers_engine
from agentgym_trainer.engines.vllm.in_process import vllm_engine
from agentgym_trainer.models.load import is_adapter, load_chat, load_model, load_vision_model
from agentgym_trainer.models.resolve import resolve_model
from agentgym_trainer.rollout.runner import EnginePolicy, TokenBudget
from agentgym_trainer.rollout.vision import VisionPolicy
from agentgym_trainer.tokens.chat import Chat

_MAX_CONTEXT = 32_768
"""Maximum context in tokens for vLLM, which reserves memory for a full one; some models allow a hundred times more."""


class LocalModel(EnginePolicy):
    """A policy with a model of its own."""

    def __init__(self, engine: Engine, chat: Chat, *, name: str, temperature: float, max_tokens: int) -> None:
        """Set up the policy with the engine's full context."""
        budget = TokenBudget(turn=max_tokens, context=engine.max_context)
        super().__init__(engine, chat, budget, name=name, temperature=temperature)

    async def reply(self, context: TurnContext) -> Reply:
        """See `EnginePolicy.reply`.

        Raises:
            RunStopped: if the engine can't be restarted.
        """
        try:
            return await super().reply(context)
        except EngineGone as error:
            raise RunStopped(str(error)) from error

    async def close(self) -> None:
        """Close the engine, which frees the model."""
        await self.engine.close()


@overload
def hf(
    argument: str, *, temperature: float, seed: int, max_tokens: int, pictures: Literal[False] = False
) -> LocalModel: ...


@overload
def hf(argument: str, *, temperature: float, seed: int, max_tokens: int, pictures: Literal[True]) -> VisionPolicy: ...


def hf(
    argument: str, *, temperature: float, seed: int, max_tokens: int, pictures: bool = False
) -> LocalModel | VisionPolicy:
    """Load a model by path or name, such as the checkpoint of a run; bfloat16 on a GPU, else float32. For an agent that
    gets pictures, it is loaded with its processor as a vision-language model.

    Raises:
        UsageError: if no model is given, it can't be loaded, or it doesn't see pictures that the agent gets.
    """
    del seed  # tokens are sampled with the random generator of each turn
    _check("hf", argument)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if pictures:
        seeing, vision_chat = load_vision_model(argument, dtype=_dtype(), device=device)
        named: dict[str, Any] = {"name": f"hf:{argument}", "temperature": temperature, "max_tokens": max_tokens}
        return VisionPolicy(seeing, vision_chat, **named)
    model, chat = load_model(argument, dtype=_dtype(), device=device)
    engine = transformers_engine(model, end_id=chat.end_id)
    return LocalModel(engine, chat, name=f"hf:{argument}", temperature=temperature, max_tokens=max_tokens)


def vllm(argument: str, *, temperature: float, seed: int, max_tokens: int, pictures: bool = False) -> LocalModel:
    """Load a model into vLLM, which takes most of the GPU's memory, or a GiB for its KV cache on a CPU.

    Raises:
        UsageError: if no model is given, it can't be loaded, it is only an adapter, or the agent gets pictures.
        ImportError: if vLLM isn't installed; the message explains how to install it.
    """
    del seed  # as in `hf`
    _check("vllm", argument)
    if pictures:
        raise UsageError(
            f"vllm:{argument} passes only text to the model. For pictures use --policy hf:{argument}, or serve the "
            f"model with `vllm serve {argument}` and use --policy openai:{argument} with --base-url."
        )
    if is_adapter(argument):
        raise UsageError(
            f"{argument} is an adapter, and vllm needs a full model. Use --policy hf:{argument}, which merges the "
            "adapter into its base model, or give the folder `model` of the run that trained it."
        )
    chat = load_chat(argument)
    engine = vllm_engine(resolve_model(argument), 0.9, end_id=chat.end_id, max_context=_MAX_CONTEXT, dtype=_dtype())
    return LocalModel(engine, chat, name=f"vllm:{argument}", temperature=temperature, max_tokens=max_tokens)


def _dtype() -> torch.dtype:
    return torch.bfloat16 if torch.cuda.is_available() else torch.float32


def _check(policy: str, argument: str) -> None:
    if not argument:
        raise UsageError(
            f"{policy} needs a model: write --policy {policy}:PATH, where PATH is a checkpoint folder, a GGUF file or "
            "a model name."
        )
