"""ids: those of one process count up, so that what is pushed together is found together.

A store keeps one index row for a run of ids that count up one by one. Callers who
push one message each are gathered into one commit; if their ids are neighbours,
they share that row too. So ids are taken from a run, which is begun anew every
few milliseconds, because an id says when it was made.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from datetime import datetime

from qo.core.message import MessageId, message_ids

RUN_MS = 20
ENTROPY_BITS = 80
COUNTER_BYTES = 6
COUNTER_LIMIT = 0x7FFFFFFFFFFF
"""Where a run's counter ends; it begins in the lower half."""


class Ids:
    def __init__(self, now: Callable[[], datetime]) -> None:
        self._now = now
        self._began = -RUN_MS
        self._prefix = b""
        self._next = 0

    def take(self, count: int) -> list[MessageId]:
        """So many ids, greater than all that were taken here before, as far as the clock goes forward."""
        milliseconds = int(self._now().timestamp() * 1000)
        if not 0 <= milliseconds - self._began < RUN_MS or self._next + count > COUNTER_LIMIT:
            self._begin(milliseconds)
        prefix, first = self._prefix, self._next
        self._next = first + count
        return [prefix + number.to_bytes(COUNTER_BYTES) for number in range(first, first + count)]  # type: ignore[misc]

    def take_one(self) -> MessageId:
        """The same for one, which is what callers who push one message each ask for."""
        milliseconds = int(self._now().timestamp() * 1000)
        if not 0 <= milliseconds - self._began < RUN_MS or self._next >= COUNTER_LIMIT:
            self._begin(milliseconds)
        number = self._next
        self._next = number + 1
        return self._prefix + number.to_bytes(COUNTER_BYTES)  # type: ignore[return-value]

    def _begin(self, milliseconds: int) -> None:
        [first] = message_ids(milliseconds, secrets.randbits(ENTROPY_BITS), 1)
        self._began = milliseconds
        self._prefix = first[:-COUNTER_BYTES]
        self._next = int.from_bytes(first[-COUNTER_BYTES:]) >> 1
