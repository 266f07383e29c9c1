"""Conversion between conversations with pictures and the inputs of vision-language models.

A processor of transformers turns the text of the chat template and the images into token ids and pixels. It encodes the
whole text at once, with control tokens enabled; so that no text of an environment becomes a control token or stands for
an image, a blank is inserted into each one that occurs in the content of a message.
"""

from __future__ import annotations

import io
import re
from collections.abc import Sequence
from typing import Any

from agentgym_envs import Conversation, Message
from agentgym_envs.core.action_schema import described

_PROBES = "a5f0c1e7", "b2d94c38"
"""Contents of the messages that show what a chat template does with a system message."""


class VisionChat:
    """The processor of a vision-language model, with its chat template."""

    def __init__(self, processor: Any) -> None:
        """Wrap a processor of transformers.

        Raises:
            ValueError: The processor takes no images, or has no chat template.
        """
        self.processor = processor
        if any(getattr(processor, part, None) is None for part in ("tokenizer", "image_processor")):
            raise ValueError("Its processor takes no images.")
        self.tokenizer: Any = processor.tokenizer
        if not (getattr(processor, "chat_template", None) or self.tokenizer.chat_template):
            raise ValueError(
                "Its processor has no chat template; choose an instruct model, or save a template with it."
            )
        self.tokenizer.padding_side = "left"
        added = self.tokenizer.added_tokens_decoder.values()
        special = {token.content for token in added if token.special} | set(self.tokenizer.all_special_tokens)
        special |= {token for name in ("image_token", "video_token") if (token := getattr(processor, name, None))}
        markup = {token.content for token in added if re.match(r"[<\[]\S", token.content)}
        self._of_agent, self._of_environment = _pattern(special), _pattern(special | markup)
        self.takes_system = self._takes_system()
        """Whether the template supports a system message; otherwise its content precedes the first observation."""

    @property
    def end_ids(self) -> list[int]:
        """The tokens that end a reply."""
        return [] if self.tokenizer.eos_token_id is None else [self.tokenizer.eos_token_id]

    @property
    def pad_id(self) -> int | None:
        """The token for padding."""
        return self.tokenizer.pad_token_id

    def inputs(self, conversation: Conversation, tools: Sequence[dict[str, Any]] = ()) -> Any:
        """Return the model's inputs for the next reply, as tensors with a batch dimension of 1.

        Args:
            conversation: The conversation. Each picture has its image.
            tools: JSON schemas of functions, which are described in the system message.
        """
        from PIL import Image

        images: list[Any] = []
        for message in conversation:
            if message.picture is not None:
                with Image.open(io.BytesIO(message.picture.png)) as image:
                    images.append(image.convert("RGB"))
        text = self._render(self._with_system(conversation, tools))
        return self.processor(text=[text], images=[images] if images else None, return_tensors="pt", **_NO_BOS)

    def reply_text(self, ids: Sequence[int], end_ids: Sequence[int]) -> str:
        """Return the text of sampled ids, without the token that ends the reply."""
        content = ids[:-1] if ids and ids[-1] in end_ids else ids
        return self.tokenizer.decode(list(content), skip_special_tokens=False, clean_up_tokenization_spaces=False)

    def _with_system(self, conversation: Conversation, tools: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
        messages = list(conversation)
        system = [messages.pop(0).content] if messages and messages[0].role == "system" else []
        system += [described(tools)] if tools else []
        told = "\n\n".join(system)
        if told and not self.takes_system:
            first = messages[0]
            messages[0] = Message(first.role, f"{told}\n\n{first.content}", first.picture)
        elif told:
            messages.insert(0, Message("system", told))
        return [self._message(message) for message in messages]

    def _message(self, message: Message) -> dict[str, Any]:
        pattern = self._of_agent if message.role == "assistant" else self._of_environment
        parts: list[dict[str, Any]] = [{"type": "image"}] if message.picture is not None else []
        return {"role": message.role, "content": [*parts, {"type": "text", "text": _plain(message.content, pattern)}]}

    def _render(self, messages: list[dict[str, Any]]) -> str:
        return self.processor.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)

    def _takes_system(self) -> bool:
        from jinja2 import TemplateError

        roles = zip(("system", "user"), _PROBES, strict=True)
        try:
            text = self._render([{"role": role, "content": [{"type": "text", "text": probe}]} for role, probe in roles])
        except (TemplateError, TypeError, ValueError):
            return False
        return all(probe in text for probe in _PROBES)


_NO_BOS = {"add_special_tokens": False}  # the template writes them


def _pattern(tokens: set[str]) -> re.Pattern[str]:
    """Return a pattern that finds the tokens of more than one character."""
    found = sorted((token for token in tokens if len(token) > 1), key=len, reverse=True)
    return re.compile("|".join(map(re.escape, found)) or r"(?!)")


def _plain(text: str, pattern: re.Pattern[str]) -> str:
    """Insert a blank into each token that the pattern finds, so that it is text."""
    return pattern.sub(lambda token: f"{token[0][0]} {token[0][1:]}", text)
