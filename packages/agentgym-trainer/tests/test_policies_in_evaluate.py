"""Test of a local model in `evaluate` whose engine fails."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from agentgym_envs import Policy
from agentgym_eval.runs.run import open_run
from agentgym_eval.runs.settings import PlaySettings
from agentgym_eval.util.errors import RunStopped
from agentgym_trainer.engines.base import Completion, EngineGone, SamplingParams
from agentgym_trainer.engines.scripted import ScriptedEngine
from agentgym_trainer.policies import LocalModel
from agentgym_trainer.tokens.chat import Chat
from chat_templates import make_chat
from coin_world import ENV


class FailingEngine(ScriptedEngine):
    """An engine that fails after a number of replies and records whether it was closed."""

    def __init__(self, chat: Chat, replies: int) -> None:
        super().__init__(lambda _: chat.reply_ids("heads"), end_id=chat.end_id)
        self.left = replies
        self.closed = False

    async def generate(self, ids: Any, sampling: SamplingParams) -> Completion:
        self.left -= 1
        if self.left < 0:
            raise EngineGone("The engine died again.")
        return await super().generate(ids, sampling)

    async def close(self) -> None:
        self.closed = True
        await super().close()


def test_engine_failure_ends_the_run_and_keeps_finished_episodes(tmp_path: Path) -> None:
    chat = make_chat("chatml")
    engines: list[FailingEngine] = []

    def make_policy(**_: Any) -> Policy:
        engines.append(FailingEngine(chat, 12))
        return LocalModel(engines[-1], chat, name="hf:mine", temperature=1.0, max_tokens=8)

    settings = PlaySettings(env=ENV, policy="hf:mine", samples=4, slots=1, horizon=3, agent="bare")
    with open_run(settings, tmp_path, make_policy) as run:
        with pytest.raises(RunStopped, match=r"The engine died again\."):
            list(run.play())
        finished = len(run.episodes)
    with open_run(settings, tmp_path, make_policy) as run:
        assert len(run.episodes) == finished
        with pytest.raises(RunStopped):
            list(run.play())
        assert len(run.episodes) > finished >= 4
    assert [engine.closed for engine in engines] == [True, True]
