"""The waiters of one wait group, in line: higher priority first, then longest-waiting."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import NamedTuple

from qo.broker.clock import Timer
from qo.core.lane import Filter
from qo.core.lease import Claimed, Nothing, Want
from qo.core.names import namespace_and_task


class WaitKey(NamedTuple):
    """The fields of a want that decide whether it finds something: not its size, its owner or its lease."""

    queues: tuple[str, ...]
    filter: Filter | None
    group: str
    kinds: frozenset[str] | None
    key: str | None

    @classmethod
    def of(cls, want: Want) -> WaitKey:
        return cls(want.queues, want.filter, want.group, want.kinds, want.key)

    def concerns(self, queues: frozenset[str] | None) -> bool:
        if queues is None:
            return True
        if self.filter is not None:
            return any(self.filter.matches(*namespace_and_task(queue)) for queue in queues)
        return not queues.isdisjoint(self.queues)


class Waiter:
    __slots__ = ("answer", "asked", "over", "priority", "timer", "want")

    def __init__(self, want: Want, answer: asyncio.Future[Claimed | Nothing], priority: int) -> None:
        self.want = want
        self.answer = answer
        self.priority = priority
        self.timer: Timer | None = None
        self.asked = False
        """Whether the store is being asked for this waiter. Then it times out only after the store has answered."""
        self.over = False


class Line:
    """Waiters, higher priority first, then longest-waiting."""

    def __init__(self) -> None:
        self._levels: dict[int, dict[int, Waiter]] = {}
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[Waiter]:
        for priority in sorted(self._levels, reverse=True):
            yield from self._levels[priority].values()

    def add(self, waiter: Waiter) -> None:
        self._levels.setdefault(waiter.priority, {})[id(waiter)] = waiter
        self._count += 1

    def remove(self, waiter: Waiter) -> bool:
        """Whether it stood in line."""
        level = self._levels.get(waiter.priority, {})
        found = level.pop(id(waiter), None) is not None
        self._count -= found
        if found and not level:
            del self._levels[waiter.priority]
        return found
