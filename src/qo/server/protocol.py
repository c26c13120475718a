"""HTTP/1.1 on a connection, with an end to patience.

uvicorn's protocol waits for ever for a request that trickles in and for a client
that does not take its answer. This one gives each a time, and headers a size.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from http import HTTPStatus
from typing import Any

from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle

from qo.server.settings import LimitSettings

CYCLE = "qo.cycle"
"""Where a request's scope has its place on the connection, so that its answer can be written at once."""
MOST_PIPELINED = 20
"""Requests that a client may send without waiting for an answer."""


class Patient(HttpToolsProtocol):
    """One connection."""

    limits = LimitSettings()

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
        self._cycles: list[RequestResponseCycle] = []
        """Requests whose answers are not complete; several, if the client does not wait for one before the next."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._expect()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop(self._arriving)
        self._stop(self._stalled)
        self._tell_of_the_end()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
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
        elif self._under_way and self._arriving is None:
            self._expect()

    def _head_is_longer(self, data: bytes) -> bool:
        """The last piece may hold the end of the head and the beginning of a body."""
        end = (self._before + data).find(b"\r\n\r\n")
        if end >= 0 and self._head_bytes - len(data) - len(self._before) + end <= self.limits.header_bytes:
            return False
        self._refuse(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE)
        return True

    def on_header(self, name: bytes, value: bytes) -> None:
        """Headers, and the trailers of a body in chunks."""
        self._heard = True
        self._header_bytes += len(name) + len(value)
        if self._header_bytes > self.limits.header_bytes:
            raise ValueError("too many headers")
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
        self._stalled = self.loop.call_later(self.limits.stall_seconds, self.transport.abort)

    def resume_writing(self) -> None:
        self._stop(self._stalled)
        super().resume_writing()

    def send_400_response(self, msg: str) -> None:  # noqa: ARG002 - its own words are enough
        self._refuse(HTTPStatus.BAD_REQUEST)

    def _expect(self) -> None:
        """A request must have arrived by then."""
        self._arriving = self.loop.call_later(self.limits.request_seconds, self._too_slow)

    def _too_slow(self) -> None:
        self._refuse(HTTPStatus.REQUEST_TIMEOUT)

    def _refuse(self, status: HTTPStatus) -> None:
        """Answer what never became a request, unless an answer is under way, and hang up."""
        if self.transport.is_closing():
            return
        cycle: Any = self.cycle  # none yet on a new connection
        if cycle is None or not cycle.response_started or cycle.response_complete:
            self.transport.write(
                b"HTTP/1.1 %d %s\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"
                % (status.value, status.phrase.encode())
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
        if cycle.scope["method"] != "HEAD":
            parts.append(body)
        cycle.transport.write(b"".join(parts))
        cycle.response_complete = True
        cycle.message_event.set()
        if not cycle.keep_alive:
            cycle.transport.close()
        cycle.on_response()


def protocol_with(limits: LimitSettings) -> type[Patient]:
    """The protocol under these limits."""
    return type("Patient", (Patient,), {"limits": limits})
