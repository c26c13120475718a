"""The decisions: what becomes of a report, of a lost lease, of a run.

Pure: the store reads the facts, asks here, and writes the answer down.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import assert_never

import msgspec

from qo.core.lease import Bury, Complete, Fail, Release, Report
from qo.core.queue import QueueSettings

FRAGILE_LOSSES = 2
"""From this many losses on, a message waits out a backoff and an owner holds only one such message at a time."""


class Standing(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of a message when its fate is decided. `attempts` and `losses` are those before this one."""

    attempts: int
    losses: int
    canceled: bool
    expired: bool


class Completed(msgspec.Struct, frozen=True):
    result: bytes | None


class Again(msgspec.Struct, frozen=True):
    """It will be delivered again, no sooner than `at`. `error` is why its holder gave it up."""

    at: datetime
    attempts: int
    losses: int
    error: str = ""


class Back(msgspec.Struct, frozen=True):
    """It is given back as it was."""

    attempts: int
    losses: int


class Dead(msgspec.Struct, frozen=True):
    """It is not tried again. Unless `kept`, no dead letter is made of it."""

    reason: str
    error: str
    attempts: int
    losses: int
    kept: bool = True


class Canceled(msgspec.Struct, frozen=True):
    reason: str


Fate = Completed | Again | Back | Dead | Canceled


def fate_of_report(report: Report, standing: Standing, settings: QueueSettings, now: datetime, draw: float) -> Fate:
    """Decide what a holder's report makes of a message."""
    if isinstance(report, Complete):
        return Completed(report.result)
    if standing.canceled:
        return Canceled("canceled")
    match report:
        case Fail(free=True):
            rest = report.after or timedelta(0)
            return _unless_expired(standing, Again(now + rest, standing.attempts, 0, report.error))
        case Fail():
            attempts = standing.attempts + 1
            if attempts >= (report.limit or settings.retry.attempts):
                return Dead("failed", report.error, attempts, standing.losses, settings.dead_letters)
            rest = settings.retry.rest(attempts, draw) if report.after is None else report.after
            return _unless_expired(standing, Again(now + rest, attempts, 0, report.error))
        case Release():
            return _unless_expired(standing, Back(standing.attempts, standing.losses))
        case Bury():
            return Dead("buried", report.error, standing.attempts + 1, standing.losses)
        case _:
            assert_never(report)


def fate_of_loss(standing: Standing, settings: QueueSettings, deadline: datetime, draw: float) -> Fate:
    """Decide what the end of a lease's time makes of a message it had not settled."""
    if standing.canceled:
        return Canceled("canceled")
    losses = standing.losses + 1
    if settings.max_lost and losses >= settings.max_lost:
        error = f"its lease ran out {losses} times"
        return Dead("lost", error, standing.attempts, losses, settings.dead_letters)
    rest = settings.retry.rest(losses - 1, draw) if losses >= FRAGILE_LOSSES else timedelta(0)
    return _unless_expired(standing, Again(deadline + rest, standing.attempts, losses))


def _unless_expired(standing: Standing, fate: Again | Back) -> Fate:
    """A message whose time to live is over is not given back."""
    return Canceled("expired") if standing.expired else fate


class Judged(msgspec.Struct, frozen=True, kw_only=True):
    """What one settle call makes of a keyed lane's run.

    Everything below `completed_to` is completed. `stop` is the offset whose
    report ended the run or cut it short, if one did; what lies above it is
    given back.
    """

    completed_to: int
    stop: int | None


def _completes_what_is_before(report: Report) -> bool:
    return report.after_done if isinstance(report, Release) else True


def judge_run(start: int, reports: Mapping[int, Report]) -> Judged:
    """Judge the items of one call on one keyed lease together.

    The lowest that is not a completion decides. Fail and bury complete what is
    before them, because it was run in order; release completes nothing, unless it says so.
    """
    stops = [offset for offset, report in reports.items() if not isinstance(report, Complete)]
    stop = min(stops) if stops else None
    if stop is not None and _completes_what_is_before(reports[stop]):
        return Judged(completed_to=stop, stop=stop)
    done = [offset + 1 for offset in reports if stop is None or offset < stop]
    return Judged(completed_to=max(done, default=start), stop=stop)
