"""A taskset and an environment as users of verifiers write them: the agent guesses a number in turns."""

from __future__ import annotations

from collections.abc import Iterator

import verifiers.v1 as vf

__all__ = ["GuessingEnv", "GuessingTaskset"]


class GuessingData(vf.TaskData):
    number: int


class GuessingTask(vf.Task[GuessingData]):
    @vf.reward(weight=1.0)
    async def guessed(self, trace: vf.Trace) -> float:
        if trace.last_reply == "break":
            raise OSError("the judge broke")
        return float(trace.last_reply == str(self.data.number))


class GuessingConfig(vf.TasksetConfig):
    limit: int = 20


class GuessingTaskset(vf.Taskset[GuessingTask, GuessingConfig]):
    def load(self) -> Iterator[GuessingTask]:
        for number in range(1, self.config.limit + 1):
            prompt = f"Guess a number from 1 to {self.config.limit}."
            data = GuessingData(
                name=f"guess {number}", prompt=prompt, system_prompt="Reply with a number.", number=number
            )
            yield GuessingTask(data, self.config.task)


class GuessingEnvConfig(vf.EnvConfig):
    player: vf.AgentConfig = vf.AgentConfig()
    silent: int = 0


class GuessingEnv(vf.Env[GuessingEnvConfig]):
    async def run(self, task: GuessingTask, agents: vf.Agents) -> None:
        number = task.data.number
        async with agents.player.interaction(task) as interaction:
            if number == self.config.silent:
                return
            segment = await interaction.turn()
            while not segment.terminated and segment.last_reply.isdigit() and int(segment.last_reply) != number:
                segment = await interaction.turn("higher" if int(segment.last_reply) < number else "lower")
