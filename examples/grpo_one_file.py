"""GRPO for a multi-turn agent in one file: TextCraft, `generate` of transformers, and plain autograd.

Read this file before the trainer's source: `RLLoop.step` in agentgym_trainer/trainers/rl_loop.py takes the same steps,
and adds micro-batches, distributed training, other engines and resuming. A test checks that the gradients are equal.

    uv run python examples/grpo_one_file.py --model Qwen/Qwen2.5-0.5B-Instruct --steps 100

Without --model, it trains a tiny model, which first imitates the expert's episodes.
Needs: pip install "agentgym-envs[textcraft]" agentgym-trainer
"""

import argparse
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from agentgym_envs import Bare, make, text_env
from transformers import AutoModelForCausalLM, AutoTokenizer

from tiny_model import tiny_model, tiny_tokenizer

OPTIONS = {"depth": (1, 1), "distractors": 0}
TURNS, NEW_TOKENS = 6, 48  # limits of an episode and of a reply
TASKS, GROUP_SIZE = 4, 8  # tasks per step, and episodes per task
CLIP, LR, MINIBATCHES = 0.2, 1e-5, 2
FEW = 8  # number of tasks that a tiny model can learn


@dataclass
class Trajectory:
    """The prompt and completion tokens of an episode, and its reward."""

    ids: list[int]
    loss_mask: list[bool]
    """True for completion tokens, which the model sampled."""
    reward: float = 0.0


# Rollouts: alternate replies of the policy and observations of the environment until the episode ends.


def play(env: Any, task: str, policy: Callable[[list[int]], list[int]], tokenizer: Any) -> Trajectory:
    """Play one episode. Sampled ids are kept, since decoding and re-encoding could change them."""
    observation, _ = env.reset(options={"task": task})
    messages = [{"role": "system", "content": env.instructions}, {"role": "user", "content": observation}]
    text = render(tokenizer, messages)
    prompt = tokenizer(text, add_special_tokens=False).input_ids
    made = Trajectory(prompt, [False] * len(prompt))
    for turn in range(TURNS):
        if turn:
            between = tokenizer(text_between(tokenizer, messages), add_special_tokens=False).input_ids
            made.ids += between
            made.loss_mask += [False] * len(between)
        reply = policy(made.ids)
        made.ids += reply
        made.loss_mask += [True] * len(reply)
        if reply[-1] != tokenizer.eos_token_id:
            break  # cut off by the token limit: the action isn't taken
        content = tokenizer.decode(reply, skip_special_tokens=True)
        observation, reward, terminated, truncated, _ = env.step(content)
        made.reward += reward
        if terminated or truncated:
            break
        messages += [{"role": "assistant", "content": content}, {"role": "user", "content": observation}]
    return made


def render(tokenizer: Any, messages: list[dict[str, str]], prompt: bool = True) -> str:
    """Render a conversation in the model's chat template; with `prompt`, add the start of the next reply."""
    return tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=prompt)


def text_between(tokenizer: Any, messages: list[dict[str, str]]) -> str:
    """Return the template's text between the last reply and the next: the rest of that turn, and the observation."""
    replied = render(tokenizer, messages[:-1], prompt=False)
    _, end, rest = replied.rpartition(tokenizer.eos_token)  # the reply includes the sampled end token
    if not end:
        raise ValueError("The chat template doesn't end replies with the tokenizer's end token.")
    return rest + render(tokenizer, messages)[len(replied) :]


@torch.no_grad()
def sample(model: Any, tokenizer: Any, ids: list[int]) -> list[int]:
    """Sample the token ids of a reply, including the end token."""
    prompt = torch.tensor([ids], device=model.device)
    settings = {"do_sample": True, "temperature": 1.0, "top_k": 0, "top_p": 1.0, "max_new_tokens": NEW_TOKENS}
    settings |= {"attention_mask": torch.ones_like(prompt), "pad_token_id": tokenizer.pad_token_id}
    out = model.generate(prompt, **settings)
    return out[0, len(ids) :].tolist()


# Training: advantages relative to the group, and the clipped loss over completion tokens.


def logprobs(model: Any, made: Trajectory) -> torch.Tensor:
    """Return the log-probability of each completion token."""
    ids = torch.tensor(made.ids, device=model.device)
    predicted = model(ids[None, :-1]).logits[0].float().log_softmax(-1)
    of_next = predicted.gather(-1, ids[1:, None])[:, 0]
    return of_next[torch.tensor(made.loss_mask[1:], device=model.device)]


