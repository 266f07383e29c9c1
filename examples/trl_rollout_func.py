"""TRL's GRPOTrainer with rollouts of this package: `rollout_func` plays multi-turn episodes, and TRL trains on them.

TRL trains on exactly the sampled token ids; tokens of observations are masked out.
Needs: pip install "agentgym-envs[textcraft]" agentgym-trainer
"""

import tempfile
from typing import Any

from agentgym_envs import EnvPool, Episode, EpisodeSpec, ReAct, WorldSpec, play, text_env
from agentgym_eval import Oracle
from agentgym_trainer.engines.hf.engine import transformers_engine
from agentgym_trainer.rollout.environments import OpenEnvironment
from agentgym_trainer.rollout.runner import EnginePolicy, RolloutRequest, RolloutRunner, TokenBudget
from agentgym_trainer.tokens.chat import Chat
from agentgym_trainer.tokens.encode import encode
from agentgym_trainer.tokens.trajectory import trajectory
from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer

from tiny_model import teach, tiny_model, tiny_tokenizer

OPTIONS = {"depth": (1, 1), "distractors": 0, "max_episode_steps": 6}


def tokens(episode: Episode) -> tuple[list[int], list[int], list[float], list[int]]:
    """Return prompt, completion, log-probabilities and mask of an episode for TRL; the mask is 1 for sampled tokens."""
    (segment,) = trajectory(episode).segments
    start = segment.loss_mask.index(True)
    mask = [int(sampled) for sampled in segment.loss_mask[start:]]
    return list(segment.ids[:start]), list(segment.ids[start:]), list(segment.logprobs[start:]), mask


class Worlds:
    """A `rollout_func` that plays each prompt, which is a task id, in its own environment."""

    def __init__(self, chat: Chat, world: OpenEnvironment) -> None:
        self.chat = chat
        self.world = world

    def __call__(self, prompts: list[str], trainer: GRPOTrainer) -> dict[str, list[Any]]:
        """Play all prompts concurrently."""
        model = trainer.accelerator.unwrap_model(trainer.model)
        policy = EnginePolicy(
            transformers_engine(model, end_id=self.chat.end_id), self.chat, TokenBudget(64), name="grpo"
        )
        jobs = [EpisodeSpec(task, sample, seed=trainer.state.global_step) for sample, task in enumerate(prompts)]
        with RolloutRunner(policy.engine) as rollouts:
            episodes = {
                episode.sample: episode for episode in rollouts.play([RolloutRequest(self.world, jobs)], policy)
            }
        model.train()  # the engine samples without dropout
        parts = zip(*(tokens(episodes[sample]) for sample in range(len(prompts))), strict=True)
        made = dict(zip(("prompt_ids", "completion_ids", "logprobs", "env_mask"), map(list, parts), strict=True))
        return made | {"score": [episodes[sample].score for sample in range(len(prompts))]}


def score_of(prompts: list[str], score: list[float], **columns: Any) -> list[float]:
    """Return the scores that `rollout_func` returned with the tokens."""
    return score


def main(tasks: int = 2, sft_steps: int = 300, steps: int = 2) -> list[dict[str, float]]:
    """Fine-tune a tiny model on the reply format, train it with GRPO, and return TRL's log of each step."""
    spec = WorldSpec("agentgym/TextCraft-v0", OPTIONS)
    world = ReAct(spec.build())
    ids = text_env(world).tasks.train.ids[:tasks]
    expert = [play(world, Oracle(), EpisodeSpec(task)) for task in ids]
    texts = [text for episode in expert for turn in episode.turns for text in (turn.observation, turn.reply.text)]
    tokenizer = tiny_tokenizer([world.instructions, *texts] * 4)
    chat = Chat(tokenizer)
    model = tiny_model(tokenizer)
    encoded = [tokens(encode(chat, episode)) for episode in expert]
    teach(model, [(prompt + completion, len(prompt)) for prompt, completion, *_ in encoded], sft_steps)

    with tempfile.TemporaryDirectory() as folder, EnvPool(spec, 4) as pool:
        trainer = GRPOTrainer(
            model=model,
            processing_class=tokenizer,
            train_dataset=Dataset.from_list([{"prompt": task} for task in ids]),
            reward_funcs=score_of,
            rollout_func=Worlds(chat, OpenEnvironment(spec.id, 1.0, world, pool)),
            args=GRPOConfig(
                folder, max_steps=steps, per_device_train_batch_size=4, num_generations=4, max_completion_length=256,
                logging_steps=1, report_to="none", use_cpu=True, bf16=False,
            ),
        )  # fmt: skip
        trainer.train()
    return [line for line in trainer.state.log_history if "reward" in line]


if __name__ == "__main__":
    for line in main():
        print(f"reward {line['reward']:.2f}, tokens said per episode {line['completions/mean_length']:.0f}")
