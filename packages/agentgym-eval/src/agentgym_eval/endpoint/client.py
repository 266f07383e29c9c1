"""Requests to an endpoint: paced, repeated with growing pauses while it is busy, and its errors told apart.

Knows the protocol's errors, and neither conversations nor players.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from email.utils import parsedate_to_datetime
from typing import Any

import httpx
import numpy as np

from agentgym_eval.errors import RunStopped, UsageError

_PATIENCE = httpx.Timeout(600.0, connect=10.0)  # seconds; a long thought is one answer
_PAUSES = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 60.0)  # seconds before each new attempt, give or take a quarter
_UNMET = 4  # attempts to reach an address at which nobody was met so far
_ODD = 3  # answers without choices before it is taken for something else than such an endpoint
_SELDOM = 30.0  # seconds between lines that say why nothing comes
_LONGEST = 600.0  # seconds that an endpoint may ask us to wait
_BUSY = (408, 409, 425, 429)
_SPENT = ("insufficient_quota", "billing_hard_limit_reached")
_SHOWN = 300  # characters of what it says
_LOCAL = ("127.0.0.1", "localhost", "::1")
_log = logging.getLogger(__name__)


class Refused(Exception):
    """The endpoint won't do what it was asked, and asking again won't help."""

    def __init__(self, status: int, code: str, message: str) -> None:
        """`code` is the protocol's word for it, where there is one."""
        super().__init__(f"{' '.join(dict.fromkeys((str(status), code))).strip()}: {message}")
        self.status = status
        self.code = code
        self.message = message


class _Busy(Exception):
    """It may be asked again, after so many seconds if it said how many."""

    def __init__(self, why: str, after: float | None = None, *, odd: bool = False) -> None:
        """`odd`: it answered, and not what such an endpoint answers."""
        super().__init__(why)
        self.after = after
        self.odd = odd


