"""HTTP/1.1 on a connection, with an end to patience.

uvicorn's protocol waits for ever for a request that trickles in and for a client
that does not take its answer. This one gives each a time, headers a size, and
connections a number. A client that is still sending when it is answered and hung up on
would lose the answer: it is heard out for a moment, and what it says is thrown away.
"""

from __future__ import annotations

import asyncio
import logging
import sys
import time
from collections import Counter
from collections.abc import Iterable
from http import HTTPStatus
from typing import Any

from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle

from qo.server.settings import LimitSettings

log = logging.getLogger("qo.server")

CYCLE, CONNECTION = "qo.cycle", "qo.connection"
"""Keys in a request's scope: its response cycle and its connection, so that its answer can be written at once."""
LINGER_SECONDS = 5.0
LINGER_BYTES = 64 * 1024 * 1024
"""For how long, and how much, a client that was answered before it had said all is heard out."""
LOG_SECONDS = 10.0
JOINED_BYTES = 64 * 1024
"""A longer body is written by itself: joining would copy it."""
MOST_PIPELINED = 20
"""Requests that a client may send without waiting for an answer."""


class Connections:
    """How many connections there are, in all and by address."""

    def __init__(self, limit: int, limit_per_address: int) -> None:
        self._limit, self._limit_per_address = limit, limit_per_address
        self._count = 0
        self._of: Counter[str] = Counter()
        self._logged_at = float("-inf")
        self.refused = 0

    def __len__(self) -> int:
        return self._count

    def opened(self, address: str) -> str | None:
        """Count one more; why it is one too many, if it is."""
        self._count += 1
        self._of[address] += 1
        if self._count > self._limit:
            return f"{self._limit} connections are open already (limits.connections)"
        if self._of[address] > self._limit_per_address:
            return (
                f"{self._limit_per_address} connections of {address} are open already (limits.connections_per_address)"
            )
        return None

    def closed(self, address: str) -> None:
        self._count -= 1
        self._of[address] -= 1
        if not self._of[address]:
            del self._of[address]

    def refuse(self, why: str) -> None:
        """Say so, but not for each of a flood."""
        self.refused += 1
        if time.monotonic() - self._logged_at >= LOG_SECONDS:
            self._logged_at = time.monotonic()
            log.warning("connections are refused: %s", why)


