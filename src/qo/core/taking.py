"""What a claim takes of a lane. Pure: what the lane has and the claim wants in, what is taken out."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from datetime import datetime, timedelta
from enum import StrEnum
from typing import NamedTuple

from qo.core.fate import FRAGILE_LOSSES


class Passed(StrEnum):
    """Why a claim goes past a message without delivering it."""

    SKIPPED = "skipped"
    ADDRESSED = "addressed"  # to another group
    EXPIRED = "expired"  # its time to live is over, or it is older than its queue keeps


def why_passed(
    *,
    skipped: bool,
    addressed_elsewhere: bool,
    entered_at: datetime | int,
    expires_at: datetime | int | None,
    max_age: timedelta | int | None,
    now: datetime | int,
) -> Passed | None:
    """Whether a claim goes past a message; None: it is to be delivered. Times are datetimes, or all of one unit."""
    if skipped:
        return Passed.SKIPPED
    if addressed_elsewhere:
        return Passed.ADDRESSED
    return Passed.EXPIRED if is_over(entered_at, expires_at, max_age, now) else None


def is_over(
    entered_at: datetime | int, expires_at: datetime | int | None, max_age: timedelta | int | None, now: datetime | int
) -> bool:
    """Whether a message is not delivered any more."""
    if expires_at is not None and expires_at <= now:  # type: ignore[operator]  # both of one type
        return True
    return max_age is not None and entered_at + max_age <= now  # type: ignore[operator]


def run_room(losses: int, room: int, lane_messages: int | None) -> int:
    """How long a run of a keyed lane may be: one message alone if its head was lost before."""
    return 1 if losses else min(room, lane_messages or room)


def may_take(losses: int, *, may_take_fragile: bool) -> bool:
    """Whether an owner may hold a message that was lost so often, beside what it holds already."""
    return losses < FRAGILE_LOSSES or may_take_fragile


class Offered(NamedTuple):
    """A message of a keyed lane, in the order of offsets. `passed`: it is not delivered."""

    offset: int
    kind: str | None
    passed: bool


class RunTaken(NamedTuple):
    """The offsets that a run delivers, where it ends, and whether the lane had one that the claim does not accept."""

    offsets: list[int]
    position: int
    stopped: bool


def take_run(offered: Iterable[Offered], position: int, kinds: Collection[str] | None, room: int) -> RunTaken:
    """A run goes past what is not delivered, and stops before the first message of a kind that is not accepted."""
    taken: list[int] = []
    for each in offered:
        if not each.passed:
            if len(taken) >= room:
                break
            if kinds is not None and each.kind not in kinds:
                return RunTaken(taken, position, True)
            taken.append(each.offset)
        position = each.offset + 1
    return RunTaken(taken, position, False)
