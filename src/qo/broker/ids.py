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
COUNTER = 0x7FFFFFFFFFFF
"""The bits of the entropy that are the counter."""


class Ids:
    def __init__(self, now: Callable[[], datetime]) -> None:
        self._now = now
        self._began = -RUN_MS
        self._entropy = 0

    def take(self, count: int) -> list[MessageId]:
        """So many ids, greater than all that were taken here before, as far as the clock goes forward."""
        milliseconds = int(self._now().timestamp() * 1000)
        if not 0 <= milliseconds - self._began < RUN_MS or (self._entropy & COUNTER) + count > COUNTER:
            self._began = milliseconds
            self._entropy = secrets.randbits(ENTROPY_BITS) & ~(COUNTER + 1 >> 1)
        ids = message_ids(self._began, self._entropy, count)
        self._entropy += count
        return ids
