"""Streams: deliveries sent as they come, with a bound on what may be unsettled.

A stream claims on only while fewer than its window of messages are out. One is
back when it is settled through this server, with what its lane's lease gave back
or completed beside it, or when its lease is over by the clock; a settle through
another server is noticed then.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from datetime import datetime

import msgspec

from qo.core.held import Held
from qo.core.lease import Delivered, Extended, Extension, LeaseToken, Lost, Settled, Settlement


class Stream:
    """What one stream has sent and not heard of."""

    def __init__(self, window: int, client: str) -> None:
        self._window = window
        self.client = client
        self.held = Held()
        self.freed = asyncio.Event()

    def room(self, now: datetime) -> int:
        """How many more messages may be out."""
        self.held.expire(now)
        return self._window - len(self.held)


class Streams:
    """All streams of this server, by the tokens that they handed out."""

    def __init__(self) -> None:
        self._by_token: dict[LeaseToken, Stream] = {}
        self._open: set[Stream] = set()
        self._clients: Counter[str] = Counter()
        self.stopping = False

    def __len__(self) -> int:
        return len(self._open)

    def of(self, client: str) -> int:
        """How many a client has."""
        return self._clients[client]

    def open(self, window: int, client: str) -> Stream:
        stream = Stream(window, client)
        self._open.add(stream)
        self._clients[client] += 1
        return stream

    def close(self, stream: Stream) -> None:
        self._open.discard(stream)
        self._clients[stream.client] -= 1
        if not self._clients[stream.client]:
            del self._clients[stream.client]
        for token in stream.held.tokens:
            self._by_token.pop(token, None)

    def sent(self, stream: Stream, deliveries: Sequence[Delivered]) -> None:
        stream.held.take([msgspec.structs.replace(each, payload=b"", headers={}) for each in deliveries])
        for token in {each.token for each in deliveries}:
            self._by_token[token] = stream

    def settled(self, items: Sequence[Settlement], answers: Sequence[Settled]) -> None:
        """Something was settled here."""
        if not self._by_token:
            return
        for item, answer in zip(items, answers, strict=True):
            stream = self._by_token.get(item.token)
            if stream is not None:
                stream.held.settled(item, answer)
                self._forget(item.token, stream)

    def extended(self, extensions: Sequence[Extension], answers: Sequence[Extended | Lost]) -> None:
        """Leases are held for longer, or were found lost."""
        if not self._by_token:
            return
        for extension, answer in zip(extensions, answers, strict=True):
            stream = self._by_token.get(extension.token)
            if stream is not None:
                stream.held.extended(extension, answer)
                self._forget(extension.token, stream)

    def _forget(self, token: LeaseToken, stream: Stream) -> None:
        stream.freed.set()
        if token not in stream.held.tokens:
            self._by_token.pop(token, None)

    def stop(self) -> None:
        self.stopping = True
        for stream in self._open:
            stream.freed.set()
