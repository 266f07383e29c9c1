"""An environment in SkyRL-gym's interface, as SkyRL's generator plays it.

Needs: pip install "agentgym-envs[textcraft]" skyrl-gym
"""

import skyrl_gym
from agentgym_envs import make, text_env

skyrl_gym.register(id="agentgym", entry_point="agentgym_envs.adapters.skyrl:SkyRLWorld")


def main(task: str = "textcraft/test/red_sandstone_stairs") -> dict[str, float]:
    """Play a task with the expert's replies, and return the metrics that SkyRL logs."""
    row = {"env_class": "agentgym", "world": "textcraft", "task": task, "max_turns": 20}
    env = skyrl_gym.make(row["env_class"], extras=row)
    conversation, _ = env.init([])

    expert = text_env(make("agentgym/TextCraft-v0"))  # replaces the language model
    expert.reset(options={"task": task})
    done = False
    while not done:
        action = expert.oracle()
        expert.step(action)
        reply = f"Thought: {task}\nAction: {action}"
        step = env.step(reply)
        done = step["done"]
        conversation += [{"role": "assistant", "content": reply}, *step["observations"]]
    env.close()
    return env.get_metrics()


if __name__ == "__main__":
    print(main())
