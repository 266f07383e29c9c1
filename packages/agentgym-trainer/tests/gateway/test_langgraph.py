"""Test that an agent of LangGraph, on LangChain's unmodified client of OpenAI, plays TextCraft through the gateway.

`uv run --with langgraph --with langchain-openai pytest -m long -k langgraph`
"""

from __future__ import annotations

import json
from importlib.util import find_spec
from pathlib import Path

import pytest
from agentgym_envs import make, text_env
from agentgym_eval.policies.harness import HarnessSettings
from agentgym_eval.runs.run import open_run
from agentgym_eval.runs.settings import PlaySettings
from agentgym_trainer.policies import LocalModel
from agentgym_trainer.tokens.trajectory import trajectory
from chat_templates import make_chat
from coin_rollouts import RecordingEngine

if find_spec("langgraph") is None or find_spec("langchain_openai") is None:
    pytest.skip(
        "langgraph is missing: uv run --with langgraph --with langchain-openai pytest -m long -k langgraph",
        allow_module_level=True,
    )
from gateways import replying

pytestmark = pytest.mark.long
ENV = "agentgym/TextCraft-v0"
TASK = "textcraft/test/red_sandstone_stairs"


def expert_replies() -> list[str]:
    """Return the calls that solve the task, as Qwen's models write them, and the words that end the graph."""
    env, replies, done = make(ENV), list[str](), False
    env.reset(seed=0, options={"task": TASK})
    while not done:
        action = text_env(env).oracle()
        call = json.dumps({"name": "act", "arguments": {"action": action}})
        replies.append(f"<tool_call>\n{call}\n</tool_call>")
        _, _, terminated, truncated, info = env.step(action)
        done = terminated or truncated
    env.close()
    assert info["success"]
    assert len(replies) > 2
    return [*replies, "The stairs are crafted."]


def test_langgraph_plays_textcraft_in_one_segment_of_the_sampled_ids(tmp_path: Path) -> None:
    chat, replies = make_chat("qwen2.5"), expert_replies()
    engine = RecordingEngine(replying(chat, *replies))
    harness = HarnessSettings(harness="langgraph_harness:play")
    settings = PlaySettings(env=ENV, policy="hf:expert", task=(TASK,), harness=harness, max_tokens=512)
    policy = LocalModel(engine, chat, name="hf:expert", temperature=1.0, max_tokens=512)  # type: ignore[arg-type]
    with open_run(settings, tmp_path, lambda **_: policy) as run:
        (episode,) = run.play()
    assert (episode.stop, episode.score, episode.success, episode.error) == ("terminated", 1.0, True, None)
    assert [turn.reply.text for turn in episode.turns] == replies
    assert {tool["function"]["name"] for tool in episode.tools} == {"act"}
    (segment,) = trajectory(episode).segments
    context, completion = engine.calls[-1]
    assert segment.ids == (*context, *completion.ids)
    sampled = [token for _, completion in engine.calls for token in completion.ids]
    assert [token for token, counts in zip(segment.ids, segment.loss_mask, strict=True) if counts] == sampled
