"""Claiming: what is wanted, and what is delivered."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

import msgspec
from msgspec import UNSET, UnsetType

from qo.core.durations import duration
from qo.core.errors import Invalid
from qo.core.lane import Filter, LaneId, Start, StartAt
from qo.core.lease import CLAIM_BYTES, Delivered, LeaseToken, Want
from qo.core.message import checked_id, id_text
from qo.core.names import DEFAULT_GROUP, checked_name
from qo.wire.content import Json, packed, unpacked
from qo.wire.kinds import Bytes, Count, Key, Name, Seconds

DEFAULT_TIMEOUT_MS = 30_000


class WantBody(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True, kw_only=True):
    """What a claim asks for. `start` is where a group that is new begins: "all", "new" or a time."""

    queues: list[Name] = []
    namespace: str | None = None
    task: str | None = None
    group: Name = DEFAULT_GROUP
    start: str = "all"
    kinds: list[Name] | None = None
    key: Key | None = None
    messages: Count = 1
    lanes: Count | None = None
    lane_messages: Count | None = None
    lease_seconds: Seconds | None = None
    owner: Name | None = None
    auto_settle: bool = False
    max_bytes: Bytes = CLAIM_BYTES
    token: Name | None = None


class ClaimBody(WantBody, forbid_unknown_fields=True, omit_defaults=True, kw_only=True):
    """A claim that may wait. Of those who wait for the same, a higher priority is served first."""

    wait: bool = False
    timeout_ms: int = DEFAULT_TIMEOUT_MS
    priority: int = 0


class ClaimQuery(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True, kw_only=True):
    """What a claim on one queue may say in its query instead of its body."""

    group: str | None = None
    messages: int | None = None
    wait: bool | None = None
    timeout_ms: int | None = None
    lease_seconds: float | None = None
    key: str | None = None
    owner: str | None = None
    auto_settle: bool | None = None
    priority: int | None = None


DEFAULT_WINDOW = 100


class StreamQuery(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    group: str = DEFAULT_GROUP
    start: str = "all"
    key: str | None = None
    messages: int = 10
    window: int = DEFAULT_WINDOW
    lease_seconds: float | None = None
    owner: str | None = None
    auto_settle: bool = False
    priority: int = 0


class DeliveryBody(msgspec.Struct, omit_defaults=True, kw_only=True, gc=False):
    """One message under a lease. `token`, `lane` and `offset` settle it."""

    id: str
    queue: str
    kind: str
    key: str | None = None
    payload: Json = UNSET
    payload_base64: str | UnsetType = UNSET
    headers: dict[str, str] = {}
    priority: int = 0
    attempt: int
    created_at: datetime
    due_at: datetime
    entered_at: datetime
    expires_at: datetime
    token: str
    lane: int
    offset: int
    retry_of: str | None = None


class ClaimReply(msgspec.Struct):
    """What a claim took, all under its one token."""

    messages: list[DeliveryBody]


def read_start_text(text: str) -> Start:
    """Read "all", "new" or a time."""
    if text in ("all", "new"):
        return Start(StartAt(text))
    try:
        time = msgspec.convert(text, datetime)
    except msgspec.ValidationError:
        raise Invalid("start", f"must be 'all', 'new' or an RFC 3339 time, not {text!r}") from None
    return Start(StartAt.TIME, time)


def write_start(start: Start) -> str:
    return start.at.value if start.time is None else start.time.isoformat()


def read_want(body: WantBody, token: str) -> Want:
    where = None if body.namespace is None and body.task is None else Filter(body.namespace, body.task)
    return Want(
        token=LeaseToken(token if body.token is None else checked_name("token", body.token)),
        queues=tuple(body.queues),
        filter=where,
        group=body.group,
        start=read_start_text(body.start),
        kinds=None if body.kinds is None else frozenset(body.kinds),
        key=body.key,
        messages=body.messages,
        lanes=body.lanes,
        lane_messages=body.lane_messages,
        lease=None if body.lease_seconds is None else duration("lease_seconds", body.lease_seconds),
        owner=None if body.owner is None else checked_name("owner", body.owner),
        auto_settle=body.auto_settle,
        max_bytes=body.max_bytes,
        named=body.token is not None,
    )


def write_want(want: Want) -> WantBody:
    return WantBody(**want_fields(want))


def want_fields(want: Want) -> dict[str, Any]:
    """Every claim over the wire is named: its token is known before its answer, which may be lost."""
    if want.new_queue is not None:
        raise Invalid("new_queue", "cannot be sent to a server; configure the queue first")
    return {
        "queues": list(want.queues),
        "namespace": None if want.filter is None else want.filter.namespace,
        "task": None if want.filter is None else want.filter.task,
        "group": want.group,
        "start": write_start(want.start),
        "kinds": None if want.kinds is None else sorted(want.kinds),
        "key": want.key,
        "messages": want.messages,
        "lanes": want.lanes,
        "lane_messages": want.lane_messages,
        "lease_seconds": None if want.lease is None else want.lease.total_seconds(),
        "owner": want.owner,
        "auto_settle": want.auto_settle,
        "max_bytes": want.max_bytes,
        "token": want.token,
    }


def write_deliveries(deliveries: Sequence[Delivered]) -> list[DeliveryBody]:
    return [_delivery_body(each) for each in deliveries]


def _delivery_body(each: Delivered) -> DeliveryBody:
    payload, encoded = packed(each.payload, each.headers)
    return DeliveryBody(
        id=id_text(each.id),
        queue=each.queue,
        kind=each.kind,
        key=each.key,
        payload=payload,
        payload_base64=encoded,
        headers=each.headers,  # type: ignore[arg-type]  # it is only written
        priority=each.priority,
        attempt=each.attempt,
        created_at=each.created_at,
        due_at=each.due_at,
        entered_at=each.entered_at,
        expires_at=each.expires_at,
        token=each.token,
        lane=each.lane,
        offset=each.offset,
        retry_of=None if each.retry_of is None else id_text(each.retry_of),
    )


def read_deliveries(bodies: Sequence[DeliveryBody]) -> tuple[Delivered, ...]:
    return tuple(_delivered(body) for body in bodies)


def _delivered(body: DeliveryBody) -> Delivered:
    return Delivered(
        token=LeaseToken(body.token),
        lane=LaneId(body.lane),
        offset=body.offset,
        id=checked_id("id", body.id),
        queue=body.queue,
        key=body.key,
        kind=body.kind,
        payload=unpacked("payload", body.payload, body.payload_base64),
        headers=body.headers,
        priority=body.priority,
        attempt=body.attempt,
        created_at=body.created_at,
        due_at=body.due_at,
        entered_at=body.entered_at,
        expires_at=body.expires_at,
        retry_of=None if body.retry_of is None else checked_id("retry_of", body.retry_of),
    )
