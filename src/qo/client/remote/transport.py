"""transport: calls over one pool of connections, to the first server that answers.

A call stays with the server that answered last. If that one cannot be reached, is
stopping, or loses the connection, the call goes to the next at once; when all of
them failed, it rests and begins again, until its time is up.
"""

from __future__ import annotations

import asyncio
import io
import logging
import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import aiohttp
import msgspec
from yarl import URL

from qo.core.backoff import LoopBackoff
from qo.core.errors import Closed, Invalid, QoError, Throttled, Unavailable
from qo.wire.problems import Problem, error_of

log = logging.getLogger("qo.client")

KEEP_SECONDS = 60
CONNECT_SECONDS = 5.0
ANSWER_SECONDS = 30.0
"""How long a call waits for its answer, beyond what it asked the server to wait."""
DEADLINE_SECONDS = 30.0
"""How long a call looks for a server that answers."""
LAST_WORDS_TURNS = 20
"""Turns of the event loop in which those who were cancelled may still give back what they had."""
LARGE_BYTES = 512 * 1024
FIRST_REST_SECONDS, LONGEST_REST_SECONDS = 0.05, 2.0

_problem = msgspec.json.Decoder(Problem)
_encode = msgspec.json.Encoder().encode


TRIED_AGAIN = frozenset({429, 502, 503, 504})
"""Statuses that time, or another server, may mend."""


class TryAgain(Exception):
    """Another try may do better; if there is none, this is what is told."""

    def __init__(self, error: QoError) -> None:
        self.error = error


class Answer(NamedTuple):
    status: int
    headers: Mapping[str, str]
    body: bytes


def read_addresses(urls: str | Sequence[str]) -> tuple[str, ...]:
    """The servers' addresses: one, several in a list, or several with commas between them."""
    given = urls.split(",") if isinstance(urls, str) else list(urls)
    addresses = tuple(each.strip().rstrip("/") for each in given)
    for each in addresses:
        parts = urlsplit(each)
        if parts.scheme not in ("http", "https") or not parts.hostname or not _has_good_port(each):
            raise Invalid("url", f"'{each}' is not http://host:port or https://host:port")
        if parts.query or parts.fragment or parts.username or parts.path:
            raise Invalid("url", "must name a server and nothing more: no path, and a token is given by itself")
    return addresses


def _has_good_port(url: str) -> bool:
    try:
        return urlsplit(url).port != 0
    except ValueError:
        return False


