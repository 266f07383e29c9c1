"""Test that AgentGym's evaluation loop, between its environment server's protocol and the gateway, plays TextCraft."""

from __future__ import annotations

from pathlib import Path

import pytest
from agentgym_envs import make, text_env
from agentgym_envs.server.app import build_app
from agentgym_envs.server.settings import Settings
from agentgym_eval.policies.harness import HarnessSettings
from agentgym_eval.runs.run import open_run
from agentgym_eval.runs.settings import PlaySettings
from agentgym_trainer.policies import LocalModel
from agentgym_trainer.tokens.trajectory import trajectory
from chat_templates import make_chat
from coin_rollouts import RecordingEngine
from dev_packages import require_packages
from uvicorn_threads import served

require_packages("openai")
import agentgym_evaluation
from gateways import replying

pytestmark = pytest.mark.long
ENV = "agentgym/TextCraft-v0"
TASK = "textcraft/test/red_sandstone_stairs"


def expert_replies() -> list[str]:
    """Return the replies that solve the task, in the form that AgentGym's instructions ask for."""
    env, replies, done = make(ENV), list[str](), False
    env.reset(seed=0, options={"task": TASK})
    while not done:
        action = text_env(env).oracle()
        replies.append(f"Thought:\nThis is next.\n\nAction:\n{action}")
        done = env.step(action)[2]
    env.close()
    return replies


@pytest.mark.parametrize(("spoilt", "score"), [(False, 1.0), (True, 0.0)])
def test_agentgyms_loop_plays_textcraft_with_the_model_behind_the_gateway(
    spoilt: bool, score: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    chat, replies = make_chat("qwen2.5"), expert_replies()
    if spoilt:
        replies = ["Thought:\nI look.\n\nAction:\ninventory"] * agentgym_evaluation.MAX_ROUNDS
    engine = RecordingEngine(replying(chat, *replies))
    harness = HarnessSettings(harness="agentgym_evaluation:play")
    settings = PlaySettings(env=ENV, policy="hf:expert", task=(TASK,), harness=harness, max_tokens=512)
    policy = LocalModel(engine, chat, name="hf:expert", temperature=1.0, max_tokens=512)  # type: ignore[arg-type]
    with served(build_app(Settings())) as url, open_run(settings, tmp_path, lambda **_: policy) as run:
        monkeypatch.setattr(agentgym_evaluation, "SERVER", url)
        (episode,) = run.play()
    stop = "truncated" if spoilt else "terminated"
    assert (episode.stop, episode.score, episode.success, episode.error) == (stop, score, not spoilt, None)
    assert [turn.reply.text for turn in episode.turns] == replies
    # The conversation is only ever continued, so it is one segment, of exactly the sampled ids.
    (segment,) = trajectory(episode).segments
    sampled = [token for _, completion in engine.calls for token in completion.ids]
    assert [token for token, counts in zip(segment.ids, segment.loss_mask, strict=True) if counts] == sampled
