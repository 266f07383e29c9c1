"""Vision-language models as policies: the newest pictures of a conversation are part of each prompt.

One reply is sampled at a time, in a thread of its own: a prompt of pictures changes from turn to turn at its beginning,
where older pictures are left out, so there is no common prefix to cache.
"""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch
from agentgym_envs import Conversation, Policy, Reply, TokenUsage, TurnContext

from agentgym_trainer.tokens.vision_chat import VisionChat

_UNLIMITED = 1 << 30


class VisionPolicy(Policy):
    """A vision-language model in this process as a policy, for all agents."""

    sees_pictures = True

    def __init__(self, model: Any, chat: VisionChat, *, name: str, temperature: float, max_tokens: int) -> None:
        """Set up the policy.

        Args:
            model: A model of transformers that generates text from images and text. It is freed by `close`.
            chat: Its processor and chat template.
            name: The policy's name in reports.
            temperature: Sampling temperature; 0 samples greedily.
            max_tokens: Maximum number of tokens of a reply.
        """
        self.name = name
        self.chat = chat
        self._model: Any = model.eval()
        self._temperature, self._max_tokens = temperature, max_tokens
        self._context = getattr(model.config.get_text_config(), "max_position_embeddings", None) or _UNLIMITED
        own: list[int] | int | None = getattr(model.generation_config, "eos_token_id", None)
        ends = own if isinstance(own, list) else [] if own is None else [own]
        self._end_ids = sorted({*chat.end_ids, *ends})
        self._thread = ThreadPoolExecutor(1, "Vision model")

    async def reply(self, context: TurnContext) -> Reply:
        """Sample a reply; an empty one, cut off, where the context has no token left for it."""
        seed = int(context.rng.integers(2**63))
        sampling = self._thread.submit(self._sample, context.conversation, context.tools, seed)
        return await asyncio.wrap_future(sampling)

    def count_tokens(self, context: TurnContext) -> int:
        """Return the number of tokens of a context, with those that stand for images."""
        return int(self.chat.inputs(context.conversation, context.tools)["input_ids"].shape[1])

    async def close(self) -> None:
        """Free the model, after the reply that is being sampled."""
        self._thread.shutdown(cancel_futures=True)
        self._model = None

    def _sample(self, conversation: Conversation, tools: tuple[dict[str, Any], ...], seed: int) -> Reply:
        from transformers import GenerationConfig

        model = self._model
        inputs = self.chat.inputs(conversation, tools).to(model.device, dtype=model.dtype)  # integers stay integers
        prompt = int(inputs["input_ids"].shape[1])
        left = min(self._max_tokens, self._context - prompt)
        if left < 1:
            return Reply("", "length", usage=TokenUsage(prompt, 0))
        chosen: dict[str, Any] = {"do_sample": False}
        if self._temperature:
            # The whole distribution, whatever the model's own configuration says.
            chosen = {"do_sample": True, "temperature": self._temperature, "top_k": 0, "top_p": 1.0}
        pad = self._end_ids[0] if self.chat.pad_id is None and self._end_ids else self.chat.pad_id
        settings = GenerationConfig(
            max_new_tokens=left, eos_token_id=self._end_ids, pad_token_id=pad, repetition_penalty=1.0, **chosen
        )
        with torch.inference_mode(), torch.random.fork_rng([model.device] if model.device.type == "cuda" else []):
            torch.manual_seed(seed)
            whole = model.generate(**inputs, generation_config=settings)
        ids: list[int] = whole[0, prompt:].tolist()
        finish = "stop" if ids and ids[-1] in self._end_ids else "length"
        return Reply(self.chat.reply_text(ids, self._end_ids), finish, usage=TokenUsage(prompt, len(ids)))
