"""Lanes, groups and cursors as callers see them."""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum
from typing import NewType

import msgspec

from qo.core.errors import Invalid
from qo.core.moments import checked_time

LaneId = NewType("LaneId", int)


class CursorState(StrEnum):
    """Where a group stands in a lane.

    A keyed cursor is in exactly one of these; an open one is ready or idle,
    whatever leases it has.
    """

    READY = "ready"
    LEASED = "leased"
    BLOCKED = "blocked"
    IDLE = "idle"


class StartAt(StrEnum):
    ALL = "all"
    NEW = "new"
    TIME = "time"


class Start(msgspec.Struct, frozen=True):
    """Where a new group begins: at all retained messages, at new ones, or at a time."""

    at: StartAt = StartAt.ALL
    time: datetime | None = None

    def __post_init__(self) -> None:
        if (self.at is StartAt.TIME) != (self.time is not None):
            raise Invalid("start", "a time belongs to a start at a time, and to no other")
        if self.time is not None:
            checked_time("start", self.time)


def read_start(value: str | datetime | Start) -> Start:
    """Read `"all"`, `"new"` or a time."""
    if isinstance(value, Start):
        return value
    if isinstance(value, datetime):
        return Start(StartAt.TIME, value)
    if value in ("all", "new"):
        return Start(StartAt(value))
    raise Invalid("start", f"must be 'all', 'new' or a datetime, not {value!r}")


class Filter(msgspec.Struct, frozen=True):
    """Queues chosen by what their names say rather than by name."""

    namespace: str | None = None
    task: str | None = None

    def __post_init__(self) -> None:
        if self.namespace is None and self.task is None:
            raise Invalid("filter", "must name a namespace, a task, or both")

    def matches(self, namespace: str, task: str) -> bool:
        return self.namespace in (None, namespace) and self.task in (None, task)
