"""The registry of workers: their heartbeats, whether they are alive, and the kinds that none of them takes."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from datetime import datetime, timedelta
from enum import StrEnum

import msgspec

from qo.core.errors import Invalid
from qo.core.names import checked_name

UNSERVED_AFTER = timedelta(seconds=10)
"""A kind is unserved if its oldest message waits for so long, and nobody takes it."""
SILENT_AFTER = timedelta(seconds=60)
"""A worker that nobody can vouch for is gone after so long a silence."""
FORGET_AFTER = timedelta(days=1)
"""Workers that are gone are listed for so long."""
WORKERS_LIMIT = 1000
NAMES_LIMIT = 1000


class WorkerState(StrEnum):
    """`unknown`: it was said on another machine that it lives, and cannot be seen from this one."""

    ALIVE = "alive"
    GONE = "gone"
    UNKNOWN = "unknown"


class Heartbeat(msgspec.Struct, frozen=True, kw_only=True):
    """What a worker says of itself. No kinds: it takes all."""

    id: str
    queues: tuple[str, ...]
    group: str
    kinds: tuple[str, ...]
    host: str
    pid: int
    started_at: datetime
    max_capacity: int
    available_capacity: int
    memory_usage: float
    pressure: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for field in ("id", "group", "host"):
            checked_name(field, getattr(self, field))
        for field in ("queues", "kinds", "pressure"):
            if len(getattr(self, field)) > NAMES_LIMIT:
                raise Invalid(field, f"must have at most {NAMES_LIMIT} names")
            for name in getattr(self, field):
                checked_name(field, name)
        if not 0 <= self.memory_usage <= 1:
            raise Invalid("memory_usage", f"must be a share from 0 to 1, not {self.memory_usage}")
        if not 0 <= self.available_capacity <= self.max_capacity:
            raise Invalid("available_capacity", f"must be from 0 to max_capacity, {self.max_capacity}")

    def takes(self, queue: str, group: str, kind: str) -> bool:
        return queue in self.queues and group == self.group and (not self.kinds or kind in self.kinds)


class WorkerInfo(Heartbeat, frozen=True, kw_only=True):
    """A worker that is registered. One that is idle says nothing, and lives all the same."""

    seen_at: datetime
    state: WorkerState


class WaitingKind(msgspec.Struct, frozen=True, kw_only=True):
    """A kind of message that waits in a queue for a group, and since when its oldest does."""

    queue: str
    group: str
    kind: str
    oldest_at: datetime


def unserved(waiting: Iterable[WaitingKind], workers: Collection[WorkerInfo], now: datetime) -> tuple[WaitingKind, ...]:
    """The kinds that have waited for long and that no worker takes, except workers that are gone."""
    living = [each for each in workers if each.state is not WorkerState.GONE]
    return tuple(
        each
        for each in waiting
        if each.oldest_at <= now - UNSERVED_AFTER
        and not any(worker.takes(each.queue, each.group, each.kind) for worker in living)
    )
