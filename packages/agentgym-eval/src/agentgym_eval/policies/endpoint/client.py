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
from typing import Any, Literal, TypeVar

import httpx
import numpy as np

from agentgym_eval.util.errors import RunStopped, UsageError

_PATIENCE = httpx.Timeout(600.0, connect=10.0)  # seconds; a long thought is one answer
_PAUSES = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 60.0)  # seconds before each new attempt, give or take a quarter
_UNMET = 4  # attempts to reach an address at which nobody was met so far
_ODD = 3  # answers that are none of the protocol's before it is taken for something else than such an endpoint
_GRACE = 25.0  # seconds in which answers under way may still come when all ends; Slurm and Kubernetes leave 30
_SELDOM = 30.0  # seconds between lines that say why nothing comes
_LONGEST = 600.0  # seconds that an endpoint may ask us to wait
_BUSY = (408, 409, 425, 429)
_SPENT = ("insufficient_quota", "billing_hard_limit_reached")
_SHOWN = 300  # characters of what it says
_LOCAL = ("127.0.0.1", "localhost", "::1")
_MALFORMED = (LookupError, TypeError, ValueError, AttributeError, OverflowError)
_log = logging.getLogger(__name__)
_T = TypeVar("_T")


class Refused(Exception):
    """The endpoint won't do what it was asked, and asking again won't help."""

    def __init__(self, status: int, code: str, message: str) -> None:
        """`code` is the protocol's word for it, where there is one."""
        super().__init__(f"{' '.join(dict.fromkeys((str(status), code))).strip()}: {message}")
        self.status = status
        self.code = code
        self.message = message


class Unanswered(Exception):
    """The endpoint answers other requests, and not this one."""


