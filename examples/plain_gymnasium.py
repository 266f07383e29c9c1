"""An environment with Gymnasium alone: a random policy over the available actions, and the expert.

Needs: pip install "agentgym-envs[babyai]"
"""

import gymnasium
import numpy as np


def play(env: gymnasium.Env, task: str, choose) -> float:
    """Play one episode with the actions that `choose` returns, and return its score."""
    observation, info = env.reset(seed=0, options={"task": task})
    score, over = 0.0, False
    while not over:
        observation, reward, terminated, truncated, info = env.step(choose(observation, info))
        score += reward
        over = terminated or truncated
    return score


def main(tasks: int = 20) -> dict[str, float]:
    """Play some test tasks with both policies, and return their mean scores."""
    env = gymnasium.make("agentgym_envs:agentgym/BabyAI-v0", levels="PickupLoc", max_episode_steps=10)
    draw = np.random.default_rng(0)
    policies = {
        "random": lambda observation, info: str(draw.choice(info["available_actions"])),
        "expert": lambda observation, info: env.unwrapped.oracle(),
    }
    ids = env.unwrapped.tasks.test.ids[:tasks]
    scores = {name: float(np.mean([play(env, task, policy) for task in ids])) for name, policy in policies.items()}
    env.close()
    return scores


if __name__ == "__main__":
    for name, score in main().items():
        print(f"{name:6} {score:.2f}")
