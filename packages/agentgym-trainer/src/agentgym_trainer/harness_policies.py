"""The models of policies behind harnesses, for `evaluate --harness`, registered as an entry point
`agentgym.episode_players`.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from agentgym_envs import Episode, EpisodeSpec, Policy, ReplyWrapper, WorldSpec
from agentgym_eval.policies.endpoint.player import Endpoint
from agentgym_eval.policies.harness import EpisodePlayer, HarnessSettings, PlayerFactory
from agentgym_eval.util.errors import RunStopped, UsageError

from agentgym_trainer.engines.base import EngineGone
from agentgym_trainer.gateway.endpoints import EndpointReplier
from agentgym_trainer.gateway.recording import EpisodeLimits
from agentgym_trainer.gateway.replies import Replier
from agentgym_trainer.gateway.sampling import EngineReplier
from agentgym_trainer.gateway.server import Gateway
from agentgym_trainer.rollout.harness_player import HarnessPlayer, RunHarness
from agentgym_trainer.rollout.play import named_harness
from agentgym_trainer.rollout.runner import EnginePolicy

_UNLIMITED = 1 << 62  # tokens of a context: an endpoint knows its own limit


def harness(settings: HarnessSettings) -> PlayerFactory:
    """Return what builds the player of a harness.

    Raises:
        UsageError: if there is no such harness.
    """
    run = named_harness(settings.harness, settings.harness_command)
    if run is None:
        raise UsageError("There is no harness in these settings: give --harness or --harness-command.")

    def build(policy: Policy, *, temperature: float, max_tokens: int) -> EpisodePlayer:
        context = _UNLIMITED
        if isinstance(policy, EnginePolicy):
            replier, context = EngineReplier(policy.engine, policy.chat), policy.budget.context
        elif isinstance(policy, Endpoint):
            replier = EndpointReplier(policy)
        else:
            raise UsageError(
                f"The policy {policy.name} has no model that the harness {settings.name} could call. Give --policy "
                "hf:PATH, vllm:PATH or openai:MODEL, or let a policy of your own derive from one of their classes."
            )
        limits = EpisodeLimits(temperature, max_tokens, context)
        return _GatewayPlayer(run, replier, policy.name, limits, settings.harness_timeout)

    return build


@dataclass(eq=False)
class _GatewayPlayer(EpisodePlayer):
    run: RunHarness
    replier: Replier
    model: str
    limits: EpisodeLimits
    timeout: float
    _gateway: Gateway | None = None
    _starting: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def play(self, env: ReplyWrapper, made: WorldSpec, spec: EpisodeSpec, horizon: int | None) -> Episode:
        """Play an episode; the gateway is started with the first one.

        Raises:
            RunStopped: if the engine can't be restarted, or the endpoint ends the run.
            Exception: whatever else the engine or the endpoint raises.
        """
        gateway = await self._started()
        player = HarnessPlayer(self.run, gateway, self.limits, timeout=self.timeout, slots=asyncio.Semaphore())
        try:
            return await player.play_task(env, made, spec, horizon)
        except EngineGone as error:
            raise RunStopped(str(error)) from error

    async def close(self) -> None:
        """Stop the gateway."""
        if self._gateway is not None:
            await self._gateway.close()

    async def _started(self) -> Gateway:
        async with self._starting:
            if self._gateway is None:
                gateway = Gateway(self.replier, model=self.model)
                await gateway.start()
                self._gateway = gateway
        return self._gateway