class Client:
    """Asks one endpoint. All of it runs in one event loop."""

    def __init__(
        self,
        base_url: str,
        key: str,
        *,
        rate: float | None = None,
        seed: int = 0,
        pauses: Sequence[float] = _PAUSES,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Nothing is asked yet.

        Args:
            base_url: Its address up to `/v1`; a query behind it goes with each request.
            key: Sent as a bearer token, and in no message of ours. Empty: none is sent.
            rate: Most requests a minute.
            seed: Of the chance in pauses, so that those who were sent away together don't come back together.
            pauses: Seconds before each new attempt.
            sleep: Waits.
            clock: Tells seconds.

        Raises:
            UsageError: when the address is none, or the key can't be sent.
        """
        if not (key.isascii() and key.isprintable()):
            raise UsageError("OPENAI_API_KEY holds what no key has, such as a line break; set it to the key alone.")
        try:
            address = httpx.URL(base_url)
        except httpx.InvalidURL as error:
            raise UsageError(f"The endpoint's address {base_url!r} is none: {error}.") from error
        if address.scheme not in ("http", "https") or not address.host:
            raise UsageError(f"The endpoint's address is like http://127.0.0.1:8000/v1, not {base_url!r}.")
        self._address, self._key = address.copy_with(path=address.path.rstrip("/")), key
        self.shown = str(self._address.copy_with(userinfo=b"", query=None))
        """The address without what may be secret in it."""
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        # A proxy is for the internet and doesn't know this machine's own ports.
        self._http = httpx.AsyncClient(
            headers=headers,
            timeout=_PATIENCE,
            limits=httpx.Limits(max_connections=None),
            trust_env=address.host not in _LOCAL,
        )
        self._rng = np.random.default_rng(seed)
        self._pauses, self._sleep, self._clock = tuple(pauses), sleep, clock
        self._spacing = 60.0 / rate if rate else 0.0
        self._next = self._quiet_until = self._silent_until = clock()
        self._met = False

    async def ask(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """The answer to a chat completion; it has `choices`.

        Raises:
            Refused: when the endpoint won't.
            RunStopped: when it was busy, broken or away at each attempt, or keeps answering without choices.
        """
        trouble: _Busy | None = None
        odd, tries = 0, len(self._pauses) + 1
        for attempt, pause in enumerate((*self._pauses, 0.0), 1):
            await self._admitted()
            try:
                return await self._once(body)
            except _Busy as busy:
                trouble = busy
            odd += trouble.odd
            most = tries if self._met else min(_UNMET, tries)
            most = min(most, attempt + _ODD - odd) if trouble.odd else most
            if (trouble.after or 0) > _LONGEST or (attempt >= most and not self._met) or odd >= _ODD:
                break
            self._quiet_until = max(self._quiet_until, self._clock() + (trouble.after or 0))
            if attempt < most:
                pause *= self._rng.uniform(0.75, 1.25)
                self._say_why(trouble, pause, f"{attempt + 1} of {most}")
                await self._sleep(pause)
        raise RunStopped(f"{self.shown} gives no answers: {trouble}")

    async def models(self) -> list[str]:
        """The models that it names; none where it doesn't tell."""
        with suppress(httpx.HTTPError, ValueError, KeyError, TypeError):
            answer = await self._http.get(self._at("models"))
            return [str(model["id"]) for model in answer.json()["data"]]
        return []

    async def close(self) -> None:
        """Close the connections."""
        await self._http.aclose()

    async def _admitted(self) -> None:
        """Wait until the rate allows another request and the endpoint wants to be asked again."""
        at = max(self._clock(), self._next)
        self._next = at + self._spacing
        while (wait := max(at, self._quiet_until) - self._clock()) > 0:
            await self._sleep(wait)

    def _say_why(self, trouble: _Busy, pause: float, attempt: str) -> None:
        """Log why nothing comes: at once and then seldom, since many wait here together."""
        now = self._clock()
        if now >= self._silent_until:
            self._silent_until = now + _SELDOM
            wait = max(pause, self._quiet_until - now)
            _log.warning("%s gives no answer (%s); asking again in %.0f s (%s)", self.shown, trouble, wait, attempt)

    def _at(self, path: str) -> httpx.URL:
        return self._address.copy_with(path=f"{self._address.path}/{path}")

    def _told(self, words: str) -> str:
        """What the endpoint says, for a message: some of it, and never the key."""
        return " ".join((words.replace(self._key, "***") if self._key else words).split())[:_SHOWN]

    async def _once(self, body: Mapping[str, Any]) -> dict[str, Any]:
        try:
            answer = await self._http.post(self._at("chat/completions"), json=body)
        except httpx.RequestError as error:
            self._met |= not isinstance(error, httpx.ConnectError | httpx.ConnectTimeout)
            raise _Busy(self._told(f"{type(error).__name__} {error}")) from error
        self._met = True
        try:
            record = answer.json()
        except (ValueError, RecursionError):
            record = None
        status, code, message = answer.status_code, "", answer.text
        if answer.has_redirect_location:
            message = f"it has moved to {answer.headers['location']}; give --base-url up to /v1 there"
        if isinstance(record, dict) and (status != 200 or record.get("error")):
            code, message, status = _error(record, message, status)
        elif status == 200 and isinstance(record, dict) and record.get("choices"):
            return record
        code, message = self._told(code), self._told(message)
        if status == 200:
            raise _Busy(f"its answer has no choices: {message}", odd=True)
        if (status in _BUSY or status >= 500) and code not in _SPENT:
            raise _Busy(f"{status}: {message}", _wait(answer.headers))
        raise Refused(status, code, message)


def _error(record: Mapping[str, Any], text: str, status: int) -> tuple[str, str, int]:
    """Code, message and status of an error in a body. Routers answer 200 to what another endpoint refused."""
    error = record.get("error") or record.get("detail") or record
    if not isinstance(error, dict):
        return "", str(error), 500 if status == 200 else status
    code, message = error.get("code") or error.get("type") or "", error.get("message") or text
    if status == 200:
        status = code if isinstance(code, int) else 500
    return str(code), str(message), status


def _wait(headers: httpx.Headers) -> float | None:
    """The seconds after which the endpoint wants to be asked again: a number, or a date."""
    said = headers.get("retry-after", "")
    with suppress(ValueError):
        return max(0.0, float(said))
    with suppress(ValueError):
        return max(0.0, parsedate_to_datetime(said).timestamp() - time.time())
    return None
