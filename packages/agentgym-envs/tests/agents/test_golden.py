"""Tests of whole conversations against golden transcripts, one for each reply format and each habit.

Run this file with the parent folder on `PYTHONPATH` to rewrite `golden/`.
"""

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
from door_world import Door, registered_env
from recording_policy import RecordingPolicy

GOLDEN = Path(__file__).parent / "golden"
AGENTS = [
    *REPLY_FORMATS,
    *(f"react{habit}" for habit in ("+plan", "+plan:2", "+window:2", "+compact:60", "+reflect:2", "+retry")),
    "react+plan:2+window:2+reflect:3+retry:2",
    "function-call+plan+retry",
]
REPLIES = {
    "plan": ["Knock until it is enough, then open.", "Knock once more, then open."],
    "reflect": ["I did not count my knocks. From now on I will.", "Counting helps."],
    "summary": ["I knocked, and the door is still closed.", "I knocked again."],
}


class DoorWithFunctions(Door):
    """A door with a function for each action."""

    functions = (Function("knock", "Knock once.", ["knock"]), Function("open_door", "Open the door.", ["open"]))


class ScriptedPolicy(RecordingPolicy):
    """Opens the door too early in the first of several trials, and otherwise solves the task."""

    def __init__(self, agent: Agent) -> None:
        super().__init__(lambda context: "")
        self.opens_early = agent.scaffold.retry > 0
        self.count = dict.fromkeys(REPLIES, 0)

    async def reply(self, context: TurnContext) -> Reply:
        if context.kind != "act":
            self.opens_early &= context.kind != "reflect"
            self.count[context.kind] += 1
            return Reply(REPLIES[context.kind][(self.count[context.kind] - 1) % 2])
        enough = context.acts >= (1 if self.opens_early else 3)
        thought = "That should do." if enough else f"This is knock {context.acts + 1}."
        return Reply(context.env.get_wrapper_attr("format")("open" if enough else "knock", thought))


def transcript(agent: str) -> str:
    """Return a transcript of an episode: the new messages of each turn, or all of them if the conversation restarts."""
    return "\n".join(_lines(agent)) + "\n"


def _lines(spec: str) -> Iterator[str]:
    agent = Agent.parse(spec)
    with registered_env(DoorWithFunctions) as env:
        episode = play(agent.wrap(env), ScriptedPolicy(agent), EpisodeSpec("door/train/3"))
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
def test_conversation_matches_the_golden_transcript(agent: str) -> None:
    assert transcript(agent) == path(agent).read_text(encoding="utf-8")


def test_each_agent_has_exactly_one_transcript() -> None:
    assert sorted(GOLDEN.iterdir()) == sorted(map(path, AGENTS))


if __name__ == "__main__":
    for agent in AGENTS:
        path(agent).write_text(transcript(agent), encoding="utf-8")