class Transport:
    def __init__(self, addresses: Sequence[str], token: str | None, patience: float | None = None) -> None:
        self._addresses = list(addresses)
        self._current = 0
        self._closed = self._closing = False
        self._waiting: set[asyncio.Task[Answer]] = set()
        self._under_way: set[asyncio.Task[Answer]] = set()
        self._headers = {"content-type": "application/json"}
        if token is not None:
            self._headers["authorization"] = f"Bearer {token}"
        self._session: aiohttp.ClientSession | None = None
        self.deadline_seconds = patience or DEADLINE_SECONDS

    def is_closed(self) -> bool:
        return self._closed or self._closing

    async def call(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        key: str | None = None,
        waits: float = 0.0,
        fresh: Callable[[Any], None] | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> Answer:
        """Make a call; an answer that tells of an error raises it.

        `key` makes a write repeatable, `waits` is how many seconds the server was
        asked to wait, and `fresh` changes the body before it is sent again.
        """
        if self._closed or (self._closing and waits):
            raise Closed("this client was closed")
        calling = asyncio.ensure_future(self._call(method, path, body, key, waits, fresh, headers or {}))
        kept = self._waiting if waits else self._under_way
        kept.add(calling)
        calling.add_done_callback(kept.discard)
        try:
            return await asyncio.shield(calling)
        except asyncio.CancelledError:
            if calling.cancelled() and self._closing:
                raise Closed("this client was closed") from None
            calling.cancel()
            await asyncio.gather(calling, return_exceptions=True)
            raise

    async def _call(
        self,
        method: str,
        path: str,
        body: Any,
        key: str | None,
        waits: float,
        fresh: Callable[[Any], None] | None,
        more_headers: Mapping[str, str],
    ) -> Answer:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self.deadline_seconds + waits
        data = None if body is None else _encode(body)
        headers = {**self._headers, **more_headers, **({} if key is None else {"idempotency-key": key})}
        backoff, failures = LoopBackoff(FIRST_REST_SECONDS, LONGEST_REST_SECONDS), 0
        while True:
            if self._closed:
                raise Closed("this client was closed")
            server = self._current
            try:
                return await self._once(method, self._addresses[server] + path, data, headers, waits)
            except TryAgain as error:
                failed = error.error
            self._switch_server(server)
            failures += 1
            if fresh is not None:
                fresh(body)
                data = _encode(body)
            if failures % len(self._addresses) and not isinstance(failed, Throttled):
                continue
            if failures == len(self._addresses):
                log.warning("%s; trying again for up to %g s", failed, self.deadline_seconds)
            pause = max(backoff.failed() * (0.5 + random.random()), _asked_rest(failed))  # noqa: S311 - no secret
            if self.is_closed() or loop.time() + pause >= deadline:
                raise failed
            await asyncio.sleep(pause)

    async def close(self) -> None:
        """End waiting calls with `Closed`. Calls under way, and releases by callers just cancelled, are still sent."""
        self._closing = True
        for task in self._waiting:
            task.cancel()
        for _ in range(LAST_WORDS_TURNS):
            await asyncio.sleep(0)
        while self._under_way:
            await asyncio.wait(self._under_way)
            await asyncio.sleep(0)
        self._closed = True
        if self._session is not None:
            await self._session.close()

    async def _once(
        self, method: str, url: str, data: bytes | None, headers: Mapping[str, str], waits: float
    ) -> Answer:
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_SECONDS, sock_read=ANSWER_SECONDS + waits)
        try:
            async with self._opened().request(
                method, URL(url, encoded=True), data=_in_pieces(data), headers=headers, timeout=timeout
            ) as got:
                answer = Answer(got.status, got.headers, await got.read())
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            if self._closed:
                raise Closed("this client was closed") from None
            said = f"no answer from {_server(url)}: {type(error).__name__} {error}".rstrip()
            raise TryAgain(Unavailable(said)) from error
        if answer.status in TRIED_AGAIN:
            raise TryAgain(_error_of(answer, url))
        if answer.status >= 400:
            raise _error_of(answer, url)
        return answer

    def _switch_server(self, server: int) -> None:
        """Change to the next server, unless another call has done so already."""
        if self._current == server and len(self._addresses) > 1:
            self._current = (server + 1) % len(self._addresses)
            log.info("leaving %s for %s", self._addresses[server], self._addresses[self._current])

    def _opened(self) -> aiohttp.ClientSession:
        if self._session is None:
            # As many connections as there are calls: those that wait must not keep others from being made.
            connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=KEEP_SECONDS)
            self._session = aiohttp.ClientSession(connector=connector, cookie_jar=aiohttp.DummyCookieJar())
        return self._session


def _in_pieces(data: bytes | None) -> bytes | io.BytesIO | None:
    """A large body is sent piece by piece, so that others get their turn."""
    return data if data is None or len(data) <= LARGE_BYTES else io.BytesIO(data)


def _server(url: str) -> str:
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc}"


def _asked_rest(error: QoError) -> float:
    return error.retry_after_seconds if isinstance(error, Throttled) else 0.0


def _error_of(answer: Answer, url: str) -> QoError:
    try:
        return error_of(_problem.decode(answer.body))
    except msgspec.DecodeError:
        said = f"{_server(url)} answered {answer.status}; is it a qo server?"
        return Unavailable(said) if answer.status >= 500 else Invalid("url", said)
