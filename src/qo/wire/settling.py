"""Settling, extending, and units of settles and pushes."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from enum import StrEnum
from typing import assert_never

import msgspec
from msgspec import UNSET, UnsetType

from qo.core.durations import duration
from qo.core.errors import Invalid, RolledBack
from qo.core.lane import LaneId
from qo.core.lease import (
    AckAnswer,
    AckByName,
    Acked,
    Answer,
    Bury,
    Claimed,
    Complete,
    Done,
    Extended,
    Extension,
    Fail,
    LeaseToken,
    Lost,
    Nothing,
    Obstacle,
    Place,
    Release,
    Report,
    Settled,
    Settlement,
    Undone,
    Unit,
    Verdict,
)
from qo.core.moments import checked_time
from qo.core.names import DEFAULT_GROUP, checked_key, checked_name
from qo.wire.claims import DeliveryBody, WantBody, read_deliveries, write_deliveries
from qo.wire.content import Json, packed_result, unpacked_result
from qo.wire.kinds import Attempts, Delay, Key, Name, Number, Seconds
from qo.wire.messages import MessageBody, PushedBody, read_pushed, write_message, write_pushed


class ReportKind(StrEnum):
    COMPLETE = "complete"
    FAIL = "fail"
    SNOOZE = "snooze"
    RELEASE = "release"
    BURY = "bury"


class ReportBody(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True, kw_only=True):
    """What became of a message. A result goes with `complete`, an error with `fail` and `bury`.

    `limit` is how many attempts there may be, instead of the queue's. `after_done` goes with `release`:
    what is before it in a keyed lane is done.
    """

    report: ReportKind = ReportKind.COMPLETE
    result: Json = UNSET
    result_base64: str | UnsetType = UNSET
    error: str = ""
    after_seconds: Delay | None = None
    limit: Attempts | None = None
    after_done: bool = False


class SettlementBody(ReportBody, forbid_unknown_fields=True, omit_defaults=True, kw_only=True):
    """What is said about one claimed message; `token`, `lane` and `offset` are those of its delivery."""

    token: str
    lane: Number
    offset: Number
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
    contended: bool = False


class SettleReply(msgspec.Struct, omit_defaults=True):
    items: list[SettledBody]
    claimed: list[ClaimedBody] = []


class PlaceBody(msgspec.Struct, forbid_unknown_fields=True):
    lane: Number
    offset: Number


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


class AckBody(ReportBody, forbid_unknown_fields=True, omit_defaults=True, kw_only=True):
    """What is said about a message of a keyed lane by its name there; fenced if there is a token."""

    queue: Name
    key: Key
    name: Key
    group: Name = DEFAULT_GROUP
    token: str | None = None


class AckedBody(msgspec.Struct, omit_defaults=True):
    answer: AckAnswer
    verdict: Verdict | None = None
    lease_ended: bool = False
    stale: bool = False


class UnitBody(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True, kw_only=True):
    """Settles, acks and pushes that happen together or not at all; `leases` are tokens that must live."""

    settle: list[SettlementBody] = []
    acks: list[AckBody] = []
    push: list[MessageBody] = []
    refuse_duplicates: bool = False
    leases: list[str] = []


class UnitReply(msgspec.Struct, omit_defaults=True):
    settled: list[SettledBody]
    pushed: list[PushedBody]
    acked: list[AckedBody] = []


def write_claimed(answer: Claimed | Nothing) -> ClaimedBody:
    if isinstance(answer, Claimed):
        return ClaimedBody(messages=write_deliveries(answer.deliveries))
    return ClaimedBody(ask_again=answer.ask_again, owner_limited=answer.owner_limited, contended=answer.contended)


def read_claimed(body: ClaimedBody) -> Claimed | Nothing:
    if body.messages:
        return Claimed(read_deliveries(body.messages))
    return Nothing(body.ask_again, body.owner_limited, body.contended)


def read_settlement(body: SettlementBody) -> Settlement:
    return Settlement(
        token=LeaseToken(body.token),
        lane=LaneId(body.lane),
        offset=body.offset,
        report=read_report(body),
        started_at=None if body.started_at is None else checked_time("started_at", body.started_at),
    )


def read_report(body: ReportBody) -> Report:
    after = None if body.after_seconds is None else duration("after_seconds", body.after_seconds)
    match body.report:
        case ReportKind.COMPLETE:
            return Complete(unpacked_result("result", body.result, body.result_base64))
        case ReportKind.FAIL:
            return Fail(body.error, after, limit=body.limit)
        case ReportKind.SNOOZE:
            return Fail(body.error, after, free=True, limit=body.limit)
        case ReportKind.RELEASE:
            return Release(body.after_done)
        case ReportKind.BURY:
            return Bury(body.error)
        case _:
            assert_never(body.report)


def write_settlement(item: Settlement) -> SettlementBody:
    body = SettlementBody(token=item.token, lane=item.lane, offset=item.offset, started_at=item.started_at)
    _write_report(body, item.report)
    return body


def _write_report(body: ReportBody, report: Report) -> None:
    match report:
        case Complete(result):
            body.result, body.result_base64 = packed_result(result)
        case Fail(error, after, free, limit):
            body.limit = limit
            body.report, body.error = ReportKind.SNOOZE if free else ReportKind.FAIL, error
            body.after_seconds = None if after is None else after.total_seconds()
        case Release(after_done):
            body.report, body.after_done = ReportKind.RELEASE, after_done
        case Bury(error):
            body.report, body.error = ReportKind.BURY, error
        case _:
            assert_never(report)


def read_ack(body: AckBody) -> AckByName:
    return AckByName(
        queue=checked_name("queue", body.queue),
        key=checked_key("key", body.key),
        name=body.name,
        group=checked_name("group", body.group),
        report=read_report(body),
        token=None if body.token is None else LeaseToken(body.token),
    )


def write_ack(ack: AckByName) -> AckBody:
    body = AckBody(queue=ack.queue, key=ack.key, name=ack.name, group=ack.group, token=ack.token)
    _write_report(body, ack.report)
    return body


def write_acked(answers: Sequence[Acked]) -> list[AckedBody]:
    return [AckedBody(each.answer, each.verdict, each.lease_ended, each.stale) for each in answers]


def write_unit(unit: Unit) -> UnitBody:
    """All of it but the nonce, which is a header of the request. Records are not on the wire: what they keep has
    operations of its own.
    """
    if unit.records or unit.removed_groups:
        raise Invalid("records", "cannot be sent to a server; use the operations of what they keep")
    return UnitBody(
        settle=[write_settlement(each) for each in unit.settlements],
        acks=[write_ack(each) for each in unit.acks],
        push=[write_message(each) for each in unit.pushes],
        refuse_duplicates=unit.refuse_duplicates,
        leases=list(unit.leases),
    )


def write_done(done: Done) -> UnitReply:
    return UnitReply(write_settled(done.settled), write_pushed(done.pushed), write_acked(done.acked))


def read_done(reply: UnitReply) -> Done:
    return Done(
        tuple(read_settled(reply.settled)),
        tuple(read_pushed(reply.pushed)),
        tuple(Acked(each.answer, each.verdict, each.lease_ended, each.stale) for each in reply.acked),
    )


def write_undone(undone: Undone) -> RolledBack:
    return RolledBack(undone.reason, item=undone.item, obstacle=undone.obstacle)


def read_undone(error: RolledBack) -> Undone:
    return Undone(str(error), error.item or 0, Obstacle(error.obstacle or Obstacle.SETTLEMENT))


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
