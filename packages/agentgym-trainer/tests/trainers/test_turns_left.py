"""An agent that is told how many actions are left is trained as it is evaluated and as experts show it."""

from __future__ import annotations

from agentgym_envs import Episode, read_episodes
from agentgym_trainer.config import WorldConfig
from agentgym_trainer.curriculum.horizon import FixedHorizon
from agentgym_trainer.tokens.encode import encode
from agentgym_trainer.trainers.rl_loop import RLLoop
from coin_loops import Build, coins, collect, initial_state, random_guesses
from coin_world import ENV

AGENT = "bare+turns_left"


def tells(loop: RLLoop, episode: Episode, horizon: int) -> None:
    """What it is told stands in the record and in what the model reads."""
    assert episode.agent == AGENT
    counts = [f"Turns left: {horizon - k}." for k in range(len(episode.turns))]
    assert [turn.observation.rpartition("\n")[2] for turn in episode.turns] == counts
    # Read again from its record, the episode is the very tokens that were sampled.
    for turn, again, count in zip(episode.turns, encode(loop.chat, episode).turns, counts, strict=True):
        assert turn.reply.sample is not None
        assert again.reply.sample is not None
        assert turn.reply.sample.prompt == again.reply.sample.prompt
        assert count in loop.chat.tokenizer.decode(turn.reply.sample.prompt)


def test_training_and_its_evaluation_tell_the_agent(build: Build) -> None:
    loop = build(coins(world=WorldConfig(ENV, agent=AGENT), horizon=FixedHorizon(2)), random_guesses())
    for group in collect(loop, initial_state(loop)).own:
        for episode in group.episodes:
            tells(loop, episode, 2)
    loop.evaluate(0)
    for episode in read_episodes(loop.folder.evaluations / "step-000000-greedy.jsonl"):
        tells(loop, episode, 2)