def group_advantages(rewards: list[float]) -> torch.Tensor:
    """Return (R - mean) / standard deviation over the episodes of a task."""
    reward = torch.tensor(rewards)
    return (reward - reward.mean()) / reward.std()


def grpo_loss(logprob: torch.Tensor, old: torch.Tensor, advantage: torch.Tensor) -> torch.Tensor:
    """Return the clipped surrogate loss of each token (PPO, arXiv 1707.06347, eq. 7)."""
    ratio = (logprob - old).exp()
    return -torch.minimum(ratio * advantage, ratio.clamp(1 - CLIP, 1 + CLIP) * advantage)


def minibatch_loss(model: Any, batch: list[tuple[Trajectory, torch.Tensor, torch.Tensor]]) -> torch.Tensor:
    """Return the mean over all completion tokens of the mini-batch, as in DAPO (GRPO averages over episodes)."""
    losses = [grpo_loss(logprobs(model, made), old, advantage) for made, advantage, old in batch]
    return torch.cat(losses).mean()


def step(env: Any, tasks: list[str], model: Any, tokenizer: Any, optimizer: torch.optim.Optimizer) -> dict[str, float]:
    """Take one training step: rollouts, advantages, and an optimizer step per mini-batch."""
    model.eval()
    policy = partial(sample, model, tokenizer)
    groups = [[play(env, task, policy, tokenizer) for _ in range(GROUP_SIZE)] for task in tasks]
    batch = []
    for group in groups:
        rewards = [made.reward for made in group]
        if max(rewards) > min(rewards):  # a group without variance has no advantages
            batch += list(zip(group, group_advantages(rewards), strict=True))
    with torch.no_grad():
        batch = [(made, advantage, logprobs(model, made)) for made, advantage in batch]
    order = torch.randperm(len(batch)).tolist()
    for part in range(MINIBATCHES if batch else 0):
        loss = minibatch_loss(model, [batch[i] for i in order[part::MINIBATCHES]])
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
    played = [made for group in groups for made in group]
    success = sum(made.reward == 1 for made in played) / len(played)
    return {"success": success, "trained": len(batch), "tokens": sum(sum(made.loss_mask) for made in played)}


def main(steps: int = 2, model_name: str | None = None, seed: int = 0) -> list[dict[str, float]]:
    """Train, and print a line for each step."""
    torch.manual_seed(seed)
    env = Bare(make("agentgym/TextCraft-v0", **OPTIONS))
    if model_name:
        model, tokenizer = AutoModelForCausalLM.from_pretrained(model_name), AutoTokenizer.from_pretrained(model_name)
    else:
        model, tokenizer = warm_start(env)
    optimizer = torch.optim.AdamW(model.parameters(), lr=LR if model_name else 1e-3)
    tasks = text_env(env).tasks.train.ids[: None if model_name else FEW]
    lines = []
    for number in range(steps):
        chosen = [tasks[i] for i in torch.randperm(len(tasks))[:TASKS].tolist()]
        lines.append(step(env, chosen, model, tokenizer, optimizer))
        print(f"step {number + 1}:", ", ".join(f"{name} {value:.3g}" for name, value in lines[-1].items()))
    return lines


def warm_start(env: Any, episodes: int = 200) -> tuple[Any, Any]:
    """Return a tiny model that has imitated the environment's expert, so that some of its episodes succeed."""
    tasks, texts = text_env(env).tasks.train.ids[:FEW], [env.instructions] * 9
    for task in tasks:
        texts += [env.reset(options={"task": task})[0], text_env(env).oracle()]
    tokenizer = tiny_tokenizer(texts)
    model = tiny_model(tokenizer)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)

    def expert(_: list[int]) -> list[int]:
        return [*tokenizer(text_env(env).oracle(), add_special_tokens=False).input_ids, tokenizer.eos_token_id]

    for number in range(episodes):
        shown = play(env, tasks[number % len(tasks)], expert, tokenizer)
        (-logprobs(model, shown).mean()).backward()
        optimizer.step()
        optimizer.zero_grad()
    return model, tokenizer


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", help="name or path of a Hugging Face model; without, a tiny one is made")
    parser.add_argument("--steps", type=int, default=2)
    asked = parser.parse_args()
    main(asked.steps, asked.model)
