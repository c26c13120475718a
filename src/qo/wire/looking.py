"""What is listed, and what is arranged: queues, groups, jobs, dead letters, tokens."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any

import msgspec
from msgspec import UNSET, UnsetType

from qo.core.access import Scope, Token, read_scopes
from qo.core.names import DEFAULT_GROUP
from qo.core.outcome import CancelAnswer, DeadLetter, Event, GroupInfo, Job, JobState, LaneInfo, QueueInfo
from qo.core.queue import QueueSettings
from qo.wire.claims import read_start_text, write_start
from qo.wire.content import Json, packed, packed_result, unpacked, unpacked_result
from qo.wire.kinds import Id, Key, Name

Settings = dict[str, Any]
"""Settings of a queue by name, durations in seconds."""


class QueueBody(msgspec.Struct, kw_only=True):
    name: str
    namespace: str
    task: str
    settings: Settings
    paused: bool
    created_at: datetime


class QueuesReply(msgspec.Struct):
    queues: list[QueueBody]


class SettingsReply(msgspec.Struct):
    settings: Settings


class GroupBody(msgspec.Struct, kw_only=True):
    name: str
    start: str
    created_at: datetime
    claimed_at: datetime | None
    lag: int


class GroupsReply(msgspec.Struct):
    groups: list[GroupBody]


class LanesReply(msgspec.Struct):
    lanes: list[LaneInfo]


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


class CountReply(msgspec.Struct):
    count: int


class PausedReply(msgspec.Struct):
    paused: bool


class DeletedReply(msgspec.Struct):
    deleted: bool


class CreatedReply(msgspec.Struct):
    created: bool


class GroupStartBody(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    """Where the group begins: "all", "new" or a time."""

    start: str = "all"


class FilterGroupBody(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    """A group in these queues, or in all queues of a namespace or task, those that appear later too."""

    start: str = "all"
    queues: list[Name] = []
    namespace: str | None = None
    task: str | None = None


class SeekBody(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    """Move to "all" (the start), "new" (the end), a time, or an offset; in one key's lane, or in all."""

    to: str | int
    key: Key | None = None


class HealthReply(msgspec.Struct, kw_only=True):
    engine: str
    version: str
    schema: int
    details: dict[str, str]
    problems: list[str]


class NewTokenBody(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    """A token to make. Who has made the secret already gives its `id` and the SHA-256 of its secret, in hex."""

    name: Name
    scopes: list[Scope]
    prefixes: list[Name] = []
    expires_at: datetime | None = None
    id: str | None = None
    digest: str | None = None


class TokenBody(msgspec.Struct, omit_defaults=True, kw_only=True):
    """A token without its secret."""

    id: str
    name: str
    scopes: list[str]
    prefixes: list[str]
    created_at: datetime
    expires_at: datetime | None = None


class TokensReply(msgspec.Struct):
    tokens: list[TokenBody]


class NewTokenReply(msgspec.Struct, omit_defaults=True):
    """What to send as `Authorization: Bearer …` is shown now and never again; not at all to who made it."""

    token: TokenBody
    secret: str | None = None


def plain_settings(settings: QueueSettings) -> Settings:
    """All settings as JSON says them: durations in seconds."""
    return plain_settings_part(settings)


def _plain(values: dict[str, Any]) -> dict[str, Any]:
    return {name: _plain_value(value) for name, value in values.items()}


def _plain_value(value: Any) -> Any:
    if isinstance(value, dict):
        return _plain(value)
    return value.total_seconds() if isinstance(value, timedelta) else value


def plain_changes(changes: Mapping[str, Any]) -> Settings:
    """Changes as a caller writes them, as JSON says them."""
    return {
        name: plain_settings_part(value) if dataclasses.is_dataclass(value) else _plain_value(value)
        for name, value in changes.items()
    }


def plain_settings_part(value: Any) -> dict[str, Any]:
    return _plain(dataclasses.asdict(value))


def read_settings(settings: Settings) -> QueueSettings:
    return QueueSettings().changed(settings)


def write_queue(info: QueueInfo) -> QueueBody:
    return QueueBody(
        name=info.name,
        namespace=info.namespace,
        task=info.task,
        settings=plain_settings(info.settings),
        paused=info.paused,
        created_at=info.created_at,
    )


def read_queue(body: QueueBody) -> QueueInfo:
    return QueueInfo(
        name=body.name,
        namespace=body.namespace,
        task=body.task,
        settings=read_settings(body.settings),
        paused=body.paused,
        created_at=body.created_at,
    )


def write_group(info: GroupInfo) -> GroupBody:
    return GroupBody(
        name=info.name,
        start=write_start(info.start),
        created_at=info.created_at,
        claimed_at=info.claimed_at,
        lag=info.lag,
    )


def read_group(body: GroupBody) -> GroupInfo:
    return GroupInfo(
        name=body.name,
        start=read_start_text(body.start),
        created_at=body.created_at,
        claimed_at=body.claimed_at,
        lag=body.lag,
    )


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


def write_token(token: Token) -> TokenBody:
    return TokenBody(
        id=token.id,
        name=token.name,
        scopes=list(token.scopes),
        prefixes=list(token.prefixes),
        created_at=token.created_at,
        expires_at=token.expires_at,
    )


def read_token(body: TokenBody) -> Token:
    """Its digest stays with the server."""
    return Token(
        id=body.id,
        name=body.name,
        digest=b"",
        scopes=read_scopes(body.scopes),
        prefixes=tuple(body.prefixes),
        created_at=body.created_at,
        expires_at=body.expires_at,
    )
