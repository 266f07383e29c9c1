"""Whole conversations to read, one for each form of a reply and for each habit. They change only on purpose;
run this file with the folder above on `PYTHONPATH` to write `golden_transcripts` anew."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from agentgym_envs import Conversation, Episode, EpisodeSpec, Message, Reply, TurnContext, play
from agentgym_envs.agents.agent import Agent
from agentgym_envs.agents.formats import REPLY_FORMATS
from agentgym_envs.core.action_schema import Function
from agentgym_envs.episodes.conversation import replay
from door_world import Door, made
from recording_policy import Talker

GOLDEN = Path(__file__).parent / "golden"
AGENTS = [
    *REPLY_FORMATS,
    *(f"react{habit}" for habit in ("+plan", "+plan:2", "+window:2", "+reflect:2", "+retry")),
    "react+plan:2+window:2+reflect:3+retry:2",
    "function-call+plan+retry",
]
SAYS = {
    "plan": ["Knock until it is enough, then open.", "Knock once more, then open."],
    "reflect": ["I did not count my knocks. From now on I will.", "Counting helps."],
    "summary": ["I knocked, and the door is still closed.", "I knocked again."],
}


class FineDoor(Door):
    """With functions that say what a door is for."""

    functions = (Function("knock", "Knock once.", ["knock"]), Function("open_door", "Open the door.", ["open"]))


class Someone(Talker):
    """Opens too early in the first of several trials, and otherwise does what the door wants."""

    def __init__(self, agent: Agent) -> None:
        super().__init__(lambda seat: "")
        self.early = agent.scaffold.retry > 0
        self.asked = dict.fromkeys(SAYS, 0)

    async def reply(self, context: TurnContext) -> Reply:
        seat = context
        if seat.kind != "act":
            self.early &= seat.kind != "reflect"
            self.asked[seat.kind] += 1
            return Reply(SAYS[seat.kind][(self.asked[seat.kind] - 1) % 2])
        enough = seat.acts >= (1 if self.early else 3)
        thought = "That should do." if enough else f"This is knock {seat.acts + 1}."
        return Reply(seat.env.get_wrapper_attr("format")("open" if enough else "knock", thought))


def transcript(agent: str) -> str:
    """A game of this agent: what is new in each conversation, or all of it where it begins anew."""
    return "\n".join(_lines(agent)) + "\n"


def _lines(spec: str) -> Iterator[str]:
    agent = Agent.parse(spec)
    with made(FineDoor) as env:
        episode = play(agent.wrap(env), Someone(agent), EpisodeSpec("door/train/3"))
    yield f"=== {episode.agent}"
    for tool in episode.tools:
        yield f"\n[tool] {json.dumps(tool)}"
    before: Conversation = ()
    for conversation, turn in replay(episode):
        grows = conversation[: len(before)] == before
        yield from [] if grows else ["\n--- The conversation begins anew."]
        yield from (f"\n[{message.role}] {message.content}" for message in conversation[len(before) if grows else 0 :])
        yield f"\n[assistant: {turn.kind}] {turn.reply.text}" + (f"\n(reward {turn.reward})" if turn.reward else "")
        before = (*conversation, Message("assistant", turn.reply.text))
    yield f"\n[world] {episode.final_observation}\n\n{_outcome(episode)}"


def _outcome(episode: Episode) -> str:
    return f"=== {episode.stop}, score {episode.score}, {episode.acts} actions in {len(episode.turns)} turns"


def path(agent: str) -> Path:
    return GOLDEN / f"{agent.replace(':', '')}.txt"


@pytest.mark.parametrize("agent", AGENTS)
def test_the_golden_conversation(agent: str) -> None:
    assert transcript(agent) == path(agent).read_text(encoding="utf-8")


def test_there_is_one_for_each_agent_and_no_other() -> None:
    assert sorted(GOLDEN.iterdir()) == sorted(map(path, AGENTS))


if __name__ == "__main__":
    for agent in AGENTS:
        path(agent).write_text(transcript(agent), encoding="utf-8")
