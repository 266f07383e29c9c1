"""Test that an agent of smolagents, on its unmodified class for OpenAI's API, plays TextCraft through the gateway."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from agentgym_envs import Policy, make, text_env
from agentgym_envs.core.action_schema import Call
from agentgym_eval.policies.harness import HarnessSettings
from agentgym_eval.runs.run import open_run
from agentgym_eval.runs.settings import PlaySettings
from agentgym_trainer.policies import LocalModel
from agentgym_trainer.tokens.chat import Chat
from agentgym_trainer.tokens.trajectory import trajectory
from chat_templates import make_chat
from coin_rollouts import RecordingEngine
from dev_packages import require_packages

require_packages("openai", "smolagents")
from gateways import replying

pytestmark = pytest.mark.long
ENV = "agentgym/TextCraft-v0"
TASK = "textcraft/test/red_sandstone_stairs"


def expert_replies() -> list[str]:
    """Return the calls that solve the task, as Qwen's models write them, and the one that ends smolagents' episode."""
    env, calls, done = make(ENV), list[Call](), False
    env.reset(seed=0, options={"task": TASK})
    while not done:
        action = text_env(env).oracle()
        calls.append(Call("act", {"action": action}))
        _, _, terminated, truncated, info = env.step(action)
        done = terminated or truncated
    env.close()
    assert info["success"]
    assert len(calls) > 2
    calls.append(Call("final_answer", {"answer": "crafted"}))
    return [f'<tool_call>\n{{"name": "{c.name}", "arguments": {_json(c)}}}\n</tool_call>' for c in calls]


def _json(call: Call) -> str:
    return call.to_json().partition('"arguments": ')[2][:-1]


def make_policy(chat: Chat, engine: Any) -> Policy:
    return LocalModel(engine, chat, name="hf:expert", temperature=1.0, max_tokens=512)


def test_smolagents_plays_textcraft_to_its_end(tmp_path: Path) -> None:
    chat, replies = make_chat("qwen2.5"), expert_replies()
    engine = RecordingEngine(replying(chat, *replies))
    harness = HarnessSettings(harness="smolagents_harness:play")
    settings = PlaySettings(env=ENV, policy="hf:expert", task=(TASK,), harness=harness, max_tokens=512)
    with open_run(settings, tmp_path, lambda **_: make_policy(chat, engine)) as run:
        (episode,) = run.play()
    assert (episode.stop, episode.score, episode.success, episode.error) == ("terminated", 1.0, True, None)
    assert [turn.reply.text for turn in episode.turns] == replies
    assert {tool["function"]["name"] for tool in episode.tools} == {"act", "final_answer"}
    found = trajectory(episode)
    # It sends its calls back in words of its own, so each request begins a segment: of exactly the sampled ids.
    assert [segment.ids for segment in found.segments] == [
        (*context, *completion.ids) for context, completion in engine.calls
    ]
    for segment, (context, completion) in zip(found.segments, engine.calls, strict=True):
        assert tuple(segment.loss_mask) == (False,) * len(context) + (True,) * len(completion.ids)
    assert found.segments[-1].ids != found.segments[0].ids
