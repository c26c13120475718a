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

from qo.core.lane import LaneId
from qo.core.lease import Delivered, Extended, Extension, LeaseToken, Lost, Settled, Settlement

Leased = tuple[LeaseToken, LaneId]
"""One lane's lease."""


class Out:
    """What was sent of one lane's lease and is not settled."""

    __slots__ = ("expires_at", "keyed", "offsets")

    def __init__(self, keyed: bool, expires_at: datetime) -> None:
        self.keyed = keyed
        self.expires_at = expires_at
        self.offsets: set[int] = set()


class Stream:
    """What one stream has sent and not heard of."""

    def __init__(self, window: int, client: str) -> None:
        self._window = window
        self.client = client
        self.out: dict[Leased, Out] = {}
        self.freed = asyncio.Event()

    def room(self, now: datetime) -> int:
        """How many more messages may be out."""
        for leased in [leased for leased, out in self.out.items() if out.expires_at <= now]:
            del self.out[leased]
        return self._window - sum(len(out.offsets) for out in self.out.values())

    def next_over(self) -> datetime | None:
        """When a lease will be over, if nothing is heard of it."""
        return min((out.expires_at for out in self.out.values()), default=None)

    def sent(self, deliveries: Sequence[Delivered]) -> None:
        for each in deliveries:
            leased = each.token, each.lane
            if leased not in self.out:
                self.out[leased] = Out(each.key is not None, each.expires_at)
            self.out[leased].offsets.add(each.offset)

    def settled(self, leased: Leased, offset: int, *, ended: bool) -> None:
        """Completing a message of a key completes what came before it; the end of a lease gives the rest back."""
        out = self.out.get(leased)
        if out is None:
            return
        out.offsets = {each for each in out.offsets if each > offset} if out.keyed else out.offsets - {offset}
        if ended or not out.offsets:
            del self.out[leased]
        self.freed.set()

    def extended(self, token: LeaseToken, expires_at: datetime | None) -> None:
        """Its leases last longer; none: they are lost."""
        for leased in [leased for leased in self.out if leased[0] == token]:
            if expires_at is None:
                del self.out[leased]
            else:
                self.out[leased].expires_at = expires_at
        self.freed.set()


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
        for token, _ in stream.out:
            self._by_token.pop(token, None)

    def sent(self, stream: Stream, deliveries: Sequence[Delivered]) -> None:
        stream.sent(deliveries)
        for token in {each.token for each in deliveries}:
            self._by_token[token] = stream

    def settled(self, items: Sequence[Settlement], answers: Sequence[Settled]) -> None:
        """Something was settled here."""
        if not self._by_token:
            return
        for item, answer in zip(items, answers, strict=True):
            stream = self._by_token.get(item.token)
            if stream is not None and answer.verdict is not None:
                stream.settled((item.token, item.lane), item.offset, ended=answer.lease_ended)
                self._forget(item.token, stream)

    def extended(self, extensions: Sequence[Extension], answers: Sequence[Extended | Lost]) -> None:
        """Leases are held for longer, or were found lost."""
        if not self._by_token:
            return
        for extension, answer in zip(extensions, answers, strict=True):
            stream = self._by_token.get(extension.token)
            if stream is not None:
                stream.extended(extension.token, None if isinstance(answer, Lost) else answer.expires_at)
                self._forget(extension.token, stream)

    def _forget(self, token: LeaseToken, stream: Stream) -> None:
        if not any(token == known for known, _ in stream.out):
            self._by_token.pop(token, None)

    def stop(self) -> None:
        self.stopping = True
        for stream in self._open:
            stream.freed.set()
