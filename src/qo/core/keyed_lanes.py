"""A keyed lane's run: what settling and losing it does to the lane. Pure: state in, changes out.

An engine reads a run's state, asks here, and writes the change down. PostgreSQL's functions do the
same by themselves; a table of cases holds them to these (`tests/conformance/test_transitions.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime
from typing import NamedTuple

import msgspec

from qo.core.fate import Again, Back, Completed, Fate, Standing, fate_of_loss, fate_of_report, judge_run
from qo.core.lease import Complete, Release, Report
from qo.core.queue import QueueSettings

NOTHING: frozenset[int] = frozenset()
WITHOUT_RESULT = Completed(None)


class Decided(NamedTuple):
    """What becomes of one message, and which attempt at it that was."""

    offset: int
    fate: Fate
    attempt: int


class Run(msgspec.Struct, frozen=True, kw_only=True):
    """The part [start, end) of a keyed lane that is under one lease.

    attempts, losses   of the message at `start`; those behind it have none
    skips              offsets in it that are settled already, and were not delivered
    canceled           offsets whose cancellation was asked for
    """

    start: int
    end: int
    attempts: int = 0
    losses: int = 0
    skips: frozenset[int] = NOTHING
    canceled: frozenset[int] = NOTHING

    def delivered(self, start: int, end: int) -> int | None:
        """The first message from `start` on that the holder has; skips are settled already."""
        return next((offset for offset in range(start, end) if offset not in self.skips), None)

    def standing(self, offset: int, expired: bool) -> Standing:
        head = offset == self.start
        return Standing(
            attempts=self.attempts if head else 0,
            losses=self.losses if head else 0,
            canceled=offset in self.canceled,
            expired=expired,
        )

    def attempt(self, offset: int) -> int:
        """Which attempt at a message the run is."""
        return self.attempts + 1 if offset == self.start else 1


class RunChange(msgspec.Struct, frozen=True, kw_only=True):
    """What a settle or a loss makes of a run.

    decided    messages, in the order of their offsets; all but `Again` and `Back` are finished
    canceled   messages that go back with the cancel flag on: they end as canceled, and become skips
    skips      other offsets that become skips: settled, but not passed by the cursor yet
    lease      what the lease goes on for; None: it has ended
    rest_at    where the cursor comes to rest if the lease has ended, with `attempts`, `losses`
               and `blocked_until` of the message there
    """

    decided: tuple[Decided, ...] = ()
    canceled: tuple[int, ...] = ()
    skips: tuple[int, ...] = ()
    lease: tuple[int, int] | None = None
    rest_at: int = 0
    attempts: int = 0
    losses: int = 0
    blocked_until: datetime | None = None


def settle_run(
    run: Run,
    reports: Mapping[int, Report],
    settings: QueueSettings,
    now: datetime,
    draw: float,
    expired: Callable[[int], bool],
) -> RunChange:
    """Judge the reports of one call on one run together; `expired` says whether a message's time to live is over."""
    judged = judge_run(run.start, reports)
    done = tuple(
        [
            Decided(offset, _completed(reports.get(offset)), 1 if offset != run.start else run.attempts + 1)
            for offset in range(run.start, judged.completed_to)
            if offset not in run.skips
        ]
    )
    if judged.stop is None:
        return _left(run, judged.completed_to, run.end, done)
    stop, report = judged.stop, reports[judged.stop]
    standing = run.standing(stop, expired(stop))
    fate = fate_of_report(report, standing, settings, now, draw)
    canceled = _canceled_among(run, stop + 1)
    decided = (*done, Decided(stop, fate, run.attempt(stop)))
    if isinstance(report, Release) and judged.completed_to < stop:
        skips = () if isinstance(fate, Back) else (stop,)
        return _left(run, judged.completed_to, stop, decided, canceled, skips)
    match fate:
        case Again(at=at, attempts=attempts, losses=losses):
            return RunChange(
                decided=decided,
                canceled=canceled,
                rest_at=stop,
                attempts=attempts,
                losses=losses,
                blocked_until=at,
            )
        case Back():
            return RunChange(
                decided=decided,
                canceled=canceled,
                rest_at=stop,
                attempts=standing.attempts,
                losses=standing.losses,
            )
        case _:
            return RunChange(decided=decided, canceled=canceled, rest_at=stop + 1)


def lapse_run(run: Run, settings: QueueSettings, deadline: datetime, draw: float, expired: bool) -> RunChange:
    """A lease ran out: the cursor goes back to the first unsettled message, which alone counts the loss."""
    fate = fate_of_loss(run.standing(run.start, expired), settings, deadline, draw)
    canceled = _canceled_among(run, run.start + 1)
    if isinstance(fate, Again):
        return RunChange(
            decided=(Decided(run.start, fate, run.attempts),),
            canceled=canceled,
            rest_at=run.start,
            attempts=fate.attempts,
            losses=fate.losses,
            blocked_until=fate.at,
        )
    decided = (Decided(run.start, fate, run.attempt(run.start)),)
    return RunChange(decided=decided, canceled=canceled, rest_at=run.start + 1)


def _left(
    run: Run,
    start: int,
    end: int,
    decided: tuple[Decided, ...],
    canceled: tuple[int, ...] = (),
    skips: tuple[int, ...] = (),
) -> RunChange:
    """The lease goes on for what is left of [start, end); nothing left, it ends and the cursor comes to rest."""
    first = run.delivered(start, end) if start < end else None
    if first is None:
        return RunChange(decided=decided, canceled=canceled, skips=skips, rest_at=end)
    moved = start > run.start
    return RunChange(
        decided=decided,
        canceled=canceled,
        skips=skips,
        lease=(first, end),
        rest_at=end,
        attempts=0 if moved else run.attempts,
        losses=0 if moved else run.losses,
    )


def _canceled_among(run: Run, start: int) -> tuple[int, ...]:
    """Messages from `start` on whose cancellation was asked for."""
    return tuple(offset for offset in sorted(run.canceled) if start <= offset < run.end)


def _completed(report: Report | None) -> Completed:
    result = report.result if isinstance(report, Complete) else None
    return WITHOUT_RESULT if result is None else Completed(result)
