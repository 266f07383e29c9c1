"""Games to read, for the tests of worlds that keep a transcript of some: how one is played and written down."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from agentgym_envs.registry import make, text_env


def transcript(world: str, games: Mapping[str, Sequence[str]]) -> str:
    """What `world` tells an agent, and each of `games`: the actions given, and then the oracle's to the end."""
    return "\n".join(_lines(world, games)) + "\n"


def _lines(world: str, games: Mapping[str, Sequence[str]]) -> Iterator[str]:
    env = make(world)
    yield text_env(env).instructions
    for task, actions in games.items():
        observation, _ = env.reset(seed=0, options={"task": task})
        yield f"\n=== {task}\n\n{observation}"
        script = iter(actions)
        over = False
        while not over:
            action = next(script, None) or text_env(env).oracle()
            observation, reward, terminated, truncated, info = env.step(action)
            over = terminated or truncated
            marks = [f"reward {reward}"] * bool(reward) + ["end"] * terminated + ["limit"] * truncated
            marks += ["invalid"] * (not info["valid"])
            yield f"\n> {action}\n{observation}" + (f"\n({', '.join(marks)})" if marks else "")
    env.close()
