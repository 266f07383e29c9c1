"""Tests that observations with the number of turns left are the same in training, evaluation and encoding."""

from __future__ import annotations

from agentgym_envs import Episode, read_episodes
from agentgym_trainer.config import WorldConfig
from agentgym_trainer.curriculum.horizon import FixedHorizon
from agentgym_trainer.tokens.encode import encode
from agentgym_trainer.trainers.rl_loop import RLLoop
from coin_loops import Build, collect_rollouts, initial_state, loop_config, random_guesses
from coin_world import ENV

AGENT = "bare+turns_left"


def assert_turns_left(loop: RLLoop, episode: Episode, horizon: int) -> None:
    """Assert that the numbers of turns left are in the record and in the prompts."""
    assert episode.agent == AGENT
    counts = [f"Turns left: {horizon - k}." for k in range(len(episode.turns))]
    assert [turn.observation.rpartition("\n")[2] for turn in episode.turns] == counts
    # Encoding the recorded episode gives the tokens of the rollout.
    for turn, encoded, count in zip(episode.turns, encode(loop.chat, episode).turns, counts, strict=True):
        assert turn.reply.sample is not None
        assert encoded.reply.sample is not None
        assert turn.reply.sample.prompt == encoded.reply.sample.prompt
        assert count in loop.chat.tokenizer.decode(turn.reply.sample.prompt)


def test_training_and_evaluation_show_the_turns_left(build: Build) -> None:
    loop = build(loop_config(world=WorldConfig(ENV, agent=AGENT), horizon=FixedHorizon(2)), random_guesses())
    for group in collect_rollouts(loop, initial_state(loop)).own:
        for episode in group.episodes:
            assert_turns_left(loop, episode, 2)
    loop.evaluate(0)
    for episode in read_episodes(loop.folder.evaluations / "step-000000-greedy.jsonl"):
        assert_turns_left(loop, episode, 2)
