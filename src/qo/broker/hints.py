"""Hint counters: has anything been said about these queues since I asked?

A claim reads its count before it asks the store. If the count moved when an
empty answer comes back, the answer may be stale, and the claim asks again
instead of waiting.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable


class HintCounters:
    def __init__(self) -> None:
        self._of_queue: defaultdict[str, int] = defaultdict(int)
        self._of_all = 0
        self._total = 0

    def heard(self, queues: Iterable[str] | None) -> None:
        self._total += 1
        if queues is None:
            self._of_all += 1
            return
        for queue in queues:
            self._of_queue[queue] += 1

    def count(self, queues: tuple[str, ...]) -> int:
        """A number that grows with every hint about these queues; no queues: about any."""
        if not queues:
            return self._total
        return self._of_all + sum(self._of_queue.get(queue, 0) for queue in queues)
