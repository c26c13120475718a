"""Streams: deliveries sent as they come, with a bound on what may be unsettled.

A stream claims on only while fewer than its window of messages are out. One is
back when it is settled through this server, or when its lease is over by the
clock; a settle through another server is noticed then.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import datetime

from qo.core.lease import Delivered, LeaseToken, Place, Settled, Settlement


class Stream:
    """What one stream has sent and not heard of."""

    def __init__(self, window: int) -> None:
        self._window = window
        self._out: dict[Place, datetime] = {}
        self.freed = asyncio.Event()

    def room(self, now: datetime) -> int:
        """How many more messages may be out."""
        for place in [place for place, over in self._out.items() if over <= now]:
            del self._out[place]
        return self._window - len(self._out)

    def next_over(self) -> datetime | None:
        """When a lease will be over, if nothing is heard of it."""
        return min(self._out.values(), default=None)

    def sent(self, deliveries: Sequence[Delivered]) -> None:
        for each in deliveries:
            self._out[Place(each.lane, each.offset)] = each.expires_at

    def settled(self, place: Place) -> None:
        if self._out.pop(place, None) is not None:
            self.freed.set()


class Streams:
    """All streams of this server, by the tokens that they handed out."""

    def __init__(self) -> None:
        self._by_token: dict[LeaseToken, Stream] = {}
        self._open: set[Stream] = set()
        self.stopping = False

    def __len__(self) -> int:
        return len(self._open)

    def open(self, window: int) -> Stream:
        stream = Stream(window)
        self._open.add(stream)
        return stream

    def close(self, stream: Stream) -> None:
        self._open.discard(stream)
        for token in [token for token, other in self._by_token.items() if other is stream]:
            del self._by_token[token]

    def sent(self, stream: Stream, deliveries: Sequence[Delivered]) -> None:
        stream.sent(deliveries)
        for each in deliveries:
            self._by_token[each.token] = stream

    def settled(self, items: Sequence[Settlement], answers: Sequence[Settled]) -> None:
        """Something was settled here. What a lease's end gave back comes again as a new delivery."""
        if not self._by_token:
            return
        for item, answer in zip(items, answers, strict=True):
            stream = self._by_token.get(item.token)
            if stream is not None and answer.verdict is not None:
                stream.settled(Place(item.lane, item.offset))

    def stop(self) -> None:
        self.stopping = True
        for stream in self._open:
            stream.freed.set()
