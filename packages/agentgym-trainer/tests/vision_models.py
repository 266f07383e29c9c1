"""A tiny LLaVA with random weights and its processor, built without downloads."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from agentgym_trainer.models.scratch import train_tokenizer

SIDE, PATCH = 56, 14
IMAGE_TOKENS = (SIDE // PATCH) ** 2
TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n"
    "{% for part in message['content'] %}"
    "{% if part['type'] == 'image' %}<image>\n{% else %}{{ part['text'] }}{% endif %}{% endfor %}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def save_vision_model(folder: Path, *, template: str = TEMPLATE, positions: int = 4096) -> Any:
    """Save the model with its processor in `folder`, and return the processor."""
    from transformers import CLIPVisionConfig, LlavaConfig, LlavaForConditionalGeneration, LlavaProcessor, Qwen3Config
    from transformers.models.clip.image_processing_pil_clip import CLIPImageProcessorPil

    tokenizer = train_tokenizer(["Thought: on\nAction: add\nGoal: 3. Count: 2. click [12]"], 300)
    tokenizer.add_special_tokens({"additional_special_tokens": ["<image>"]})
    size = {"height": SIDE, "width": SIDE}
    processor = LlavaProcessor(
        CLIPImageProcessorPil(size=size, crop_size=size, do_center_crop=False),
        tokenizer,
        patch_size=PATCH,
        vision_feature_select_strategy="default",
        num_additional_image_tokens=1,
        image_token="<image>",
        chat_template=template,
    )
    small: dict[str, Any] = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2}
    vision = CLIPVisionConfig(**small, num_attention_heads=2, image_size=SIDE, patch_size=PATCH)
    heads = {"num_attention_heads": 2, "num_key_value_heads": 2, "head_dim": 8}
    text = Qwen3Config(vocab_size=len(tokenizer), **small, **heads, max_position_embeddings=positions)
    image = tokenizer.convert_tokens_to_ids("<image>")
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = LlavaForConditionalGeneration(
            LlavaConfig(vision_config=vision, text_config=text, image_token_index=image)
        )
    model.save_pretrained(folder)
    processor.save_pretrained(folder)
    return processor
