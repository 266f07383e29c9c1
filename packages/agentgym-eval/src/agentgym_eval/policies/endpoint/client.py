"""HTTP client of an endpoint: rate limiting, retries with exponential backoff, and classification of errors.

The client handles the protocol's errors. It depends neither on conversations nor on policies.
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

_TIMEOUT = httpx.Timeout(600.0, connect=10.0)  # seconds; long reasoning arrives in a single response
_PAUSES = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 60.0)  # seconds before each retry, with a jitter of 25%
_UNREACHED_ATTEMPTS = 4  # attempts for an address that was never reached
_MALFORMED_ATTEMPTS = 3  # malformed responses before the address is taken for something else than such an endpoint
_GRACE = 25.0  # seconds that pending requests get on shutdown; Slurm and Kubernetes leave 30
_LOG_INTERVAL = 30.0  # seconds between log lines about failing requests
_MAX_RETRY_AFTER = 600.0  # seconds that an endpoint may ask us to wait
_RETRYABLE = (408, 409, 425, 429)
_QUOTA_CODES = ("insufficient_quota", "billing_hard_limit_reached")
_SHOWN = 300  # characters of a response that messages show
_LOCAL = ("127.0.0.1", "localhost", "::1")
_PARSE_ERRORS = (LookupError, TypeError, ValueError, AttributeError, OverflowError)
_log = logging.getLogger(__name__)
_T = TypeVar("_T")


class Refused(Exception):
    """The endpoint rejected a request, and a retry won't help."""

    def __init__(self, status: int, code: str, message: str) -> None:
        """`code` is the protocol's error code, if there is one."""
        super().__init__(f"{' '.join(dict.fromkeys((str(status), code))).strip()}: {message}")
        self.status = status
        self.code = code
        self.message = message


class Unanswered(Exception):
    """The endpoint responds to other requests, but not to this one."""


_Kind = Literal["unavailable", "broken", "error", "malformed"]
"""`unavailable`: no connection, or the endpoint asks clients to wait. `broken`: it failed at this request, or closed
the connection. `error`: status 200 with an error. `malformed`: status 200 with a body that violates the protocol."""


class _Retryable(Exception):
    """A failure after which the request may be retried, `retry_after` seconds later if the endpoint gives a number."""

    def __init__(self, why: str, kind: _Kind, retry_after: float | None = None) -> None:
        super().__init__(why)
        self.kind = kind
        self.retry_after = retry_after


