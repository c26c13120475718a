"""The record of a message's life, as the default group saw it."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any

import msgspec

from qo.core.lane import CursorState, LaneId, Start
from qo.core.queue import QueueSettings


class JobState(StrEnum):
    """queued → assigned → running → succeeded | failed | canceled; assigned and running fall back to queued."""

    QUEUED = "queued"
    ASSIGNED = "assigned"
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELED = "canceled"

    @property
    def finished(self) -> bool:
        return self in (JobState.SUCCEEDED, JobState.FAILED, JobState.CANCELED)


class Job(msgspec.Struct, frozen=True, kw_only=True):
    """One message of the default group. `state` is None where the queue keeps no history of it.

    `error` is why it ended; while it waits for another attempt, or has one, why the last failed.
    """

    id: str
    queue: str
    kind: str
    key: str | None
    state: JobState | None
    attempt: int
    payload: bytes
    headers: Mapping[str, str]
    created_at: datetime
    due_at: datetime
    lease_owner: str | None = None
    lease_expires_at: datetime | None = None
    heartbeat_at: datetime | None = None
    started_at: datetime | None = None
    finished_at: datetime | None = None
    reason: str | None = None
    error: str | None = None
    result: bytes | None = None


def as_of(job: Job, now: datetime) -> Job:
    """How a job stands at that time, from what is stored: a lease that has run out holds nothing.

    A job that is not finished shows no outcome, though one from before a seek may be stored. Its error is
    then why its last attempt failed.
    """
    if job.state is None or job.state.finished:
        return job
    error = job.error if job.finished_at is None else None
    changes: dict[str, Any] = {"finished_at": None, "reason": None, "error": error, "result": None}
    if state_as_of(job.state, job.lease_expires_at, now) is not job.state:
        changes |= {"state": JobState.QUEUED, "lease_owner": None, "lease_expires_at": None, "started_at": None}
    return msgspec.structs.replace(job, **changes)


def state_as_of(state: JobState, lease_expires_at: datetime | None, now: datetime) -> JobState:
    """The state of a job at that time, from the one that is stored."""
    leased = state in (JobState.ASSIGNED, JobState.RUNNING)
    return JobState.QUEUED if leased and lease_expires_at is not None and lease_expires_at <= now else state


class Event(msgspec.Struct, frozen=True, kw_only=True):
    """A change of state, kept where the queue's history is `full`."""

    at: datetime
    state: JobState
    detail: str


class DeadLetter(msgspec.Struct, frozen=True, kw_only=True):
    """A full copy of a message that used up its attempts, was buried, or was lost too often."""

    id: str
    queue: str
    group: str
    kind: str
    key: str | None
    priority: int
    payload: bytes
    headers: Mapping[str, str]
    attempts: int
    losses: int
    reason: str
    error: str
    created_at: datetime
    died_at: datetime


class Standing(msgspec.Struct, frozen=True, kw_only=True):
    """How far one group is with one message of a keyed lane. `known`: it has claimed from this queue."""

    group: str
    known: bool
    passed: bool
    attempts: int
    lease_expires_at: datetime | None = None


class NamedMessage(msgspec.Struct, frozen=True, kw_only=True):
    """A message of a keyed lane as it is stored, and how far each group is with it."""

    id: str
    queue: str
    key: str
    offset: int
    kind: str
    payload: bytes
    headers: Mapping[str, str]
    created_at: datetime
    standings: tuple[Standing, ...]


class Trace(msgspec.Struct, frozen=True, kw_only=True):
    """Something that a consumer noted about a message, under names by which it is found again."""

    id: str
    queue: str
    key: str
    name: str
    group: str
    names: tuple[str, ...]
    event: str
    data: bytes
    created_at: datetime


class CancelAnswer(StrEnum):
    CANCELED = "canceled"
    REQUESTED = "requested"  # it is leased: its holder is told at the next extend
    FINISHED = "finished"
    NOT_FOUND = "not_found"


class Depth(msgspec.Struct, frozen=True, kw_only=True):
    """How much of a queue is still ahead of a group.

    ready     messages that no claim has taken yet (blocked heads included), or whose lease ran out
    retrying  messages of open lanes that wait for their next attempt
    leased    delivered and not yet settled, under leases that live
    delayed   in intake, not due or not yet moved
    dead      dead letters of this group
    missed    messages that were removed before this group had settled them
    """

    ready: int
    retrying: int
    leased: int
    delayed: int
    dead: int
    missed: int
    oldest_at: datetime | None


class QueueOverview(msgspec.Struct, frozen=True, kw_only=True):
    """How a queue stands, at a glance: of its default group.

    waiting    messages that are to be delivered, now or later
    running    delivered and not yet settled, under leases that live
    failed     dead letters
    rate_in    about how many messages entered the queue's lanes in the last minute, of the newest ones; on PostgreSQL
               without lanes that housekeeping has looked at since
    rate_out   messages whose leases ended in the last minute, of as many leases
    """

    name: str
    paused: bool
    waiting: int
    running: int
    failed: int
    oldest_at: datetime | None
    rate_in: int
    rate_out: int


RATE_LENGTH = timedelta(minutes=1)
RATE_SCAN = 10_000
"""Messages, and leases, that a read of the rates looks at."""


class QueueInfo(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    namespace: str
    task: str
    settings: QueueSettings
    paused: bool
    created_at: datetime


class GroupInfo(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    start: Start
    created_at: datetime
    claimed_at: datetime | None
    lag: int


class GroupPlace(msgspec.Struct, frozen=True, kw_only=True):
    """A group in one of its queues; since when its oldest message waits."""

    queue: str
    info: GroupInfo
    oldest_at: datetime | None


class LaneInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A lane and where one group stands in it."""

    lane: LaneId
    key: str | None
    kind: str | None
    priority: int | None
    first: int
    tail: int
    state: CursorState
    position: int
    lag: int
    leased: int = 0
    """Of the messages before `position`, those that a live lease holds unsettled; of a keyed lane."""


class Health(msgspec.Struct, frozen=True, kw_only=True):
    """What `qo doctor` finds in a store."""

    engine: str
    version: str
    schema: int
    details: Mapping[str, str]
    problems: tuple[str, ...]
