"""TRL's GRPOTrainer with an environment of this package: the model calls the environment's functions as tools.

Needs: pip install "agentgym-envs[textcraft]" agentgym-trainer
"""

import json
import tempfile
from functools import partial
from typing import Any

from agentgym_envs import make, text_env
from agentgym_envs.adapters.tools import tool_environment
from agentgym_envs.core.action_schema import call_for
from datasets import Dataset
from transformers.utils import get_json_schema
from trl import GRPOConfig, GRPOTrainer

from tiny_model import teach, tiny_model, tiny_tokenizer

OPTIONS = {"depth": (1, 1), "distractors": 0, "max_episode_steps": 6}


def expert_conversation(world: Any, task: str) -> list[dict[str, Any]]:
    """Return the conversation of a task that the environment's expert plays with function calls."""
    observation, info = world.reset(options={"task": task})
    messages = [{"role": "system", "content": world.instructions}, {"role": "user", "content": observation}]
    while not info["success"]:
        call = call_for(world.functions, world.oracle())
        function = {"name": call.name, "arguments": call.arguments}
        messages.append(
            {"role": "assistant", "content": "", "tool_calls": [{"type": "function", "function": function}]}
        )
        observation, *_, info = world.step(world.oracle())
        messages.append({"role": "tool", "name": call.name, "content": observation})
    return messages


def main(tasks: int = 2, sft_steps: int = 120, steps: int = 2) -> list[dict[str, float]]:
    """Fine-tune a tiny model to call functions, train it with GRPO, and return TRL's log of each step."""
    world = text_env(make("agentgym/TextCraft-v0", **OPTIONS))
    environment = tool_environment("textcraft", **OPTIONS)
    ids = world.tasks.train.ids[:tasks]

    expert = [expert_conversation(world, task) for task in ids]
    schemas = [get_json_schema(vars(environment)[function.name]) for function in world.functions]
    tokenizer = tiny_tokenizer([json.dumps(part) for part in (*expert, *schemas)] * 4)
    encode = partial(tokenizer.apply_chat_template, tools=schemas, return_dict=False)
    rows = [(encode(messages), len(encode(messages[:2], add_generation_prompt=True))) for messages in expert]
    model = tiny_model(tokenizer)
    teach(model, rows, sft_steps)

    prompt = [{"role": "system", "content": world.instructions}, {"role": "user", "content": ""}]
    with tempfile.TemporaryDirectory() as folder:
        trainer = GRPOTrainer(
            model=model,
            processing_class=tokenizer,
            train_dataset=Dataset.from_list([{"prompt": prompt, "task": task} for task in ids]),
            environment_factory=environment,  # its get_reward is the score of the task
            args=GRPOConfig(
                folder, max_steps=steps, per_device_train_batch_size=4, num_generations=4, max_completion_length=256,
                max_tool_calling_iterations=6, logging_steps=1, report_to="none", use_cpu=True, bf16=False,
            ),
        )  # fmt: skip
        trainer.train()
    return [line for line in trainer.state.log_history if "reward" in line]


if __name__ == "__main__":
    for line in main():
        print(f"reward {line['reward']:.2f}, calls of functions per episode {line['tools/call_frequency']:.1f}")