class Client:
    """Client of one endpoint. Use it from a single event loop."""

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
        """Set up the client without sending a request.

        Args:
            base_url: Address up to `/v1`; its query string is sent with each request.
            key: Sent as a bearer token, and redacted in all messages. If empty, no token is sent.
            rate: Maximum number of requests per minute.
            seed: Seed of the jitter of pauses, so that requests that failed together aren't retried together.
            pauses: Seconds before each retry.
            grace: Seconds that pending requests get to complete in `close`.
            sleep: Waits for a number of seconds.
            clock: Returns the time in seconds.

        Raises:
            UsageError: if the address is invalid, or the key can't be sent.
        """
        if not (key.isascii() and key.isprintable()):
            raise UsageError(
                "OPENAI_API_KEY holds characters that keys don't have, such as a line break; set it to the key alone."
            )
        try:
            address = httpx.URL(base_url)
        except httpx.InvalidURL as error:
            raise UsageError(f"The endpoint's address {base_url!r} is not a URL: {error}.") from error
        if address.scheme not in ("http", "https") or not address.host:
            raise UsageError(f"The endpoint's address must be like http://127.0.0.1:8000/v1, not {base_url!r}.")
        self._address, self._key = address.copy_with(path=address.path.rstrip("/")), key
        self.shown = str(self._address.copy_with(userinfo=b"", query=None))
        """The address without user info and query, which may hold secrets."""
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        # Proxies can't reach ports of this machine.
        self._http = httpx.AsyncClient(
            headers=headers,
            timeout=_TIMEOUT,
            limits=httpx.Limits(max_connections=None),
            trust_env=address.host not in _LOCAL,
        )
        self._rng = np.random.default_rng(seed)
        self._pauses, self._grace, self._sleep, self._clock = tuple(pauses), grace, sleep, clock
        self._spacing = 60.0 / rate if rate else 0.0
        self._next_slot = self._not_before = self._next_log = clock()
        self._reached = False
        self._responses = 0
        self._under_way = set[asyncio.Task[Any]]()

    async def ask(self, body: Mapping[str, Any], read: Callable[[Any, float], _T], *, known: bool = False) -> _T:
        """Request a chat completion, with retries, and return what `read` parses from the response.

        Args:
            body: The request.
            read: Called with the response and its latency in seconds as soon as it arrives, even if the caller has been
                cancelled. Raises LookupError, TypeError, ValueError, AttributeError or OverflowError for a response
                that doesn't follow the protocol.
            known: Whether the endpoint has responded in earlier processes of the run.

        Raises:
            Refused: if the endpoint rejects the request.
            Unanswered: if every attempt failed, but the endpoint responds to other requests.
            RunStopped: if the endpoint was busy, broken or unreachable at every attempt, or its responses don't follow
                the protocol.
        """
        attempt = malformed = 0
        responses_before = self._responses
        while True:
            attempt += 1
            await self._wait_for_slot()
            try:
                return await self._attempt(body, read)
            except _Retryable as error:
                failure, retry_after = error, error.retry_after or 0.0
            malformed += failure.kind == "malformed"
            limit = self._max_attempts(failure, attempt - malformed + _MALFORMED_ATTEMPTS, known=known)
            if retry_after <= _MAX_RETRY_AFTER:
                self._not_before = max(self._not_before, self._clock() + retry_after)
            if retry_after > _MAX_RETRY_AFTER or attempt >= limit:
                raise self._final_error(failure, attempt, responses_before=responses_before, known=known)
            pause = self._pauses[attempt - 1] * self._rng.uniform(0.75, 1.25)
            self._log_retry(failure, pause, f"{attempt + 1} of {limit}")
            await self._sleep(pause)

    def _max_attempts(self, failure: _Retryable, if_malformed: int, *, known: bool) -> int:
        """Return the maximum number of attempts of a request.

        It is at most `if_malformed` for a malformed response of an endpoint that has never sent a valid one.
        """
        attempts = len(self._pauses) + 1
        limit = attempts if self._reached else min(_UNREACHED_ATTEMPTS, attempts)
        return min(limit, if_malformed) if failure.kind == "malformed" and not (self._responses or known) else limit

    def _final_error(self, failure: _Retryable, attempts: int, *, responses_before: int, known: bool) -> Exception:
        """Return the error after the last attempt: it concerns this request alone if the endpoint responds to others.

        If the endpoint is broken, only responses since the first attempt count: it may have broken in between.
        """
        broken = failure.kind == "broken"
        others = self._responses > responses_before if broken else known or self._responses > 0
        if others and failure.kind != "unavailable":
            return Unanswered(f"{self.shown} did not respond to a request in {attempts} attempts: {failure}")
        return RunStopped(f"{self.shown} does not respond: {failure}")

    async def models(self) -> list[str]:
        """Return the names of the endpoint's models; empty if it doesn't list them."""
        with suppress(httpx.HTTPError, ValueError, KeyError, TypeError):
            response = await self._http.get(self._at("models"))
            return [str(model["id"]) for model in response.json()["data"]]
        return []

    async def close(self) -> None:
        """Close the connections after waiting for pending requests, which are already billed.

        Cancel this call to drop them; they are also dropped after `grace` seconds.
        """
        try:
            if self._under_way:
                pending = len(self._under_way)
                _log.warning("Waiting up to %.0f s for %d pending responses; Ctrl-C drops them", self._grace, pending)
                await asyncio.wait(self._under_way, timeout=self._grace)
        finally:
            for exchange in self._under_way:
                exchange.cancel()
            await asyncio.gather(*self._under_way, return_exceptions=True)
            await self._http.aclose()

    async def _wait_for_slot(self) -> None:
        """Wait until the rate limit and the endpoint's `Retry-After` allow another request."""
        slot = max(self._clock(), self._next_slot)
        self._next_slot = slot + self._spacing
        while (wait := max(slot, self._not_before) - self._clock()) > 0:
            await self._sleep(wait)

    def _log_retry(self, failure: _Retryable, pause: float, attempt: str) -> None:
        """Log the reason of a retry, at most every `_LOG_INTERVAL` seconds, since many requests may be waiting."""
        now = self._clock()
        if now >= self._next_log:
            self._next_log = now + _LOG_INTERVAL
            wait = max(pause, self._not_before - now)
            _log.warning("%s did not respond (%s); retrying in %.0f s (%s)", self.shown, failure, wait, attempt)

    def _at(self, path: str) -> httpx.URL:
        return self._address.copy_with(path=f"{self._address.path}/{path}")

    def _shortened(self, text: str) -> str:
        """Shorten a text of the endpoint for a message, and redact the key."""
        return " ".join((text.replace(self._key, "***") if self._key else text).split())[:_SHOWN]

    async def _attempt(self, body: Mapping[str, Any], read: Callable[[Any, float], _T]) -> _T:
        exchange = asyncio.create_task(self._exchange(body, read))
        self._under_way.add(exchange)
        exchange.add_done_callback(self._finished)
        return await asyncio.shield(exchange)

    def _finished(self, exchange: asyncio.Task[Any]) -> None:
        self._under_way.discard(exchange)
        if not exchange.cancelled():
            exchange.exception()  # marks it as retrieved: asyncio would log it if the caller has been cancelled

    async def _exchange(self, body: Mapping[str, Any], read: Callable[[Any, float], _T]) -> _T:
        began = self._clock()
        try:
            response = await self._http.post(self._at("chat/completions"), json=body)
        except httpx.RequestError as error:
            unreachable = isinstance(error, httpx.ConnectError | httpx.ConnectTimeout)
            self._reached |= not unreachable
            why = self._shortened(f"{type(error).__name__} {error}")
            raise _Retryable(why, "unavailable" if unreachable else "broken") from error
        self._reached = True
        record = _record(response)
        if response.status_code != 200 or (isinstance(record, dict) and record.get("error")):
            raise self._failure(response, record)
        if not (isinstance(record, dict) and record.get("choices")):
            raise _Retryable(f"its response has no choices: {self._shortened(response.text)}", "malformed")
        try:
            result = read(record, self._clock() - began)
        except _PARSE_ERRORS as error:
            why = self._shortened(f"its response does not follow OpenAI's protocol ({error!r}): {response.text}")
            raise _Retryable(why, "malformed") from error
        self._responses += 1
        return result

    def _failure(self, response: httpx.Response, record: Any) -> Refused | _Retryable:
        """Return the exception for an error response."""
        status, code, message = response.status_code, "", response.text
        if response.has_redirect_location:
            message = f"it has moved to {response.headers['location']}; give --base-url up to /v1 there"
        if isinstance(record, dict):
            code, message, status = _error(record, message, status)
        code, message = self._shortened(code), self._shortened(message)
        if code in _QUOTA_CODES or not (status in _RETRYABLE or status >= 500):
            return Refused(status, code, message)
        kind = "unavailable" if status in _RETRYABLE else "error" if response.status_code == 200 else "broken"
        return _Retryable(f"{status}: {message}", kind, _retry_after(response.headers))


def _record(response: httpx.Response) -> Any:
    """Return the JSON body of a response; None if it isn't JSON."""
    try:
        return response.json()
    except (ValueError, RecursionError):
        return None


def _error(record: Mapping[str, Any], text: str, status: int) -> tuple[str, str, int]:
    """Return code, message and status of an error. Routers send status 200 for errors of other endpoints."""
    error = record.get("error") or record.get("detail") or record
    if not isinstance(error, dict):
        return "", str(error), 500 if status == 200 else status
    code, message = error.get("code") or error.get("type") or "", error.get("message") or text
    if status == 200:
        status = code if isinstance(code, int) else 500
    return str(code), str(message), status


def _retry_after(headers: httpx.Headers) -> float | None:
    """Return the seconds in `Retry-After`, which is a number or a date; None without it."""
    value = headers.get("retry-after", "")
    with suppress(ValueError):
        return max(0.0, float(value))
    with suppress(ValueError):
        return max(0.0, parsedate_to_datetime(value).timestamp() - time.time())
    return None
