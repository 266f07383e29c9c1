"""Run many environments concurrently: `EnvPool` steps its slots in any order, in threads, processes or on servers."""

from agentgym_envs.pool.calls import Ask, Call, Reset, Result, Step, WorldSpec
from agentgym_envs.pool.pool import EnvPool, SlotBusy

__all__ = ["Ask", "Call", "EnvPool", "Reset", "Result", "SlotBusy", "Step", "WorldSpec"]
