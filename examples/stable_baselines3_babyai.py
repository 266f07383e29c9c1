"""PPO of Stable-Baselines3 with a small network, instead of a language model, on a BabyAI level.

Needs: pip install "agentgym-envs[babyai]" stable-baselines3
Takes: about a minute on two CPU cores.
"""

import gymnasium
from agentgym_envs.adapters.numeric import BagOfWords, DiscreteActions, survey
from stable_baselines3 import PPO
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.evaluation import evaluate_policy


def world() -> gymnasium.Env:
    """Make the environment: go to the red ball among grey objects in at most four actions."""
    options = {"levels": "GoToRedBallGrey", "available_actions_in_text": False}
    return gymnasium.make("agentgym_envs:agentgym/BabyAI-v0", max_episode_steps=4, **options)


def main(steps: int = 16_384, episodes: int = 100) -> tuple[float, float]:
    """Train, and return the success rates before and after; actions are sampled."""
    spaces = survey(world())

    def numbers() -> gymnasium.Env:
        return BagOfWords(DiscreteActions(world(), spaces.actions), spaces.words)

    envs, others = make_vec_env(numbers, n_envs=8, seed=0), make_vec_env(numbers, seed=1)
    agent = PPO(
        "MlpPolicy", envs, n_steps=64, batch_size=128, learning_rate=1e-3, gamma=0.9, ent_coef=0.01, seed=0,
        device="cpu",
    )  # fmt: skip
    before, _ = evaluate_policy(agent, others, episodes, deterministic=False)
    agent.learn(steps)
    after, _ = evaluate_policy(agent, others, episodes, deterministic=False)
    return float(before), float(after)


if __name__ == "__main__":
    before, after = main()
    print(f"success before {before:.2f}, after {after:.2f}")