class Patient(HttpToolsProtocol):
    """One connection."""

    limits = LimitSettings()
    all_connections = Connections(limits.connections, limits.connections_per_address)

    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        self._arriving: asyncio.TimerHandle | None = None
        self._stalled: asyncio.TimerHandle | None = None
        self._head_bytes = 0
        self._in_head = True
        self._before = b""  # the last bytes of the piece before
        self._header_bytes = 0
        self._silent_bytes = 0
        self._heard = False
        self._under_way = False
        self._unsent = 0
        self._address = ""
        self._lingered: int | None = None
        """Bytes that were thrown away since it was hung up; None: it was not."""
        self._cycles: list[RequestResponseCycle] = []
        """Requests whose answers are not complete; several, if the client does not wait for one before the next."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        peer = transport.get_extra_info("peername")
        self._address = peer[0] if isinstance(peer, tuple) else ""
        too_many = self.all_connections.opened(self._address)
        if too_many is not None:
            self.all_connections.refuse(too_many)
            self._refuse(HTTPStatus.SERVICE_UNAVAILABLE, too_many)
            return
        self._expect()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop(self._arriving)
        self._stop(self._stalled)
        self.all_connections.closed(self._address)
        self._tell_of_the_end()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._lingered is not None:
            self._lingered += len(data)
            if self._lingered > LINGER_BYTES:
                self.transport.abort()
            return
        if self._in_head:
            self._head_bytes += len(data)
            if self._head_bytes > self.limits.header_bytes and self._head_is_longer(data):
                return
            self._before = (self._before + data)[-3:]
        self._heard = False
        super().data_received(data)
        self._silent_bytes = 0 if self._heard else self._silent_bytes + len(data)
        if self._silent_bytes > self.limits.header_bytes:  # a chunk's extension or a trailer that does not end
            self._refuse(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE)
        elif self._arriving is None and (self._under_way or not self._answering()):
            self._expect()  # what is not a request yet, as an empty line, must become one

    def _answering(self) -> bool:
        """Whether a request is being answered."""
        return any(not cycle.response_complete for cycle in self._cycles)

    def _head_is_longer(self, data: bytes) -> bool:
        """The last piece may hold the end of the head and the beginning of a body."""
        end = (self._before + data).find(b"\r\n\r\n")
        if end >= 0 and self._head_bytes - len(data) - len(self._before) + end <= self.limits.header_bytes:
            return False
        self._refuse(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE)
        return True

    def on_header(self, name: bytes, value: bytes) -> None:
        """A header; or a trailer of a body in chunks, which is counted and not heard."""
        self._heard = True
        self._header_bytes += len(name) + len(value)
        if self._header_bytes > self.limits.header_bytes:
            raise ValueError("too many headers")
        if self._in_head:
            super().on_header(name, value)

    def on_body(self, body: bytes) -> None:
        self._heard = True
        super().on_body(body)

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._under_way = True
        self._header_bytes = 0

    def on_headers_complete(self) -> None:
        self._in_head = False
        self._heard = True
        super().on_headers_complete()
        cycle = self.cycle
        self.scope[CYCLE] = cycle  # type: ignore[literal-required]
        self.scope[CONNECTION] = self  # type: ignore[literal-required]
        if len(self._cycles) == 1 and self._cycles[0].response_complete:  # mostly a client waits for its answer
            self._cycles[0] = cycle
        else:
            self._cycles = [*(each for each in self._cycles if not each.response_complete), cycle]
            if len(self._cycles) > MOST_PIPELINED:
                raise ValueError("too many requests at once")
        if self.pipeline:
            self.flow.resume_reading()  # or the end of the connection would not be noticed

    def on_message_complete(self) -> None:
        """Mostly a request arrives in one piece, and needs no timer."""
        self._under_way = False
        if self._arriving is not None:
            self._arriving.cancel()
            self._arriving = None
        self._in_head, self._head_bytes, self._before = True, 0, b""
        super().on_message_complete()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._unsent = self._not_taken()
        self._stalled = self.loop.call_later(self.limits.stall_seconds, self._look_whether_it_takes)

    def _look_whether_it_takes(self) -> None:
        """A client that takes its answer slowly gets all of it; one that has taken nothing since is cut off."""
        unsent = self._not_taken()
        if unsent >= self._unsent:
            self.transport.abort()
            return
        self._unsent = unsent
        self._stalled = self.loop.call_later(self.limits.stall_seconds, self._look_whether_it_takes)

    def _not_taken(self) -> int:
        """Bytes that the client has not taken: ours, and the system's, which passes them on in bursts."""
        return self.transport.get_write_buffer_size() + unacknowledged(self.transport.get_extra_info("socket"))

    def hang_up(self) -> None:
        """Close, once the client has heard the answer: closing on what it still sends would take that from it."""
        if self._lingered is not None or self.transport.is_closing():
            return
        if not self._under_way or not self.transport.can_write_eof():
            self.transport.close()
            return
        self._lingered = 0
        self._stop(self._arriving)
        self.transport.write_eof()
        self.flow.resume_reading()
        self._arriving = self.loop.call_later(LINGER_SECONDS, self.transport.close)

    def resume_writing(self) -> None:
        self._stop(self._stalled)
        super().resume_writing()

    def send_400_response(self, msg: str) -> None:  # noqa: ARG002 - its own words are enough
        self._refuse(HTTPStatus.BAD_REQUEST)

    def _expect(self) -> None:
        """Start the timer within which a request must arrive."""
        self._arriving = self.loop.call_later(self.limits.request_seconds, self._too_slow)

    def _too_slow(self) -> None:
        self._refuse(HTTPStatus.REQUEST_TIMEOUT)

    def _refuse(self, status: HTTPStatus, why: str = "") -> None:
        """Answer what never became a request, unless an answer is under way, and hang up."""
        if self.transport.is_closing():
            return
        cycle: Any = self.cycle  # none yet on a new connection
        if cycle is None or not cycle.response_started or cycle.response_complete:
            retry = b"retry-after: 1\r\n" if status is HTTPStatus.SERVICE_UNAVAILABLE else b""
            self.transport.write(
                b"HTTP/1.1 %d %s\r\ncontent-type: text/plain\r\ncontent-length: %d\r\n%bconnection: close\r\n\r\n%b"
                % (status.value, status.phrase.encode(), len(why.encode()), retry, why.encode())
            )
        self._tell_of_the_end()
        self.transport.close()

    def _tell_of_the_end(self) -> None:
        """Nobody is left to answer: not the newest request alone, but all that are waiting for their answer."""
        for cycle in self._cycles:
            if not cycle.response_complete:
                cycle.disconnected = True
                cycle.message_event.set()
        self._cycles = []

    def _stop(self, timer: asyncio.TimerHandle | None) -> None:
        if timer is not None:
            timer.cancel()


