"""Workers, and how many there should be."""

from __future__ import annotations

from datetime import datetime

import msgspec

from qo.core.names import DEFAULT_GROUP, DEFAULT_QUEUE
from qo.core.scaling import DEFAULT_COUNT, MAX_COUNT
from qo.core.worker import WaitingKind, WorkerInfo


class ScalingQuery(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """`queue` and `kind` may be given several times; no kind: all."""

    queue: list[str] = msgspec.field(default_factory=lambda: [DEFAULT_QUEUE])
    kind: list[str] = []
    group: str = DEFAULT_GROUP
    min: int = DEFAULT_COUNT
    max: int = MAX_COUNT
    wait: bool = False
    timeout_ms: int = 30_000


class KeptReply(msgspec.Struct):
    """Whether a worker that waits in a claim need not be heard from to be known to live."""

    kept: bool


class WorkersReply(msgspec.Struct):
    """Who works, and the kinds of messages that wait and that nobody takes."""

    workers: list[WorkerInfo]
    unserved: list[WaitingKind]


class ScalingReply(msgspec.Struct, kw_only=True, omit_defaults=True):
    """What there is to do, who is there to do it, and how many workers it asks for.

    `depth` is how many messages could run at once, with those that run. Times are the store's; what a client waits
    by are the lengths: for how long the oldest has waited, and in how long time will bring something.
    """

    depth: int
    waiting: int
    runnable: int
    running: int
    oldest_seconds: float
    workers: int
    max_capacity: int
    available_capacity: int
    desired: int
    oldest_at: datetime | None = None
    next_at: datetime | None = None
    next_seconds: float | None = None
