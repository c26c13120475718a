"""Settling, extending, and units of settles and pushes."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from enum import StrEnum
from typing import assert_never

import msgspec
from msgspec import UNSET, UnsetType

from qo.core.durations import duration
from qo.core.lane import LaneId
from qo.core.lease import (
    Answer,
    Bury,
    Claimed,
    Complete,
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
)
from qo.core.moments import checked_time
from qo.wire.claims import DeliveryBody, WantBody, read_deliveries, write_deliveries
from qo.wire.content import Json, packed_result, unpacked_result
from qo.wire.kinds import Attempts, Delay, Number, Seconds
from qo.wire.messages import MessageBody, PushedBody


class ReportKind(StrEnum):
    COMPLETE = "complete"
    FAIL = "fail"
    SNOOZE = "snooze"
    RELEASE = "release"
    BURY = "bury"


class SettlementBody(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True, kw_only=True):
    """What is said about one claimed message. A result goes with `complete`, an error with `fail` and `bury`.

    `limit` is how many attempts there may be, instead of the queue's.
    """

    token: str
    lane: Number
    offset: Number
    report: ReportKind = ReportKind.COMPLETE
    result: Json = UNSET
    result_base64: str | UnsetType = UNSET
    error: str = ""
    after_seconds: Delay | None = None
    limit: Attempts | None = None
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


class UnitBody(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    """Settles and pushes that happen together or not at all; `leases` are tokens that must live."""

    settle: list[SettlementBody] = []
    push: list[MessageBody] = []
    refuse_duplicates: bool = False
    leases: list[str] = []


class UnitReply(msgspec.Struct):
    settled: list[SettledBody]
    pushed: list[PushedBody]


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
        started_at=None if body.started_at is None else checked_time("started_at", body.started_at),
    )


def _report(body: SettlementBody) -> Report:
    after = None if body.after_seconds is None else duration("after_seconds", body.after_seconds)
    match body.report:
        case ReportKind.COMPLETE:
            return Complete(unpacked_result("result", body.result, body.result_base64))
        case ReportKind.FAIL:
            return Fail(body.error, after, limit=body.limit)
        case ReportKind.SNOOZE:
            return Fail(body.error, after, free=True)
        case ReportKind.RELEASE:
            return Release()
        case ReportKind.BURY:
            return Bury(body.error)
        case _:
            assert_never(body.report)


def write_settlement(item: Settlement) -> SettlementBody:
    body = SettlementBody(token=item.token, lane=item.lane, offset=item.offset, started_at=item.started_at)
    match item.report:
        case Complete(result):
            body.result, body.result_base64 = packed_result(result)
        case Fail(error, after, free, limit):
            body.limit = limit
            body.report, body.error = ReportKind.SNOOZE if free else ReportKind.FAIL, error
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
