"""Jobs and dead letters."""

from __future__ import annotations

from datetime import datetime

import msgspec
from msgspec import UNSET, UnsetType

from qo.core.names import DEFAULT_GROUP
from qo.core.outcome import CancelAnswer, DeadLetter, Event, Job, JobState
from qo.wire.claims import DEFAULT_TIMEOUT_MS
from qo.wire.content import Json, packed, packed_result, unpacked, unpacked_result
from qo.wire.kinds import Id, Name
from qo.wire.pages import Page


class JobsQuery(Page, forbid_unknown_fields=True):
    state: JobState | None = None
    before: Id | None = None


class ResultQuery(msgspec.Struct, forbid_unknown_fields=True):
    wait: bool = False
    timeout_ms: int = DEFAULT_TIMEOUT_MS


class CancelQuery(msgspec.Struct, forbid_unknown_fields=True):
    group: str = DEFAULT_GROUP


class DeadQuery(Page, forbid_unknown_fields=True):
    group: str | None = None
    after: Id | None = None


class JobBody(msgspec.Struct, omit_defaults=True, kw_only=True):
    """One message of the default group. No state: its queue keeps no history of it."""

    id: str
    queue: str
    kind: str
    key: str | None = None
    state: JobState | None = None
    attempt: int
    payload: Json = UNSET
    payload_base64: str | UnsetType = UNSET
    headers: dict[str, str] = {}
    created_at: datetime
    due_at: datetime
    lease_owner: str | None = None
    lease_expires_at: datetime | None = None
    heartbeat_at: datetime | None = None
    started_at: datetime | None = None
    finished_at: datetime | None = None
    reason: str | None = None
    error: str | None = None
    result: Json = UNSET
    result_base64: str | UnsetType = UNSET


class JobsReply(msgspec.Struct):
    jobs: list[JobBody]


class LookupBody(msgspec.Struct, forbid_unknown_fields=True):
    ids: list[Id]


class FoundReply(msgspec.Struct):
    """In the order of the ids; null where nothing is known."""

    jobs: list[JobBody | None]


CANCEL_LIMIT = 1000
"""Jobs that one request cancels: each has a commit of its own where a database has many writers."""


class CancelBody(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    ids: list[Id]
    group: Name = DEFAULT_GROUP


class CanceledOne(msgspec.Struct):
    answer: CancelAnswer


class CanceledReply(msgspec.Struct):
    answers: list[CancelAnswer]


class EventsReply(msgspec.Struct):
    events: list[Event]


class DeadBody(msgspec.Struct, omit_defaults=True, kw_only=True):
    id: str
    queue: str
    group: str
    kind: str
    key: str | None = None
    priority: int = 0
    payload: Json = UNSET
    payload_base64: str | UnsetType = UNSET
    headers: dict[str, str] = {}
    attempts: int
    losses: int
    reason: str
    error: str
    created_at: datetime
    died_at: datetime


class DeadReply(msgspec.Struct):
    dead: list[DeadBody]


class LettersBody(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    """Dead letters by id; no ids: all (retry: up to a thousand)."""

    ids: list[Id] | None = None
    group: Name = DEFAULT_GROUP


class IdsReply(msgspec.Struct):
    ids: list[str]


def write_job(job: Job) -> JobBody:
    given = {name: getattr(job, name) for name in JobBody.__struct_fields__ if name in _JOB_ALIKE}
    payload, payload_base64 = packed(job.payload, job.headers)
    result, result_base64 = packed_result(job.result)
    return JobBody(**given, payload=payload, payload_base64=payload_base64, result=result, result_base64=result_base64)


def read_job(body: JobBody) -> Job:
    given = {name: getattr(body, name) for name in _JOB_ALIKE}
    return Job(
        **given,
        payload=unpacked("payload", body.payload, body.payload_base64),
        result=unpacked_result("result", body.result, body.result_base64),
    )


_JOB_ALIKE = set(Job.__struct_fields__) - {"payload", "result"}
_DEAD_ALIKE = set(DeadLetter.__struct_fields__) - {"payload"}


def write_dead(letter: DeadLetter) -> DeadBody:
    given = {name: getattr(letter, name) for name in _DEAD_ALIKE}
    payload, payload_base64 = packed(letter.payload, letter.headers)
    return DeadBody(**given, payload=payload, payload_base64=payload_base64)


def read_dead(body: DeadBody) -> DeadLetter:
    given = {name: getattr(body, name) for name in _DEAD_ALIKE}
    return DeadLetter(**given, payload=unpacked("payload", body.payload, body.payload_base64))