class _Busy(Exception):
    """It may be asked again, after so many seconds if it said how many."""

    def __init__(self, why: str, kind: Literal["away", "broken", "error", "odd"], after: float | None = None) -> None:
        """`away`: nobody is there, or it asks to be left alone. `broken`: it failed at this request, or hung up.
        `error`: it answered 200 with an error. `odd`: it answered 200 with what is none of the protocol's.
        """
        super().__init__(why)
        self.kind = kind
        self.after = after


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
        grace: float = _GRACE,
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
            grace: Seconds in which answers under way may still come when it is closed.
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
        self._pauses, self._grace, self._sleep, self._clock = tuple(pauses), grace, sleep, clock
        self._spacing = 60.0 / rate if rate else 0.0
        self._next = self._quiet_until = self._silent_until = clock()
        self._met = False
        self._answers = 0
        self._under_way = set[asyncio.Task[Any]]()

    async def ask(self, body: Mapping[str, Any], read: Callable[[Any, float], _T], *, known: bool = False) -> _T:
        """What `read` makes of the answer to a chat completion.

        Args:
            body: The request.
            read: Called with the answer and the seconds that it took, as soon as it is there, also when the caller has
                been cancelled meanwhile. Raises LookupError, TypeError, ValueError, AttributeError or OverflowError
                for an answer that isn't of the protocol.
            known: Whether the endpoint is known to answer, from earlier sittings.

        Raises:
            Refused: when the endpoint won't.
            Unanswered: when it failed at this request at each attempt, and answers others.
            RunStopped: when it was busy, broken or away at each attempt, or never answers as the protocol says.
        """
        attempt = odd = 0
        before = self._answers
        while True:
            attempt += 1
            await self._admitted()
            try:
                return await self._once(body, read)
            except _Busy as busy:
                trouble, after = busy, busy.after or 0.0
            odd += trouble.kind == "odd"
            most = self._most(trouble, attempt - odd + _ODD, known=known)
            if after <= _LONGEST:
                self._quiet_until = max(self._quiet_until, self._clock() + after)
            if after > _LONGEST or attempt >= most:
                raise self._given_up(trouble, attempt, since=before, known=known)
            pause = self._pauses[attempt - 1] * self._rng.uniform(0.75, 1.25)
            self._say_why(trouble, pause, f"{attempt + 1} of {most}")
            await self._sleep(pause)

    def _most(self, trouble: _Busy, odd: int, *, known: bool) -> int:
        """How many attempts a request gets; `odd` where nothing but such answers came so far."""
        tries = len(self._pauses) + 1
        most = tries if self._met else min(_UNMET, tries)
        return min(most, odd) if trouble.kind == "odd" and not (self._answers or known) else most

    def _given_up(self, trouble: _Busy, attempts: int, *, since: int, known: bool) -> Exception:
        """Where others were answered it is this request that can't be; a server that breaks may have broken since."""
        others = self._answers > since if trouble.kind == "broken" else known or self._answers > 0
        if others and trouble.kind != "away":
            return Unanswered(f"{self.shown} did not answer a request in {attempts} attempts: {trouble}")
        return RunStopped(f"{self.shown} gives no answers: {trouble}")

    async def models(self) -> list[str]:
        """The models that it names; none where it doesn't tell."""
        with suppress(httpx.HTTPError, ValueError, KeyError, TypeError):
            answer = await self._http.get(self._at("models"))
            return [str(model["id"]) for model in answer.json()["data"]]
        return []

    async def close(self) -> None:
        """Close the connections, once the answers that are under way are there: they are paid for already. Cancel this,
        or let the grace pass, to do without them.
        """
        try:
            if self._under_way:
                many = len(self._under_way)
                _log.warning("Waiting up to %.0f s for %d answers under way; Ctrl-C drops them", self._grace, many)
                await asyncio.wait(self._under_way, timeout=self._grace)
        finally:
            for exchange in self._under_way:
                exchange.cancel()
            await asyncio.gather(*self._under_way, return_exceptions=True)
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

    async def _once(self, body: Mapping[str, Any], read: Callable[[Any, float], _T]) -> _T:
        exchange = asyncio.create_task(self._exchange(body, read))
        self._under_way.add(exchange)
        exchange.add_done_callback(self._over)
        return await asyncio.shield(exchange)

    def _over(self, exchange: asyncio.Task[Any]) -> None:
        self._under_way.discard(exchange)
        if not exchange.cancelled():
            exchange.exception()  # else asyncio reports an error of which the caller, cancelled meanwhile, didn't hear

    async def _exchange(self, body: Mapping[str, Any], read: Callable[[Any, float], _T]) -> _T:
        began = self._clock()
        try:
            answer = await self._http.post(self._at("chat/completions"), json=body)
        except httpx.RequestError as error:
            away = isinstance(error, httpx.ConnectError | httpx.ConnectTimeout)
            self._met |= not away
            raise _Busy(self._told(f"{type(error).__name__} {error}"), "away" if away else "broken") from error
        self._met = True
        record = _record(answer)
        if answer.status_code != 200 or (isinstance(record, dict) and record.get("error")):
            raise self._trouble(answer, record)
        if not (isinstance(record, dict) and record.get("choices")):
            raise _Busy(f"its answer has no choices: {self._told(answer.text)}", "odd")
        try:
            said = read(record, self._clock() - began)
        except _MALFORMED as error:
            why = self._told(f"its answer is not of OpenAI's protocol ({error!r}): {answer.text}")
            raise _Busy(why, "odd") from error
        self._answers += 1
        return said

    def _trouble(self, answer: httpx.Response, record: Any) -> Refused | _Busy:
        """What an answer that is an error comes to."""
        status, code, message = answer.status_code, "", answer.text
        if answer.has_redirect_location:
            message = f"it has moved to {answer.headers['location']}; give --base-url up to /v1 there"
        if isinstance(record, dict):
            code, message, status = _error(record, message, status)
        code, message = self._told(code), self._told(message)
        if code in _SPENT or not (status in _BUSY or status >= 500):
            return Refused(status, code, message)
        kind = "away" if status in _BUSY else "error" if answer.status_code == 200 else "broken"
        return _Busy(f"{status}: {message}", kind, _wait(answer.headers))


def _record(answer: httpx.Response) -> Any:
    """What is in a body; None where it is no JSON."""
    try:
        return answer.json()
    except (ValueError, RecursionError):
        return None


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