class Answering:
    """Writes a whole answer at once, where ASGI takes two messages, each checked byte by byte.

    What it is given is qo's own: header names in lower case, values without line breaks.
    """

    def __init__(self) -> None:
        self._common: list[tuple[bytes, bytes]] = []
        self._common_text = b""

    def answer(
        self, cycle: RequestResponseCycle, status: int, headers: Iterable[tuple[bytes, bytes]], body: bytes
    ) -> None:
        if cycle.default_headers is not self._common:  # they are made anew every second
            self._common = cycle.default_headers
            self._common_text = b"".join(b"%b: %b\r\n" % each for each in self._common)
        cycle.response_started = True
        cycle.waiting_for_100_continue = False
        parts = [STATUS_LINE[status], self._common_text]
        for name, value in headers:
            parts += (name, b": ", value, b"\r\n")
            if name == b"connection":
                cycle.keep_alive = False
        if not cycle.keep_alive:
            parts.append(b"connection: close\r\n")
        parts.append(b"\r\n")
        apart = len(body) > JOINED_BYTES
        if cycle.scope["method"] != "HEAD" and not apart:
            parts.append(body)
        cycle.transport.write(b"".join(parts))
        if cycle.scope["method"] != "HEAD" and apart:
            cycle.transport.write(body)
        cycle.response_complete = True
        cycle.message_event.set()
        if not cycle.keep_alive:
            cycle.scope[CONNECTION].hang_up()  # type: ignore[literal-required]
        cycle.on_response()


def protocol_with(limits: LimitSettings) -> type[Patient]:
    """The protocol under these limits; no more connections than the system has descriptors for."""
    most = min(limits.connections, most_descriptors() - SPARE_DESCRIPTORS)
    counted = Connections(max(1, most), limits.connections_per_address)
    return type("Patient", (Patient,), {"limits": limits, "all_connections": counted})


def unacknowledged(connection: Any) -> int:
    """Bytes that the system has not got rid of; 0 where it does not say."""
    try:
        import fcntl  # noqa: PLC0415 - not on every platform
        import termios  # noqa: PLC0415

        return int.from_bytes(fcntl.ioctl(connection.fileno(), termios.TIOCOUTQ, bytes(4)), sys.byteorder)
    except (ImportError, AttributeError, OSError):
        return 0


SPARE_DESCRIPTORS = 200
"""For the store, the log, and what else a process opens."""


def most_descriptors() -> int:
    """How many files and connections this process may have open; it asks for as many as it may have."""
    try:
        import resource  # noqa: PLC0415 - not on every platform
    except ImportError:
        return 1 << 20
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard == resource.RLIM_INFINITY:
        return 1 << 20
    if soft < hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return int(hard)
