"""A taskset as users of verifiers write it, whose answer takes a tool."""

from __future__ import annotations

import verifiers.v1 as vf

__all__ = ["StockTaskset"]

STOCK = {"nails": 40, "screws": 7}


class StockTools(vf.Toolset[vf.ToolsetConfig]):
    TOOL_PREFIX = "store"

    @vf.tool
    def count(self, item: str) -> str:
        """Count an item in stock."""
        return str(STOCK.get(item, "unknown item"))


class StockData(vf.TaskData):
    item: str


class StockTaskConfig(vf.TaskConfig):
    tools: vf.ToolsetConfig = vf.ToolsetConfig()


class StockTask(vf.Task[StockData, vf.State, StockTaskConfig]):
    @classmethod
    def toolsets(cls, config: StockTaskConfig) -> list[vf.Toolset]:
        return [StockTools(config.tools)]

    @vf.reward
    async def right(self, trace: vf.Trace) -> float:
        return 2.0 * (str(STOCK[self.data.item]) in (trace.last_reply or ""))


class StockConfig(vf.TasksetConfig):
    task: StockTaskConfig = StockTaskConfig()


class StockTaskset(vf.Taskset[StockTask, StockConfig]):
    def load(self) -> list[StockTask]:
        return [
            StockTask(StockData(prompt=f"How many {item} are there?", item=item), self.config.task) for item in STOCK
        ]


if __name__ == "__main__":
    StockTools.run()
