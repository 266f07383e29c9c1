"""Transcripts of episodes, for the golden tests of environments."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from agentgym_envs.core.registry import make, text_env


def transcript(world: str, games: Mapping[str, Sequence[str]]) -> str:
    """Return the instructions of `world` and a transcript of an episode of each task in `games`.

    An episode has the oracle's plan, the given actions, and then the oracle's thoughts and actions to the end.
    """
    return "\n".join(_lines(world, games)) + "\n"


def _lines(world: str, games: Mapping[str, Sequence[str]]) -> Iterator[str]:
    env = make(world)
    expert = text_env(env)
    yield expert.instructions
    for task, actions in games.items():
        observation, _ = env.reset(seed=0, options={"task": task})
        yield f"\n=== {task}\n\n{observation}\n"
        yield from (f"# {line}" for line in expert.oracle_plan().splitlines())
        script = iter(actions)
        over = False
        while not over:
            action = next(script, None)
            thought = "" if action else f"# {expert.oracle_thought()}\n"
            action = action or expert.oracle()
            observation, reward, terminated, truncated, info = env.step(action)
            over = terminated or truncated
            marks = [f"reward {reward}"] * bool(reward) + ["end"] * terminated + ["limit"] * truncated
            marks += ["invalid"] * (not info["valid"])
            yield f"\n{thought}> {action}\n{observation}" + (f"\n({', '.join(marks)})" if marks else "")
    env.close()
