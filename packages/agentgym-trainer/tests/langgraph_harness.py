"""A harness as users of LangGraph write it: a graph of a model and its tools, with the environment as a tool."""

from __future__ import annotations

from typing import Any

from agentgym_envs import make, text_env
from agentgym_trainer.gateway.harness import HarnessTask, Outcome
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode, tools_condition


def play(task: HarnessTask, base_url: str, api_key: str) -> Outcome:
    """Play an episode of any text environment."""
    env = make(task.env, **task.options)
    observation, info = env.reset(seed=task.seed, options={"task": task.id})
    last: list[dict[str, Any]] = [info]

    @tool
    def act(action: str) -> str:
        """Take an action in the environment, and return what happens."""
        observation, _, _, _, info = env.step(action)
        last.append(info)
        return observation

    model = ChatOpenAI(model=task.model, base_url=base_url, api_key=api_key, max_retries=0).bind_tools([act])  # type: ignore[arg-type]
    graph = StateGraph(MessagesState)
    graph.add_node("agent", lambda state: {"messages": [model.invoke(state["messages"])]})
    graph.add_node("tools", ToolNode([act]))
    graph.add_edge(START, "agent")
    graph.add_conditional_edges("agent", tools_condition)
    graph.add_edge("tools", "agent")
    begin = [("system", text_env(env).instructions), ("user", observation)]
    graph.compile().invoke({"messages": begin}, {"recursion_limit": 200})
    env.close()
    return Outcome(last[-1]["score"], last[-1]["success"])
