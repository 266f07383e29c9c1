"""An OpenEnv server for an environment, and an OpenEnv client that plays on it.

Needs: pip install "agentgym-envs[textcraft,serve]" openenv-core
"""

import asyncio
import threading
import time
from collections.abc import Generator
from contextlib import contextmanager

import uvicorn
from agentgym_envs.adapters.openenv import openenv_app
from openenv.core.generic_client import GenericEnvClient


@contextmanager
def serving(world: str, **options: object) -> Generator[str]:
    """Serve `world` in a thread, and yield the address. A standalone server is `uvicorn.run(openenv_app(world))`."""
    # OpenEnv's server logs an error for each client that disconnects.
    server = uvicorn.Server(uvicorn.Config(openenv_app(world, **options), port=0, log_level="critical"))
    thread = threading.Thread(target=server.run)
    thread.start()
    while not server.started and thread.is_alive():
        time.sleep(0.01)
    host, port = server.servers[0].sockets[0].getsockname()
    yield f"http://{host}:{port}"
    server.should_exit = True
    thread.join()


async def play(url: str) -> float:
    """Play an episode on the server at `url`, and return its score."""
    score = 0.0
    async with GenericEnvClient(url) as env:
        result = await env.reset(task="textcraft/test/red_sandstone_stairs")
        for action in (
            "get 24 red sand",
            "craft 6 red sandstone using 24 red sand",
            "craft 4 red sandstone stairs using 6 red sandstone",
        ):
            assert not result.done
            result = await env.step({"text": action})
            score += result.reward or 0.0
    return score


def main() -> float:
    """Serve TextCraft and play on it."""
    with serving("textcraft") as url:
        return asyncio.run(play(url))


if __name__ == "__main__":
    print(f"score {main():.2f}")
