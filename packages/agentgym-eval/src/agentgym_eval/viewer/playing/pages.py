"""The pages of playing by hand. Every move is a form that is posted, and the answer leads back to the game's page, so
they work without JavaScript too; with it, the page changes in place and follows a policy that goes on.
"""

from __future__ import annotations

import shlex
from collections.abc import Awaitable, Callable
from typing import Any
from urllib.parse import parse_qsl

from agentgym_envs import WORLDS, EnvFault
from agentgym_envs.agents.formats import REPLY_FORMATS
from agentgym_envs.core.tasks import SPLITS
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.routing import BaseRoute, Route

from agentgym_eval.runs.settings import PlaySettings, short_name
from agentgym_eval.util.errors import UsageError, did_you_mean
from agentgym_eval.viewer.index.index import NotFound
from agentgym_eval.viewer.index.runs import HUMAN
from agentgym_eval.viewer.pages.reading import said
from agentgym_eval.viewer.pages.site import Site
from agentgym_eval.viewer.playing.session import Session
from agentgym_eval.viewer.playing.table import Table

_LONGEST = 200_000  # bytes of a form; the longest reply that a world takes is a third of it
_FIELDS_AT_MOST = 50

_Move = Callable[[Session, dict[str, str]], Awaitable[None]]


def play_routes(site: Site, table: Table | None, seen: str) -> list[BaseRoute]:
    """The routes.

    Args:
        site: Whose pages they are.
        table: The games; where there is none, a page that says why.
        seen: The header in which a page that polls says which version it shows.
    """

    async def start(request: Request) -> Response:
        return _start_page(site, table, dict(request.query_params))

    return [Route("/play", start), *(_game_routes(site, table, seen) if table else [])]


def _game_routes(site: Site, table: Table, seen: str) -> list[BaseRoute]:
    async def begin(request: Request) -> Response:
        given = await _form(request)
        try:
            key = await table.open(_settings(given))
        except (UsageError, EnvFault) as error:
            return _start_page(site, table, given, str(error))
        return RedirectResponse(site.links.game(key), 303)

    async def look(request: Request) -> Response:
        key = request.path_params["key"]
        state = _session(table, key).state
        if request.headers.get(seen) == str(state.version):
            return Response(status_code=204)
        return HTMLResponse(site.render("game.html", key=key, table=table, state=state, policies=_POLICIES, said=said))

    async def move(request: Request) -> Response:
        key, name = request.path_params["key"], request.path_params["move"]
        session = _session(table, key)
        if name not in (*_MOVES, "save"):
            raise NotFound(f"There is no move {name}.{did_you_mean(name, [*_MOVES, 'save'])}")
        given = await _form(request)
        try:
            await (table.save(key) if name == "save" else _MOVES[name](session, given))
        except UsageError as error:
            await session.note(str(error))
        return RedirectResponse(site.links.game(key), 303)

    return [
        Route("/play", begin, methods=["POST"]),
        Route("/play/{key}", look),
        Route("/play/{key}/{move}", move, methods=["POST"]),
    ]


_POLICIES = ("oracle", "random", "openai", "hf", "vllm", "scripted")


_FIELDS = ("env", "split", "task", "seed", "agent", "horizon", "options", "other")


def _start_page(site: Site, table: Table | None, given: dict[str, str], notice: str = "") -> Response:
    page = site.render(
        "play.html",
        table=table,
        given=dict.fromkeys(_FIELDS, "") | given,
        notice=notice,
        worlds={short_name(world.id): world.about for world in WORLDS},
        splits=SPLITS,
        forms=list(REPLY_FORMATS),
    )
    return HTMLResponse(page, 400 if notice else 200)


def _session(table: Table, key: str) -> Session:
    if key not in table.sessions:
        raise NotFound("This game is gone: the viewer was started anew since, or many others were played. Begin again.")
    return table.sessions[key]


async def _say(session: Session, given: dict[str, str]) -> None:
    await session.say(given.get("text", ""), given.get("thought", ""))


async def _go_on(session: Session, given: dict[str, str]) -> None:
    name, argument = given.get("policy", ""), given.get("argument", "").strip()
    spec = f"{name}:{argument}" if argument else name
    await session.go_on(spec, _number(given, "turns", None, least=1), _temperature(given))


async def _stop(session: Session, _: dict[str, str]) -> None:
    await session.stop()


async def _leave(session: Session, _: dict[str, str]) -> None:
    await session.leave()


_MOVES: dict[str, _Move] = {"say": _say, "go-on": _go_on, "stop": _stop, "leave": _leave}


def _settings(given: dict[str, str]) -> PlaySettings:
    """What a filled-in form asks for. Raises `UsageError`."""
    split, task = given.get("split") or "test", given.get("task", "").strip()
    if split not in SPLITS:
        raise UsageError(f"There is no split {split[:50]}; the splits are {', '.join(SPLITS)}.")
    try:
        options = tuple(shlex.split(given.get("options", "")))
    except ValueError as error:
        raise UsageError(f"The options can't be read ({error}); write KEY=VALUE, with spaces between.") from error
    chosen: dict[str, Any] = {
        "env": (given.get("other", "").strip() or given.get("env", "")),
        "split": split,
        "task": (task,) if task else (),
        "seed": _number(given, "seed", 0, least=0),
        "horizon": _number(given, "horizon", None, least=1),
        "agent": given.get("agent", "").strip() or None,
    }
    return PlaySettings(policy=HUMAN, options=options, **chosen)


def _number(given: dict[str, str], name: str, otherwise: int | None, *, least: int) -> int | None:
    written = given.get(name, "").strip()
    if not written:
        return otherwise
    if not written.isdecimal() or int(written) < least:
        raise UsageError(f"{name.capitalize()} is a whole number from {least}, not {written[:50]}.")
    return int(written)


def _temperature(given: dict[str, str]) -> float:
    written = given.get("temperature", "").strip() or "1"
    try:
        temperature = float(written)
    except ValueError:
        temperature = -1.0
    if not 0 <= temperature <= 10:
        raise UsageError(f"Temperature is a number from 0 to 10, not {written[:50]}.")
    return temperature


async def _form(request: Request) -> dict[str, str]:
    """The fields of a posted form."""
    body = b""
    async for chunk in request.stream():
        body += chunk
        if len(body) > _LONGEST:
            raise UsageError(f"What was posted is longer than {_LONGEST:,} bytes; write less.")
    try:
        return dict(parse_qsl(body.decode(errors="replace"), keep_blank_values=True, max_num_fields=_FIELDS_AT_MOST))
    except ValueError as error:
        raise UsageError(f"What was posted has more than {_FIELDS_AT_MOST} fields, which no form here has.") from error
