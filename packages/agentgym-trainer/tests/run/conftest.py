"""A minimal learner to save in checkpoints."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from accelerate import Accelerator
from agentgym_trainer.models.policy import PolicyModel, ValueHead, separate_critic
from peft import LoraConfig, get_peft_model
from transformers import get_scheduler


class TinyLearner:
    """A minimal learner with an accelerator and an actor, trained on random tokens."""

    def __init__(self, actor: PolicyModel) -> None:
        critic = list(actor.critic.parameters()) if actor.critic else []
        policy = [p for p in actor.policy.parameters() if p.requires_grad]
        groups = [{"params": policy, "lr": 1e-2}, {"params": critic, "lr": 3e-2}]
        optimizer = torch.optim.AdamW([group for group in groups if group["params"]])
        schedule = get_scheduler("cosine", optimizer, num_warmup_steps=2, num_training_steps=20)
        self.accelerator = Accelerator(cpu=True)
        self.actor, self.optimizer, self.schedule = self.accelerator.prepare(actor, optimizer, schedule)

    def update(self) -> float:
        """Take one step on random tokens from the global generator."""
        ids, position, before = torch.randint(3, 320, (12,)), torch.arange(12), torch.arange(11)
        scores = self.actor(ids, position, (12,), before, ids[1:])
        loss = -scores.logprobs_M.mean() + (0 if scores.values_M is None else (scores.values_M - 1).square().mean())
        self.accelerator.backward(loss)
        self.optimizer.step()
        self.schedule.step()
        self.optimizer.zero_grad()
        return loss.item()


@pytest.fixture
def make_learner(new_model: Callable[..., Any]) -> Callable[..., Any]:
    """A function that makes learners with equal initial weights; their random generators differ."""

    def make(kind: str = "plain") -> Any:
        model = new_model(3)
        critic = {"head": lambda: ValueHead(32), "separate": lambda: separate_critic(model)}.get(kind, lambda: None)()
        if kind == "lora":
            torch.manual_seed(5)
            model = get_peft_model(model, LoraConfig(r=2, target_modules=["q_proj", "v_proj"]))
        return TinyLearner(PolicyModel(model, critic=critic))

    return make
