"""The routes and pages of interactive play.

Every move is a posted form whose response redirects to the game's page, so the pages work without JavaScript. With
JavaScript, the page is updated in place and follows a policy that is playing.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Awaitable, Callable
from importlib.metadata import entry_points
from typing import Any

from agentgym_envs import WORLDS, EnvFault
from agentgym_envs.agents.formats import REPLY_FORMATS
from agentgym_envs.agents.prompts import GROUP as PROMPTS
from agentgym_envs.core.registry import is_external
from agentgym_envs.core.tasks import SPLITS
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.routing import BaseRoute, Route

from agentgym_eval.runs.settings import PlaySettings, short_name
from agentgym_eval.util.errors import UsageError, did_you_mean
from agentgym_eval.viewer.index.index import NotFound
from agentgym_eval.viewer.index.runs import HUMAN
from agentgym_eval.viewer.pages.forms import read_form
from agentgym_eval.viewer.pages.reading import split_reply
from agentgym_eval.viewer.pages.site import Site
from agentgym_eval.viewer.playing.session import Session
from agentgym_eval.viewer.playing.table import SessionManager

_Form = dict[str, str]
_Move = Callable[[Session, _Form], Awaitable[None]]


def play_routes(site: Site, manager: SessionManager | None, seen: str) -> list[BaseRoute]:
    """Return the routes.

    Args:
        site: The site the pages belong to.
        manager: The sessions; None if play is disabled, then a page explains why.
        seen: Name of the header with the version that a polling page shows.
    """

    async def start(request: Request) -> Response:
        # A prompt may name code or a file, and anybody may have made the link: it fills in only an installed prompt.
        form = dict(request.query_params)
        withheld = form.get("prompt", "") not in ("", *_installed_prompts())
        return _start_page(site, manager, form | ({"prompt": ""} if withheld else {}), withheld=withheld)

    return [Route("/play", start), *(_game_routes(site, manager, seen) if manager else [])]


def _game_routes(site: Site, manager: SessionManager, seen: str) -> list[BaseRoute]:
    async def begin(request: Request) -> Response:
        form = dict(await read_form(request))
        try:
            key = await manager.open(_settings(form))
        except (UsageError, EnvFault) as error:
            return _start_page(site, manager, form, str(error))
        return RedirectResponse(site.links.game(key), 303)

    async def show(request: Request) -> Response:
        key = request.path_params["key"]
        session = _session(manager, key)
        state = session.state
        if request.headers.get(seen) == str(state.version):
            return Response(status_code=204)
        page = site.render(
            "game.html",
            key=key,
            manager=manager,
            state=state,
            prompt=session.settings.prompt,
            policies=_POLICIES,
            split_reply=split_reply,
        )
        return HTMLResponse(page)

    async def move(request: Request) -> Response:
        key, name = request.path_params["key"], request.path_params["move"]
        session = _session(manager, key)
        if name not in (*_MOVES, "save"):
            raise NotFound(f"There is no move {name}.{did_you_mean(name, [*_MOVES, 'save'])}")
        form = dict(await read_form(request))
        try:
            await (manager.save(key) if name == "save" else _MOVES[name](session, form))
        except UsageError as error:
            await session.set_notice(str(error))
        return RedirectResponse(site.links.game(key), 303)

    return [
        Route("/play", begin, methods=["POST"]),
        Route("/play/{key}", show),
        Route("/play/{key}/{move}", move, methods=["POST"]),
    ]


_POLICIES = ("oracle", "random", "openai", "hf", "vllm", "scripted")


_FIELDS = ("env", "split", "task", "seed", "agent", "prompt", "horizon", "options", "other")


def _installed_prompts() -> list[str]:
    return sorted(entry.name for entry in entry_points(group=PROMPTS))


def _start_page(
    site: Site, manager: SessionManager | None, form: _Form, notice: str = "", *, withheld: bool = False
) -> Response:
    page = site.render(
        "play.html",
        manager=manager,
        form=dict.fromkeys(_FIELDS, "") | form,
        notice=notice,
        withheld=withheld,
        envs={short_name(world.id): world.about for world in WORLDS},
        splits=SPLITS,
        formats=list(REPLY_FORMATS),
        prompts=_installed_prompts(),
    )
    return HTMLResponse(page, 400 if notice else 200)


def _session(manager: SessionManager, key: str) -> Session:
    if key not in manager.sessions:
        raise NotFound(
            "This game no longer exists: the viewer was restarted, or many newer games have ended. Start a new one."
        )
    return manager.sessions[key]


async def _reply(session: Session, form: _Form) -> None:
    await session.reply(form.get("text", ""), form.get("thought", ""))


async def _hand_over(session: Session, form: _Form) -> None:
    name, argument = form.get("policy", ""), form.get("argument", "").strip()
    spec = f"{name}:{argument}" if argument else name
    await session.hand_over(spec, _integer(form, "turns", None, minimum=1), _temperature(form))


async def _stop(session: Session, _: _Form) -> None:
    await session.stop()


async def _leave(session: Session, _: _Form) -> None:
    await session.leave()


_MOVES: dict[str, _Move] = {"say": _reply, "go-on": _hand_over, "stop": _stop, "leave": _leave}


def _settings(form: _Form) -> PlaySettings:
    """Convert the submitted start form to settings. Raises `UsageError`."""
    split, task = form.get("split") or "test", form.get("task", "").strip()
    if split not in SPLITS:
        raise UsageError(f"There is no split {split[:50]}; the splits are {', '.join(SPLITS)}.")
    try:
        options = tuple(shlex.split(form.get("options", "")))
    except ValueError as error:
        raise UsageError(
            f"The options can't be parsed ({error}); write KEY=VALUE pairs separated by spaces."
        ) from error
    env = form.get("other", "").strip() or form.get("env", "")
    if is_external(env):
        # A run's page fills the form in, and the run may be somebody else's.
        raise UsageError(
            f"{env[:50]} is an environment of another library, whose name may be a command that it starts; the viewer "
            "plays none of these."
        )
    fields: dict[str, Any] = {
        "env": env,
        "split": split,
        "task": (task,) if task else (),
        "seed": _integer(form, "seed", 0, minimum=0),
        "horizon": _integer(form, "horizon", None, minimum=1),
        "agent": form.get("agent", "").strip() or None,
        "prompt": form.get("prompt", "").strip() or None,
    }
    return PlaySettings(policy=HUMAN, options=options, **fields)


def _integer(form: _Form, name: str, default: int | None, *, minimum: int) -> int | None:
    text = form.get(name, "").strip()
    if not text:
        return default
    if not re.fullmatch(r"\d{1,4000}", text, re.ASCII) or int(text) < minimum:
        raise UsageError(f"{name.capitalize()} must be a whole number of at least {minimum}, not {text[:50]}.")
    return int(text)


def _temperature(form: _Form) -> float:
    text = form.get("temperature", "").strip() or "1"
    try:
        temperature = float(text)
    except ValueError:
        temperature = -1.0
    if not 0 <= temperature <= 10:
        raise UsageError(f"Temperature must be a number from 0 to 10, not {text[:50]}.")
    return temperature
