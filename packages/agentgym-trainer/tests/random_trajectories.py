"""A hypothesis strategy that draws lists of trajectories."""

from __future__ import annotations

from agentgym_trainer.tokens.trajectory import Segment, Trajectory
from hypothesis import strategies as st


@st.composite
def trajectories(draw: st.DrawFn, *, most: int = 5) -> list[Trajectory]:
    made: list[Trajectory] = []
    for _ in range(draw(st.integers(0, most))):
        turns = draw(st.integers(1, 4))
        segments: list[Segment] = []
        for _ in range(draw(st.integers(1, 2))):
            # A segment begins with what was seen.
            said = [False, *draw(st.lists(st.booleans(), max_size=9))]
            spoken_in = iter(sorted(draw(st.integers(0, turns - 1)) for _ in said))
            segments.append(
                Segment(
                    ids=tuple(draw(st.integers(1, 99)) for _ in said),
                    loss_mask=tuple(said),
                    logprobs=tuple(-draw(st.integers(0, 9)) * 0.5 if yes else 0.0 for yes in said),
                    turns=tuple(next(spoken_in) if yes else -1 for yes in said),
                )
            )
        rewards = tuple(draw(st.integers(0, 8)) / 8 for _ in range(turns))
        states = tuple(draw(st.sampled_from("xyz")) for _ in range(turns))
        seen = tuple((draw(st.sampled_from(["act", "plan"])), draw(st.sampled_from("xy"))) for _ in range(turns))
        group, in_loss = draw(st.sampled_from("abc")), draw(st.booleans())
        made.append(Trajectory(tuple(segments), rewards, states, seen, group, in_loss))
    return made
