"""A hypothesis strategy that draws lists of trajectories."""

from __future__ import annotations

from agentgym_trainer.tokens.trajectory import Segment, Trajectory
from hypothesis import strategies as st


@st.composite
def trajectories(draw: st.DrawFn, *, most: int = 5) -> list[Trajectory]:
    drawn: list[Trajectory] = []
    for _ in range(draw(st.integers(0, most))):
        turns = draw(st.integers(1, 4))
        segments: list[Segment] = []
        for _ in range(draw(st.integers(1, 2))):
            # The first token of a segment is a prompt token.
            loss_mask = [False, *draw(st.lists(st.booleans(), max_size=9))]
            completion_turns = iter(sorted(draw(st.integers(0, turns - 1)) for _ in loss_mask))
            segments.append(
                Segment(
                    ids=tuple(draw(st.integers(1, 99)) for _ in loss_mask),
                    loss_mask=tuple(loss_mask),
                    logprobs=tuple(-draw(st.integers(0, 9)) * 0.5 if sampled else 0.0 for sampled in loss_mask),
                    turns=tuple(next(completion_turns) if sampled else -1 for sampled in loss_mask),
                )
            )
        rewards = tuple(draw(st.integers(0, 8)) / 8 for _ in range(turns))
        states = tuple(draw(st.sampled_from("xyz")) for _ in range(turns))
        observations = tuple(
            (draw(st.sampled_from(["act", "plan"])), draw(st.sampled_from("xy"))) for _ in range(turns)
        )
        group, in_loss = draw(st.sampled_from("abc")), draw(st.booleans())
        drawn.append(Trajectory(tuple(segments), rewards, states, observations, group, in_loss))
    return drawn
