"""Claiming, settling, extending, and units of settles and pushes."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any, assert_never

import msgspec
from msgspec import UNSET, UnsetType

from qo.core.errors import Invalid
from qo.core.lane import Filter, LaneId, Start, StartAt
from qo.core.lease import (
    Answer,
    Bury,
    Claimed,
    Complete,
    Delivered,
    Extended,
    Extension,
    Fail,
    LeaseToken,
    Lost,
    Nothing,
    Place,
    Release,
    Report,
    Settled,
    Settlement,
    Verdict,
    Want,
)
from qo.core.message import checked_id, id_text
from qo.core.names import DEFAULT_GROUP, checked_name
from qo.core.queue import duration
from qo.wire.content import Json, packed, packed_result, unpacked, unpacked_result
from qo.wire.kinds import Count, Delay, Key, Name, Seconds
from qo.wire.messages import MessageBody, PushedBody

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
    token: Name | None = None


class ClaimBody(WantBody, forbid_unknown_fields=True, omit_defaults=True, kw_only=True):
    """A claim that may wait. Of those who wait for the same, a higher priority is served first."""

    wait: bool = False
    timeout_ms: int = DEFAULT_TIMEOUT_MS
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


class ReportKind(StrEnum):
    COMPLETE = "complete"
    FAIL = "fail"
    RELEASE = "release"
    BURY = "bury"


class SettlementBody(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True, kw_only=True):
    """What is said about one claimed message. A result goes with `complete`, an error with `fail` and `bury`."""

    token: str
    lane: int
    offset: int
    report: ReportKind = ReportKind.COMPLETE
    result: Json = UNSET
    result_base64: str | UnsetType = UNSET
    error: str = ""
    after_seconds: Delay | None = None
    started_at: datetime | None = None


class SettleBody(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    """Settlements, and claims to make in the same commit."""

    items: list[SettlementBody] = []
    then: list[WantBody] = []


class SettledBody(msgspec.Struct, omit_defaults=True):
    answer: Answer
    verdict: Verdict | None = None
    lease_ended: bool = False


class ClaimedBody(msgspec.Struct, omit_defaults=True, kw_only=True):
    """What one of the claims took; or nothing, and when to ask again (null: never)."""

    messages: list[DeliveryBody] = []
    ask_again: datetime | None = None
    owner_limited: bool = False


class SettleReply(msgspec.Struct, omit_defaults=True):
    items: list[SettledBody]
    claimed: list[ClaimedBody] = []


class PlaceBody(msgspec.Struct, forbid_unknown_fields=True):
    lane: int
    offset: int


class LeaseBody(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    """Hold everything under this token for so long from now; and which of its messages have started."""

    token: str
    lease_seconds: Seconds
    started: list[PlaceBody] = []


class ExtendBody(msgspec.Struct, forbid_unknown_fields=True):
    leases: list[LeaseBody]


class HeldBody(msgspec.Struct, omit_defaults=True, kw_only=True):
    """The new deadline of a lease and which of its messages were canceled; or that it is lost."""

    lost: bool = False
    expires_at: datetime | None = None
    canceled: list[PlaceBody] = []
    lanes: int = 0


class ExtendReply(msgspec.Struct):
    leases: list[HeldBody]


class UnitBody(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    """Settles and pushes that happen together or not at all."""

    settle: list[SettlementBody] = []
    push: list[MessageBody] = []
    refuse_duplicates: bool = False


class UnitReply(msgspec.Struct):
    settled: list[SettledBody]
    pushed: list[PushedBody]


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
    )


def write_want(want: Want) -> WantBody:
    return WantBody(**want_fields(want))


def want_fields(want: Want) -> dict[str, Any]:
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


def write_claimed(answer: Claimed | Nothing) -> ClaimedBody:
    if isinstance(answer, Claimed):
        return ClaimedBody(messages=write_deliveries(answer.deliveries))
    return ClaimedBody(ask_again=answer.ask_again, owner_limited=answer.owner_limited)


def read_claimed(body: ClaimedBody) -> Claimed | Nothing:
    if body.messages:
        return Claimed(read_deliveries(body.messages))
    return Nothing(body.ask_again, body.owner_limited)


def read_settlement(body: SettlementBody) -> Settlement:
    return Settlement(
        token=LeaseToken(body.token),
        lane=LaneId(body.lane),
        offset=body.offset,
        report=_report(body),
        started_at=_aware("started_at", body.started_at),
    )


def _report(body: SettlementBody) -> Report:
    after = None if body.after_seconds is None else duration("after_seconds", body.after_seconds)
    match body.report:
        case ReportKind.COMPLETE:
            return Complete(unpacked_result("result", body.result, body.result_base64))
        case ReportKind.FAIL:
            return Fail(body.error, after)
        case ReportKind.RELEASE:
            return Release()
        case ReportKind.BURY:
            return Bury(body.error)
        case _:
            assert_never(body.report)


def _aware(field: str, time: datetime | None) -> datetime | None:
    if time is not None and time.tzinfo is None:
        raise Invalid(field, "must have a time zone")
    return time


def write_settlement(item: Settlement) -> SettlementBody:
    body = SettlementBody(token=item.token, lane=item.lane, offset=item.offset, started_at=item.started_at)
    match item.report:
        case Complete(result):
            body.result, body.result_base64 = packed_result(result)
        case Fail(error, after):
            body.report, body.error = ReportKind.FAIL, error
            body.after_seconds = None if after is None else after.total_seconds()
        case Release():
            body.report = ReportKind.RELEASE
        case Bury(error):
            body.report, body.error = ReportKind.BURY, error
        case _:
            assert_never(item.report)
    return body


def write_settled(answers: Sequence[Settled]) -> list[SettledBody]:
    return [SettledBody(each.answer, each.verdict, each.lease_ended) for each in answers]


def read_settled(bodies: Sequence[SettledBody]) -> list[Settled]:
    return [Settled(body.answer, body.verdict, body.lease_ended) for body in bodies]


def read_extension(body: LeaseBody) -> Extension:
    return Extension(
        token=LeaseToken(body.token),
        lease=duration("lease_seconds", body.lease_seconds),
        started=tuple(Place(LaneId(each.lane), each.offset) for each in body.started),
    )


def write_extension(extension: Extension) -> LeaseBody:
    started = [PlaceBody(each.lane, each.offset) for each in extension.started]
    return LeaseBody(extension.token, extension.lease / timedelta(seconds=1), started)


def write_held(answer: Extended | Lost) -> HeldBody:
    if isinstance(answer, Lost):
        return HeldBody(lost=True)
    canceled = [PlaceBody(each.lane, each.offset) for each in answer.canceled]
    return HeldBody(expires_at=answer.expires_at, canceled=canceled, lanes=answer.lanes)


def read_held(body: HeldBody) -> Extended | Lost:
    if body.lost or body.expires_at is None:
        return Lost()
    canceled = tuple(Place(LaneId(each.lane), each.offset) for each in body.canceled)
    return Extended(body.expires_at, canceled, body.lanes)
